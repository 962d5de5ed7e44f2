// Light or dark: as the machine is set, until a person chooses.

import { signal } from "@preact/signals";

const machine = matchMedia("(prefers-color-scheme: dark)");
const chosen = localStorage.getItem("theme");

export const theme = signal(chosen ?? (machine.matches ? "dark" : "light"));

function apply(): void {
  document.documentElement.dataset["theme"] = theme.value;
}

export function toggleTheme(): void {
  theme.value = theme.value === "dark" ? "light" : "dark";
  localStorage.setItem("theme", theme.value);
  apply();
}

machine.addEventListener("change", () => {
  if (localStorage.getItem("theme") === null) {
    theme.value = machine.matches ? "dark" : "light";
    apply();
  }
});
apply();
