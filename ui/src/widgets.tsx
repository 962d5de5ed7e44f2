// Small parts that every page is made of.

import type { ComponentChildren, ComponentType, JSX, RefObject } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { Problem } from "./api";
import { amounts, csv, duration, instant, number, save, SYMBOLS, zoneName } from "./format";
import { href, param, setParams } from "./router";
import { now_s, state } from "./store";
import type { Amounts, Job } from "./types";

export function State({ of, reason }: { of: string; reason?: string }): JSX.Element {
  return (
    <span class={`state state-${of}`}>
      <span aria-hidden="true">{SYMBOLS[of] ?? "·"}</span> {of}
      {reason ? <span class="quiet"> {reason}</span> : null}
    </span>
  );
}

export function Pending({ subject }: { subject: string }): JSX.Element | null {
  const found = state.value.pending.get(subject);
  return found ? (
    <span class="pending" role="status">
      <span class="spinner" aria-hidden="true" /> {found.verb} asked
    </span>
  ) : null;
}

export function Ago({ at_s }: { at_s: number | null | undefined }): JSX.Element {
  if (at_s === null || at_s === undefined) return <span class="quiet">–</span>;
  const away = now_s.value - at_s;
  const text = away >= 0 ? `${duration(away)} ago` : `in ${duration(-away)}`;
  return (
    <time dateTime={new Date(at_s * 1000).toISOString()} title={`${instant(at_s)} ${zoneName()}`}>
      {text}
    </time>
  );
}

export function Bar({ parts, total, label }: { parts: { value: number; tone: string; name: string }[]; total: number; label: string }): JSX.Element {
  const text = `${label}: ${parts.map((p) => `${number(p.value)} ${p.name}`).join(", ")} of ${number(total)}`;
  return (
    <span class="bar" role="img" aria-label={text} title={text}>
      {parts.map((part) =>
        part.value > 0 ? <i key={part.name} class={`fill ${part.tone}`} style={{ width: `${Math.min(100, (100 * part.value) / (total || 1))}%` }} /> : null,
      )}
    </span>
  );
}

/** `csv` names the file in which its table is saved; `rows` are more than the table shows. */
export function Card({ title, children, more, wide, csv, rows }: { title: string; children: ComponentChildren; more?: ComponentChildren; wide?: boolean; csv?: string; rows?: () => string[][] }): JSX.Element {
  return (
    <section class={wide ? "card wide" : "card"} aria-label={title}>
      <header>
        <h2>{title}</h2>
        {more}
        {csv ? <SaveTable name={csv} rows={rows} /> : null}
      </header>
      {children}
    </section>
  );
}

export function Empty({ title, children }: { title: string; children?: ComponentChildren }): JSX.Element {
  return (
    <div class="empty">
      <p class="empty-title">{title}</p>
      {children ? <div class="quiet">{children}</div> : null}
    </div>
  );
}

export function Loading({ what }: { what: string }): JSX.Element {
  return (
    <div class="empty" role="status">
      <span class="spinner" aria-hidden="true" /> reading {what}
    </div>
  );
}

export function Refusal({ error, retry }: { error: unknown; retry?: () => void }): JSX.Element {
  const found = error instanceof Problem ? error : null;
  return (
    <div class="refusal" role="alert">
      <strong>{found ? found.detail : String(error)}</strong>
      {found?.hint ? <p>{found.hint}</p> : null}
      {retry ? <button type="button" onClick={retry}>Try again</button> : null}
    </div>
  );
}

/** What a request brought: asked again when `keys` change. */
export function useAnswer<T>(ask: () => Promise<T>, keys: unknown[]): { value?: T; error?: unknown; again: () => void } {
  const [found, setFound] = useState<{ value?: T; error?: unknown }>({});
  const [count, setCount] = useState(0);
  useEffect(() => {
    let isOld = false;
    ask().then(
      (value) => isOld || setFound({ value }),
      (error: unknown) => isOld || setFound((before) => ({ ...before, error })),
    );
    return () => {
      isOld = true;
    };
  }, [...keys, count]);
  return { ...found, again: () => setCount((before) => before + 1) };
}

/** The same, asked again every so often while somebody looks. */
export function usePolled<T>(ask: () => Promise<T>, keys: unknown[], every_ms: number): { value?: T; error?: unknown; again: () => void } {
  const found = useAnswer(ask, keys);
  useEffect(() => {
    const timer = setInterval(() => document.hidden || found.again(), every_ms);
    return () => clearInterval(timer);
  }, keys);
  return found;
}

/** A part whose script is fetched when it is first shown. */
export function lazy<P extends object>(load: () => Promise<ComponentType<P>>): (props: P) => JSX.Element {
  let part: ComponentType<P> | null = null;
  return function Lazy(props: P): JSX.Element {
    const [, setReady] = useState(part !== null);
    const [error, setError] = useState<unknown>(null);
    useEffect(() => {
      if (part === null) load().then((found) => ((part = found), setReady(true)), setError);
    }, []);
    if (error) return <Refusal error={`this part of the page cannot be read: ${String(error)}`} />;
    if (part === null) return <Loading what="this part" />;
    const Part = part;
    return <Part {...props} />;
  };
}

