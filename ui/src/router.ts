// Where the page is: the path and query of the URL hold all that is shown.

import { computed, signal } from "@preact/signals";
import { base } from "./api";

const place = signal(here());

function here(): { path: string; query: URLSearchParams } {
  const path = location.pathname.slice(base.length) || "/";
  return { path, query: new URLSearchParams(location.search) };
}

export const path = computed(() => place.value.path);
export const parts = computed(() => path.value.split("/").filter(Boolean).map(decodeURIComponent));

export function param(name: string): string {
  return place.value.query.get(name) ?? "";
}

export function href(to: string): string {
  return base + to;
}

export function go(to: string, isReplacing = false): void {
  const target = base + to;
  if (isReplacing) history.replaceState(null, "", target);
  else if (target !== location.pathname + location.search) history.pushState(null, "", target);
  const before = place.value.path;
  place.value = here();
  if (before !== place.value.path) {
    window.scrollTo(0, 0);
    // Who listens to the page hears that it changed.
    queueMicrotask(() => document.getElementById("main")?.focus({ preventScroll: true }));
  }
}

/** Change parts of the query; an empty value takes one away. */
export function setParams(changes: Record<string, string>): void {
  const query = new URLSearchParams(place.value.query);
  for (const [name, value] of Object.entries(changes)) {
    if (value) query.set(name, value);
    else query.delete(name);
  }
  const text = query.toString();
  go(path.value + (text ? `?${text}` : ""), true);
}

window.addEventListener("popstate", () => {
  place.value = here();
});

// Links stay plain links: opened in a new tab they work as they are.
document.addEventListener("click", (event) => {
  const anchor = (event.target as Element).closest?.("a");
  if (!anchor || event.defaultPrevented || event.button !== 0 || anchor.target || anchor.hasAttribute("download")) return;
  if (event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
  const target = new URL(anchor.href);
  if (target.origin !== location.origin || !target.pathname.startsWith(base)) return;
  event.preventDefault();
  go(target.pathname.slice(base.length) + target.search);
});
