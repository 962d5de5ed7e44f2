// A table of any length: only the rows in view are in the document.

import type { ComponentChildren, JSX } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { csv, save } from "./format";
import { go, param, setParams } from "./router";

export interface Column<T> {
  key: string;
  title: string;
  cell: (row: T) => ComponentChildren;
  /** Its name in CSV where the title leaves out the unit. */
  file?: string;
  /** For sorting and for CSV. */
  value: (row: T) => string | number;
  align?: "end";
  /** Left out on narrow screens: 1 first, 2 next. */
  hide?: 1 | 2;
  grow?: boolean;
}

interface Props<T> {
  name: string;
  rows: T[];
  columns: Column<T>[];
  id: (row: T) => string;
  open?: (row: T) => string;
  selected?: Set<string>;
  onSelect?: (ids: Set<string>) => void;
  empty: ComponentChildren;
  tools?: ComponentChildren;
  command?: string;
}

const ROW_PX = 36;
const SPARE = 8;

const WORDS = new Intl.Collator(undefined, { numeric: true });

function order<T>(rows: T[], columns: Column<T>[], by: string): T[] {
  const isDown = by.startsWith("-");
  const column = columns.find((each) => each.key === by.replace(/^-/, ""));
  if (!column) return rows;
  const sign = isDown ? -1 : 1;
  return [...rows].sort((a, b) => {
    const x = column.value(a);
    const y = column.value(b);
    return sign * (typeof x === "number" && typeof y === "number" ? x - y : WORDS.compare(String(x), String(y)));
  });
}

export function Table<T>({ name, rows, columns, id, open, selected, onSelect, empty, tools, command }: Props<T>): JSX.Element {
  const by = param("sort");
  const shown = useMemo(() => order(rows, columns, by), [rows, by]);
  const box = useRef<HTMLDivElement>(null);
  const [view, setView] = useState({ top: 0, height: 700 });
  const [cursor, setCursor] = useState(-1);
  useEffect(() => {
    const element = box.current;
    if (!element) return;
    const measure = (): void => setView({ top: element.scrollTop, height: element.clientHeight || 700 });
    measure();
    const watch = new ResizeObserver(measure);
    watch.observe(element);
    return () => watch.disconnect();
  }, []);
  const first = Math.max(0, Math.floor(view.top / ROW_PX) - SPARE);
  const last = Math.min(shown.length, Math.ceil((view.top + view.height) / ROW_PX) + SPARE);

  const toggle = (key: string): void => {
    const next = new Set(selected);
    if (!next.delete(key)) next.add(key);
    onSelect?.(next);
  };
  const write = (): void => save(name, csv([columns.map((c) => c.file ?? c.title), ...shown.map((row) => columns.map((c) => String(c.value(row))))]));
  const keys = (event: KeyboardEvent): void => {
    const step = { j: 1, ArrowDown: 1, k: -1, ArrowUp: -1 }[event.key];
    if (step !== undefined) {
      const next = Math.max(0, Math.min(shown.length - 1, cursor + step));
      setCursor(next);
      const top = next * ROW_PX;
      const element = box.current!;
      if (top < element.scrollTop) element.scrollTop = top;
      else if (top + 3 * ROW_PX > element.scrollTop + element.clientHeight) element.scrollTop = top + 3 * ROW_PX - element.clientHeight;
      event.preventDefault();
    } else if (event.key === "Enter" && open && shown[cursor] && event.target === box.current) {
      go(open(shown[cursor]));
    } else if (event.key === "x" && onSelect && shown[cursor]) toggle(id(shown[cursor]));
  };
  const isAll = shown.length > 0 && shown.every((row) => selected?.has(id(row)));
  return (
    <div class="table-frame">
      <div class="table-tools">
        <span class="quiet" role="status">
          {shown.length.toLocaleString("en")} {shown.length === 1 ? "row" : "rows"}
        </span>
        {tools}
        <span class="spring" />
        {command ? <code class="command-hint" title="the same on the command line">{command}</code> : null}
        <button type="button" class="small" onClick={write} disabled={!shown.length}>
          CSV
        </button>
      </div>
      {shown.length === 0 ? (
        empty
      ) : (
        <div class="table-box" ref={box} tabIndex={0} role="region" aria-label={`${name}, ${shown.length} rows; arrow keys move, Enter opens`} onKeyDown={keys} onScroll={(event) => setView({ top: event.currentTarget.scrollTop, height: event.currentTarget.clientHeight })}>
          <table aria-rowcount={shown.length + 1}>
            <thead>
              <tr aria-rowindex={1}>
                {onSelect ? (
                  <th class="check">
                    <input type="checkbox" aria-label="select all rows" checked={isAll} onChange={() => onSelect(isAll ? new Set() : new Set(shown.map(id)))} />
                  </th>
                ) : null}
                {columns.map((column) => {
                  const isBy = by.replace(/^-/, "") === column.key;
                  const next = isBy && !by.startsWith("-") ? `-${column.key}` : isBy ? "" : column.key;
                  return (
                    <th key={column.key} class={cell(column)} aria-sort={isBy ? (by.startsWith("-") ? "descending" : "ascending") : undefined}>
                      <button type="button" class="sorter" onClick={() => setParams({ sort: next })}>
                        {column.title}
                        <span aria-hidden="true">{isBy ? (by.startsWith("-") ? " ↓" : " ↑") : ""}</span>
                      </button>
                    </th>
                  );
                })}
              </tr>
            </thead>
            <tbody>
              {first > 0 ? <tr aria-hidden="true" class="spacer" style={{ height: `${first * ROW_PX}px` }} /> : null}
              {shown.slice(first, last).map((row, index) => {
                const key = id(row);
                return (
                  <tr key={key} aria-rowindex={first + index + 2} class={first + index === cursor ? "cursor" : undefined} aria-selected={selected?.has(key)}>
                    {onSelect ? (
                      <td class="check">
                        <input type="checkbox" aria-label={`select ${key}`} checked={selected?.has(key) ?? false} onChange={() => toggle(key)} />
                      </td>
                    ) : null}
                    {columns.map((column) => (
                      <td key={column.key} class={cell(column)}>
                        {column.cell(row)}
                      </td>
                    ))}
                  </tr>
                );
              })}
              {last < shown.length ? <tr aria-hidden="true" class="spacer" style={{ height: `${(shown.length - last) * ROW_PX}px` }} /> : null}
            </tbody>
          </table>
        </div>
      )}
    </div>
  );
}

function cell<T>(column: Column<T>): string {
  return [column.align === "end" ? "end" : "", column.hide ? `hide-${column.hide}` : "", column.grow ? "grow" : ""].filter(Boolean).join(" ");
}