export function Copy({ text, label = "Copy" }: { text: string; label?: string }): JSX.Element {
  const [isDone, setDone] = useState(false);
  const copy = (): void => {
    void navigator.clipboard?.writeText(text).then(() => {
      setDone(true);
      setTimeout(() => setDone(false), 1500);
    });
  };
  return (
    <button type="button" class="small" onClick={copy}>
      {isDone ? "Copied" : label}
    </button>
  );
}

/** Saves rows, else the table of the card that it stands in, as it is shown. */
function SaveTable({ name, rows }: { name: string; rows?: () => string[][] }): JSX.Element {
  const write = (event: MouseEvent): void => {
    const table = (event.currentTarget as Element).closest(".card")?.querySelector("table");
    const shown = (): string[][] => [...(table?.rows ?? [])].map((row) => [...row.cells].map((cell) => (cell.textContent ?? "").trim()));
    save(name, csv((rows ?? shown)()));
  };
  return (
    <button type="button" class="small" aria-label={`save ${name} as CSV`} onClick={write}>
      CSV
    </button>
  );
}

export function Command({ text }: { text: string }): JSX.Element {
  return (
    <div class="command">
      <code tabIndex={0} aria-label="equivalent command">{text}</code>
      <Copy text={text} />
    </div>
  );
}

/** Keeps the current link of a row that may be wider than the screen in view. */
export function useInView<T extends HTMLElement>(key: string): RefObject<T | null> {
  const row = useRef<T>(null);
  useEffect(() => {
    const link = row.current?.querySelector("[aria-current]");
    if (!row.current || !link) return;
    const [own, all] = [link.getBoundingClientRect(), row.current.getBoundingClientRect()];
    if (own.left < all.left || own.right > all.right) row.current.scrollLeft += own.left - all.left - (all.width - own.width) / 2;
  }, [key]);
  return row;
}

export function Tabs({ names, name }: { names: string[]; name: string }): JSX.Element {
  const row = useInView<HTMLElement>(name);
  return (
    <nav class="tabs" aria-label="Parts of this page" ref={row}>
      {names.map((each) => {
        const target = each.toLowerCase();
        return (
          <a
            key={each}
            href={href(`${location.pathname.slice(href("").length)}${target === names[0]!.toLowerCase() ? "" : `?tab=${target}`}`)}
            aria-current={target === name ? "page" : undefined}
          >
            {each}
          </a>
        );
      })}
    </nav>
  );
}

export function Filter({ name = "q", label, hint }: { name?: string; label: string; hint: string }): JSX.Element {
  return (
    <input
      type="search"
      class="filter"
      aria-label={label}
      placeholder={hint}
      value={param(name)}
      data-filter
      onInput={(event) => setParams({ [name]: event.currentTarget.value })}
      onKeyDown={(event) => event.key === "Escape" && event.currentTarget.blur()}
    />
  );
}

export function Choice({ name, label, options, fallback = "" }: { name: string; label: string; options: [string, string][]; fallback?: string }): JSX.Element {
  return (
    <label class="choice">
      <span>{label}</span>
      <select value={param(name) || fallback} onChange={(event) => setParams({ [name]: event.currentTarget.value === fallback ? "" : event.currentTarget.value })}>
        {options.map(([value, text]) => (
          <option key={value} value={value}>
            {text}
          </option>
        ))}
      </select>
    </label>
  );
}

export function JobLink({ id }: { id: string }): JSX.Element {
  const whole = id.split(".")[0]!;
  const job: Job | undefined = state.value.jobs.get(id) ?? state.value.jobs.get(whole);
  return (
    <a class="mono" href={href(`/jobs/${encodeURIComponent(job?.id ?? whole)}`)}>
      {id}
      {job ? <span class="quiet"> {job.name}</span> : null}
    </a>
  );
}

export function NodeLinks({ names, most = 4 }: { names: string[]; most?: number }): JSX.Element {
  const shown = names.slice(0, most);
  return (
    <>
      {shown.map((name, index) => (
        <span key={name}>
          {index ? ", " : ""}
          <a href={href(`/nodes/${encodeURIComponent(name)}`)}>{name}</a>
        </span>
      ))}
      {names.length > most ? <span class="quiet"> +{names.length - most}</span> : null}
      {names.length ? null : <span class="quiet">–</span>}
    </>
  );
}

export function Facts({ rows }: { rows: [string, ComponentChildren][] }): JSX.Element {
  return (
    <dl class="facts">
      {rows.map(([name, value]) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd>{value}</dd>
        </div>
      ))}
    </dl>
  );
}

export function Devices({ of }: { of: Amounts }): JSX.Element {
  return <span class="mono">{amounts(of)}</span>;
}
