// What is promised, and when?

import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { ask, notify } from "../actions";
import { get, post } from "../api";
import { amounts, duration, instant, number, quote, zone } from "../format";
import { href, param } from "../router";
import { SiteChoice, sites } from "../site";
import { may, now_s, state } from "../store";
import { type Column, Table } from "../table";
import type { Gap, Page, Reservation } from "../types";
import { Ago, Card, Choice, Command, Empty, JobLink, Loading, NodeLinks, Refusal, usePolled } from "../widgets";

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
  if (each.nodes.length) return each.nodes.slice(0, 4).join(" ") + (each.nodes.length > 4 ? ` +${each.nodes.length - 4}` : "");
  return Object.keys(each.shape).length ? `${amounts(each.shape)}${each.type ? ` of ${each.type}` : ""}` : `${each.type ?? "any"}:${each.devices}`;
}

function holder(each: Reservation): string {
  if (each.nodes.length) return `maintenance${each.reason ? `: ${each.reason}` : ""}`;
  return each.queue ? `queue ${each.queue}` : `user ${each.user}`;
}

const HOUR_S = 3600;
const DAY_S = 24 * HOUR_S;
const LANES = 12;
/** A gap that is open opened by the server's clock, which is a moment ahead of the page's. */
const SOON_S = 30;

/** The start of the day, or of the hour, in the zone that is shown. */
function whole(at_s: number, isDay: boolean): number {
  const date = new Date(at_s * 1000);
  if (!isDay) date.setMinutes(0, 0, 0);
  else if (zone.value === "utc") date.setUTCHours(0, 0, 0, 0);
  else date.setHours(0, 0, 0, 0);
  return date.getTime() / 1000;
}

/** The shorter of the calendars that shows all that is soon. */
function fitting(rows: Reservation[], gaps: Gap[]): string {
  const ends = [...rows.map((each) => each.window?.[1] ?? 0), ...gaps.map((each) => each.until_s)];
  return ends.every((end) => end < now_s.peek() + DAY_S) ? "1" : "7";
}

function Calendar({ rows, gaps }: { rows: Reservation[]; gaps: Gap[] }): JSX.Element {
  const fallback = fitting(rows, gaps);
  const isDay = (["1", "7"].includes(param("days")) ? param("days") : fallback) === "1";
  const tick_s = isDay ? 4 * HOUR_S : DAY_S;
  const ticks = isDay ? 6 : 7;
  const start = whole(now_s.value, !isDay);
  const end = start + ticks * tick_s;
  const left = (at_s: number): string => `${(100 * (Math.min(Math.max(at_s, start), end) - start)) / (end - start)}%`;
  const lane = (key: string, name: string, bars: [number, number][], tone: string): JSX.Element => (
    <div class="calendar-row" key={key}>
      <span class="calendar-name" title={name}>{name}</span>
      <div class="calendar-line">
        {bars
          .filter(([from]) => from < end)
          .map(([from, until]) => (
            <i key={from} class={tone} title={`${instant(from)} to ${instant(until)}`} style={{ left: left(from), width: `calc(${left(until)} - ${left(from)})` }} />
          ))}
        <b style={{ left: left(now_s.value) }} />
      </div>
    </div>
  );
  const shown = gaps.filter((each) => each.from_s < end);
  return (
    <Card
      title={isDay ? "The next 24 hours" : "The next 7 days"}
      wide
      more={<Choice name="days" label="Show" fallback={fallback} options={[["1", "24 hours"], ["7", "7 days"]]} />}
    >
      <div class="calendar" role="img" aria-label="what is kept and what is free before it, over time; the tables below tell the same">
        <div class="calendar-days" style={{ gridTemplateColumns: `repeat(${ticks}, 1fr)` }}>
          {Array.from({ length: ticks }, (_, at) => (
            <span key={at}>{instant(start + at * tick_s).slice(...(isDay ? [11, 16] : [5, 10]))}</span>
          ))}
        </div>
        {rows.map((each) => lane(each.name, each.name, windows(each, start, end), "kept"))}
        {shown.slice(0, LANES).map((each, at) => lane(`gap ${at}`, `${each.devices} × ${each.type}`, [[each.from_s, each.until_s]], "gap"))}
      </div>
      <p class="legend">
        <i class="tone-used" /> kept <i class="tone-gap" /> gap: free until something kept begins{shown.length > LANES ? `, the first ${LANES} of ${shown.length}` : ""}
      </p>
    </Card>
  );
}

