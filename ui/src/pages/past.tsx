// What queues held, were entitled to and waited for over time.

import type { JSX } from "preact";
import { get } from "../api";
import { amounts, csv, duration, instant, number, quote, save } from "../format";
import { param } from "../router";
import { now_s, state } from "../store";
import { Plot, type Line } from "../plot";
import type { QueuePast, QueuePastRow } from "../types";
import { Card, Choice, Command, Empty, Loading, Refusal, usePolled } from "../widgets";

const SPANS: Record<string, number> = { "1h": 3600, "1d": 86_400, "7d": 7 * 86_400, "30d": 30 * 86_400 };
const POLL_MS = 20_000;
const LINES_MAX = 8;

const devices = (value: number): string => number(Number(value.toFixed(1)));
const hours = (value: number): string => `${devices(value)} h`;
const inHours = (values: (number | null)[]): (number | null)[] => values.map((value) => value === null ? null : value / 3600);

/** A line for each queue at the top, those that held most; what is left off is said. */
export function byQueue(past: QueuePast, field: "used" | "decayed_use"): { lines: Line[]; left: number } {
  const total = (row: QueuePastRow): number => row[field].reduce<number>((all, value) => all + (value ?? 0), 0);
  const rows = past.rows.filter((row) => !row.path.includes("/"));
  const kept = new Set([...rows].sort((a, b) => total(b) - total(a)).slice(0, LINES_MAX));
  return { lines: rows.filter((row) => kept.has(row)).map((row) => ({ label: row.path, values: row[field] })), left: rows.length - kept.size };
}

function table(past: QueuePast): string[][] {
  const fields = ["used", "entitled", "wanted", "decayed_use", "running", "waiting"] as const;
  const rows = past.rows.flatMap((row) => past.at_s.map((at_s, index) => [new Date(at_s * 1000).toISOString(), row.path, ...fields.map((field) => String(row[field][index] ?? ""))]));
  return [["at", "queue", ...fields], ...rows];
}

export function Past(): JSX.Element {
  const of = param("of");
  const span = SPANS[param("since")] ? param("since") : "1h";
  const asked = usePolled(() => get<QueuePast>("/v1/queue-past", { ...(of ? { queue: of } : {}), since: now_s.peek() - SPANS[span]! }), [of, span], POLL_MS);
  const past = asked.value;
  const queues = state.value.queues;
  const queue = queues.find((each) => each.path === of);
  const isSeen = past?.rows.some((row) => row.used.some((value) => value !== null));
  const heading = of && past?.rows[0] ? past.rows[0] : null;
  const shares = past ? byQueue(past, "used") : { lines: [], left: 0 };
  return (
    <section class="past" aria-label="History">
      <div class="toolbar">
        <h2>History</h2>
        <Choice name="of" label="Queue" options={[["", "all"], ...queues.map((each): [string, string] => [each.path, each.path])]} />
        <Choice name="since" label="Since" fallback="1h" options={[["1h", "1 hour"], ["1d", "1 day"], ["7d", "7 days"], ["30d", "30 days"]]} />
        {past ? <span class="quiet small-text">means of {duration(past.step_s)}{past.at_s[0] ? `, since ${instant(past.at_s[0])}` : ""}</span> : null}
        <span class="spring" />
        <button type="button" class="small" disabled={!isSeen} onClick={() => past && save("queue-history", csv(table(past)))}>
          CSV
        </button>
      </div>
      {asked.error && !past ? <Refusal error={asked.error} retry={asked.again} /> : null}
      {!past && !asked.error ? <Loading what="the history" /> : null}
      {past && !isSeen ? <Empty title="Nothing was seen in that time">The server notes what queues hold from its start on, and keeps 30 days.</Empty> : null}
      {past && isSeen ? (
        <div class="grid">
          {heading ? (
            <Card title="Devices" wide>
              <Plot
                at_s={past.at_s}
                word={`devices of ${heading.path}`}
                say={devices}
                lines={[
                  { label: "used", values: heading.used },
                  { label: "share now", values: heading.entitled },
                  { label: "wanted", values: heading.wanted },
                ]}
              />
              {queue ? <p class="quiet small-text">Guarantee now: {amounts(queue.guarantee)}. Used above it is borrowed; the share is of what is guaranteed or contended.</p> : null}
            </Card>
          ) : (
            <Card title="Devices used, by queue" wide>
              <Plot at_s={past.at_s} word="devices used by each queue" say={devices} lines={shares.lines} />
              {shares.left ? <p class="quiet small-text">{shares.left} more queues are left off; the CSV has them all.</p> : null}
            </Card>
          )}
          <Card title={heading ? "Jobs" : "Past use, by queue"}>
            {heading ? (
              <Plot at_s={past.at_s} word={`jobs of ${heading.path}`} say={devices} lines={[{ label: "running", values: heading.running }, { label: "waiting", values: heading.waiting }]} />
            ) : (
              <Plot at_s={past.at_s} word="past use of each queue" say={hours} lines={byQueue(past, "decayed_use").lines.map((line) => ({ ...line, values: inHours(line.values) }))} />
            )}
          </Card>
          <Card title={heading ? "Past use" : "Waiting jobs ask for"}>
            {heading ? (
              <Plot at_s={past.at_s} word={`past use of ${heading.path}`} say={hours} lines={[{ label: "device-hours, decayed", values: inHours(heading.decayed_use) }]} />
            ) : (
              <Plot at_s={past.at_s} word="devices wanted by each queue" say={devices} lines={past.rows.filter((row) => shares.lines.some((line) => line.label === row.path)).map((row) => ({ label: row.path, values: row.wanted }))} />
            )}
          </Card>
        </div>
      ) : null}
      <Command text={`tercio queue history${of ? ` ${quote(of)}` : ""} --since ${span}`} />
    </section>
  );
}
