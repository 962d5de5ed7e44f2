// What is promised, and when?

import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { ask, notify } from "../actions";
import { get, post } from "../api";
import { amounts, duration, instant, quote } from "../format";
import { may, now_s, state } from "../store";
import { type Column, Table } from "../table";
import type { Reservation } from "../types";
import { Ago, Card, Command, Empty, Loading, Refusal, useAnswer } from "../widgets";

function windows(each: Reservation, from_s: number, until_s: number): [number, number][] {
  const found: [number, number][] = [];
  for (let start = each.from_s, count = 0; start < until_s && count < 2000; start += each.every_s ?? Infinity, count += 1) {
    if (each.until_s !== null && start >= each.until_s) break;
    if (start + each.duration_s > from_s) found.push([start, start + each.duration_s]);
    if (each.every_s === null) break;
  }
  return found;
}

function what(each: Reservation): string {
  return Object.keys(each.shape).length ? `${amounts(each.shape)}${each.type ? ` of ${each.type}` : ""}` : `${each.type ?? "any"}:${each.devices}`;
}

const DAYS = 7;

function Calendar({ rows }: { rows: Reservation[] }): JSX.Element {
  const start = Math.floor(now_s.value / 86_400) * 86_400;
  const end = start + DAYS * 86_400;
  const left = (at_s: number): string => `${(100 * (Math.min(Math.max(at_s, start), end) - start)) / (end - start)}%`;
  return (
    <Card title={`The next ${DAYS} days`} wide>
      <div class="calendar" role="img" aria-label="reservations by day; the table below tells the same">
        <div class="calendar-days">
          {Array.from({ length: DAYS }, (_, day) => (
            <span key={day}>{instant(start + day * 86_400).slice(5, 10)}</span>
          ))}
        </div>
        {rows.map((each) => (
          <div class="calendar-row" key={each.name}>
            <span class="calendar-name">{each.name}</span>
            <div class="calendar-line">
              {windows(each, start, end).map(([from, until]) => (
                <i key={from} title={`${instant(from)} to ${instant(until)}`} style={{ left: left(from), width: `calc(${left(until)} - ${left(from)})` }} />
              ))}
              <b style={{ left: left(now_s.value) }} />
            </div>
          </div>
        ))}
      </div>
      <p class="quiet small-text">Between them, other jobs run where they end in time (backfill).</p>
    </Card>
  );
}

export function ReservationsPage(): JSX.Element {
  const version = state.value.events.filter((row) => row.event.type.startsWith("Reservation")).at(-1)?.seq ?? 0;
  const asked = useAnswer(() => get<{ rows: Reservation[] }>("/v1/reservations", { limit: 1000 }), [version]);
  if (asked.error) return <Refusal error={asked.error} retry={asked.again} />;
  if (!asked.value) return <Loading what="reservations" />;
  const rows = asked.value.rows;
  const columns: Column<Reservation>[] = [
    { key: "name", title: "Name", value: (each) => each.name, cell: (each) => <b>{each.name}</b> },
    { key: "for", title: "For", value: (each) => each.queue ?? each.user ?? "", cell: (each) => (each.queue ? `queue ${each.queue}` : `user ${each.user}`) },
    { key: "what", title: "What", value: what, cell: (each) => <span class="mono">{what(each)}</span> },
    {
      key: "window",
      title: "Window",
      value: (each) => each.window?.[0] ?? 0,
      cell: (each) => (each.is_open ? <span class="state state-running">● open, ends <Ago at_s={each.window?.[1]} /></span> : each.window ? <>opens <Ago at_s={each.window[0]} /></> : <span class="quiet">over</span>),
    },
    { key: "length", title: "Length", hide: 2, value: (each) => each.duration_s, cell: (each) => `${duration(each.duration_s)}${each.every_s ? ` every ${duration(each.every_s)}` : ""}` },
    {
      key: "end",
      title: "",
      value: () => "",
      cell: (each) =>
        may("operator") ? (
          <button
            type="button"
            class="small danger-quiet"
            onClick={() =>
              ask({
                title: `End ${each.name}`,
                verb: "end of the reservation",
                plan: <p>Other jobs may use what it kept, from now on. Jobs that run in it go on.</p>,
                command: `tercio reserve remove ${quote(each.name)}`,
                isDanger: true,
                calls: [{ method: "DELETE", path: `/v1/reservations/${encodeURIComponent(each.name)}` }],
                done: asked.again,
              })
            }
          >
            End
          </button>
        ) : null,
    },
  ];
  return (
    <>
      {rows.length ? <Calendar rows={rows} /> : null}
      <Table name="reservations" rows={rows} columns={columns} id={(each) => each.name} command="tercio reserve" empty={<Empty title="Nothing is reserved">A reservation keeps devices for a queue or a user at a time.</Empty>} />
      {may("operator") ? <Add done={asked.again} /> : null}
    </>
  );
}

function Add({ done }: { done: () => void }): JSX.Element {
  const [form, setForm] = useState({ name: "", queue: "", gpus: "", start: "", duration: "4h", every: "" });
  const [error, setError] = useState<unknown>(null);
  const field = (key: keyof typeof form, label: string, hint: string): JSX.Element => (
    <label class="field">
      <span>{label}</span>
      <input required={["name", "gpus", "duration"].includes(key)} placeholder={hint} value={form[key]} onInput={(event) => setForm({ ...form, [key]: event.currentTarget.value })} />
    </label>
  );
  const add = async (): Promise<void> => {
    const { start, every, ...rest } = form;
    try {
      await post("/v1/reservations", { ...rest, ...(start ? { start: new Date(start).toISOString() } : {}), ...(every ? { every } : {}) });
      notify(`reserved ${form.name}`);
      setForm({ ...form, name: "" });
      setError(null);
      done();
    } catch (refusal) {
      setError(refusal);
    }
  };
  const command = `tercio reserve add ${quote(form.name || "NAME")} --queue ${quote(form.queue || "QUEUE")} --gpus ${quote(form.gpus || "H100:8")}${form.start ? ` --start ${new Date(form.start).toISOString()}` : ""} --for ${quote(form.duration)}${form.every ? ` --every ${quote(form.every)}` : ""}`;
  return (
    <Card title="Reserve">
      <form class="knobs" onSubmit={(event) => (event.preventDefault(), void add())}>
        {field("name", "Name", "maintenance-test")}
        <label class="field">
          <span>Queue</span>
          <select required value={form.queue} onChange={(event) => setForm({ ...form, queue: event.currentTarget.value })}>
            <option value="">choose</option>
            {state.value.queues.map((queue) => (
              <option key={queue.path}>{queue.path}</option>
            ))}
          </select>
        </label>
        {field("gpus", "Devices", "H100:16")}
        <label class="field">
          <span>Start (empty: now)</span>
          <input type="datetime-local" value={form.start} onInput={(event) => setForm({ ...form, start: event.currentTarget.value })} />
        </label>
        {field("duration", "Length", "4h")}
        {field("every", "Again every", "1d (empty: once)")}
        <div class="buttons">
          <button type="submit" class="primary">Reserve</button>
        </div>
      </form>
      {error ? <Refusal error={error} /> : null}
      <Command text={command} />
    </Card>
  );
}