/** A limit as a job file takes it. */
function limit(seconds: number): string {
  return seconds < 365 * DAY_S ? duration(seconds) : `${Math.floor(seconds / DAY_S)}d`;
}

function size(gap: Gap): string {
  return gap.tasks > 1 ? `${gap.tasks} tasks of ${gap.per_task} × ${gap.type}` : `${gap.per_task} × ${gap.type}`;
}

const SHOWN = 100;

function Gaps({ gaps, isMore }: { gaps: Gap[]; isMore: boolean }): JSX.Element {
  return (
    <Card title="Gaps" wide csv="gaps">
      {gaps.length ? (
        <div class="scroll tall" tabIndex={0} role="region" aria-label="table of gaps">
          <table class="plain">
            <thead>
              <tr>
                <th>Free</th>
                <th>From</th>
                <th>Until</th>
                <th>Before</th>
                <th class="end">Length</th>
                <th class="end">Device-hours</th>
                <th>What fits</th>
              </tr>
            </thead>
            <tbody>
              {gaps.slice(0, SHOWN).map((gap) => (
                <tr key={`${gap.type} ${gap.site} ${gap.from_s} ${gap.until_s} ${gap.job ?? gap.reservation}`}>
                  <td class="nowrap">
                    <b>
                      {gap.devices} × {gap.type}
                    </b>{" "}
                    <span class="quiet">on <NodeLinks names={gap.nodes} most={2} />{sites.value.length > 1 ? ` at ${gap.site}` : ""}</span>
                  </td>
                  <td class="nowrap">{gap.from_s < now_s.value + SOON_S ? "now" : <Ago at_s={gap.from_s} />}</td>
                  <td class="nowrap"><Ago at_s={gap.until_s} /></td>
                  <td>{gap.job ? <JobLink id={gap.job} /> : <>reservation {gap.reservation}</>}</td>
                  <td class="end">{duration(gap.until_s - gap.from_s)}</td>
                  <td class="end">{number(Math.round(gap.device_hours * 10) / 10)}</td>
                  <td class="nowrap">
                    <a href={href(`/plan?${new URLSearchParams({ devices: `${gap.type}:${gap.per_task}`, tasks: String(gap.tasks), limit: limit(gap.limit_s) }).toString()}`)}>
                      {size(gap)} for up to {limit(gap.limit_s)}
                    </a>
                  </td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      ) : (
        <Empty title="No gaps">Nothing is promised or reserved that free devices wait for.</Empty>
      )}
      <p class="quiet small-text">
        A job that ends before what is kept begins is let in before its turn (backfill), as far as the limits of its queue and user allow. What opens later opens when the jobs that hold the devices come to their planned ends, or sooner.
        {isMore || gaps.length > SHOWN ? " The command lists all gaps." : ""}
      </p>
      <Command text={`tercio reserve gaps${param("site") ? ` --site ${quote(param("site"))}` : ""}`} />
    </Card>
  );
}

const READ_MS = 20_000;

async function read(site: string): Promise<{ rows: Reservation[]; gaps: Gap[]; isMore: boolean }> {
  const [kept, free] = await Promise.all([get<Page<Reservation>>("/v1/reservations", { limit: 1000 }), get<Page<Gap>>("/v1/gaps", { limit: 200, site: site || undefined })]);
  return { rows: kept.rows, gaps: free.rows, isMore: free.next !== null };
}

export function ReservationsPage(): JSX.Element {
  const version = state.value.events.filter((row) => /^(Reservation|Promises)/.test(row.event.type)).at(-1)?.seq ?? 0;
  const site = param("site");
  const asked = usePolled(() => read(site), [version, site], READ_MS);
  if (asked.error) return <Refusal error={asked.error} retry={asked.again} />;
  if (!asked.value) return <Loading what="reservations" />;
  const { rows, gaps, isMore } = asked.value;
  const columns: Column<Reservation>[] = [
    { key: "name", title: "Name", value: (each) => each.name, cell: (each) => <b>{each.name}</b> },
    { key: "for", title: "For", value: holder, cell: holder },
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
      {sites.value.length > 1 || site ? (
        <div class="toolbar">
          <SiteChoice />
          <span class="quiet small-text">{site ? "Gaps are those of the site; a reservation is kept wherever its devices are." : ""}</span>
        </div>
      ) : null}
      {rows.length || gaps.length ? <Calendar rows={rows} gaps={gaps} /> : null}
      <Gaps gaps={gaps} isMore={isMore} />
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
