// The keyboard: jumps, filter, help, and the palette that finds everything.

import { signal } from "@preact/signals";
import type { JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { Dialog, jobActions, nodeActions } from "./actions";
import { go, parts } from "./router";
import { sited } from "./site";
import { jobs, may, nodes, session, state } from "./store";
import { toggleTheme } from "./theme";
import { VIEWS } from "./views";

let isJump = false;

export function onKey(event: KeyboardEvent): void {
  if (!session.value) return;
  if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "k") {
    event.preventDefault();
    Palette.isOpen.value = !Palette.isOpen.value;
    return;
  }
  const target = event.target as HTMLElement;
  const isTyping = /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName) && (target as HTMLInputElement).type !== "checkbox";
  if (isTyping || event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  if (isJump) {
    isJump = false;
    const view = VIEWS.find((each) => each.key === event.key);
    if (view) {
      event.preventDefault();
      go(sited(view.path));
    }
    return;
  }
  if (event.key === "g") {
    isJump = true;
    setTimeout(() => (isJump = false), 2500);
  } else if (event.key === "/") {
    const filter = document.querySelector<HTMLElement>("[data-filter]");
    if (filter) {
      event.preventDefault();
      filter.focus();
    }
  } else if (event.key === "?") Help.isOpen.value = true;
}

interface Target {
  title: string;
  kind: string;
  run: () => void;
}

function targets(): Target[] {
  const found: Target[] = VIEWS.filter((view) => !view.role || may(view.role)).map((view) => ({ title: view.title, kind: `page · g ${view.key}`, run: () => go(sited(view.path)) }));
  const [view, name] = parts.value;
  const job = view === "jobs" && name ? state.value.jobs.get(name) : undefined;
  const node = view === "nodes" && name ? state.value.nodes.get(name) : undefined;
  for (const each of job ? jobActions([job]) : node ? nodeActions([node]) : []) found.unshift({ title: `${each.title} ${name}`, kind: "action", run: each.start });
  found.push({ title: "Light or dark", kind: "setting", run: toggleTheme });
  for (const each of jobs.value) found.push({ title: `${each.name} ${each.id}`, kind: `job · ${each.state}`, run: () => go(`/jobs/${each.id}`) });
  for (const each of nodes.value) found.push({ title: each.name, kind: `node · ${each.state}`, run: () => go(`/nodes/${encodeURIComponent(each.name)}`) });
  for (const each of state.value.queues) found.push({ title: each.path, kind: "queue", run: () => go(`/jobs?queue=${encodeURIComponent(each.path)}`) });
  return found;
}

function View(): JSX.Element | null {
  return Palette.isOpen.value ? <Open /> : null;
}

function Open(): JSX.Element {
  const [q, setQ] = useState("");
  const [at, setAt] = useState(0);
  const input = useRef<HTMLInputElement>(null);
  useEffect(() => input.current?.focus(), []);
  const words = q.toLowerCase().split(/\s+/).filter(Boolean);
  const found = targets()
    .filter((each) => words.every((word) => `${each.title} ${each.kind}`.toLowerCase().includes(word)))
    .slice(0, 12);
  const close = (): void => {
    Palette.isOpen.value = false;
  };
  const take = (target: Target | undefined): void => {
    close();
    // After the dialog has given the focus back.
    setTimeout(() => target?.run(), 0);
  };
  return (
    <Dialog title="Jump to" close={close}>
      <input
        ref={input}
        class="palette-input"
        role="combobox"
        aria-label="Jump to a page, job, node, queue or action"
        aria-expanded="true"
        aria-controls="palette"
        aria-activedescendant={found.length ? `palette-${at}` : undefined}
        placeholder="page, job, node, queue, action"
        value={q}
        onInput={(event) => {
          setQ(event.currentTarget.value);
          setAt(0);
        }}
        onKeyDown={(event) => {
          if (event.key === "ArrowDown") setAt(Math.min(at + 1, found.length - 1));
          else if (event.key === "ArrowUp") setAt(Math.max(at - 1, 0));
          else if (event.key === "Enter") take(found[at]);
          else return;
          event.preventDefault();
        }}
      />
      <ul id="palette" role="listbox" aria-label="found" class="palette">
        {found.map((each, index) => (
          <li key={each.title + each.kind} id={`palette-${index}`} role="option" aria-selected={index === at} onClick={() => take(each)} onMouseMove={() => setAt(index)}>
            <span>{each.title}</span> <span class="quiet">{each.kind}</span>
          </li>
        ))}
      </ul>
      {found.length ? null : <p class="quiet">Nothing of that name is known here.</p>}
    </Dialog>
  );
}

export const Palette = { isOpen: signal(false), View };

const ROWS: [string, string][] = [
  ["/", "filter or search this page"],
  ["Ctrl K", "jump to anything, or act on what is shown"],
  ...VIEWS.map((view): [string, string] => [`g ${view.key}`, `go to ${view.title}`]),
  ["j k ↑ ↓", "move in a table"],
  ["Enter", "open the row"],
  ["x", "select the row for a change of many"],
  ["Ctrl Enter", "review the job file"],
  ["Esc", "close, or leave the filter"],
  ["?", "this help"],
];

function HelpView(): JSX.Element | null {
  if (!Help.isOpen.value) return null;
  return (
    <Dialog title="Keys" close={() => (Help.isOpen.value = false)}>
      <h2>Keys</h2>
      <table class="plain keys">
        <tbody>
          {ROWS.map(([key, meaning]) => (
            <tr key={key}>
              <td>
                <kbd>{key}</kbd>
              </td>
              <td>{meaning}</td>
            </tr>
          ))}
        </tbody>
      </table>
      <div class="buttons">
        <button type="button" class="primary" onClick={() => (Help.isOpen.value = false)}>
          Close
        </button>
      </div>
    </Dialog>
  );
}

export const Help = { isOpen: signal(false), View: HelpView };
