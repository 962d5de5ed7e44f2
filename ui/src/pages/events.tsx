// What changed, and who did it?

import type { JSX } from "preact";
import { useEffect, useMemo, useState } from "preact/hooks";
import { get } from "../api";
import { instant, plain, zoneName } from "../format";
import { href, param } from "../router";
import { now_s, state } from "../store";
import { Table, type Column } from "../table";
import type { AnyEvent, EventRow } from "../types";
import { Ago, Choice, Empty, Filter, JobLink, Loading, NodeLinks, Refusal } from "../widgets";

export function words(type: string): string {
  return type.replace(/(?<=[a-z])(?=[A-Z])/g, " ").toLowerCase().replace(/^./, (c) => c.toUpperCase());
}

export function detail(event: AnyEvent): string {
  const found: string[] = [];
  const cordon = event["cordon"] as { owner?: string; reason?: string } | undefined;
  const spec = event["spec"] as { name?: string } | undefined;
  const tasks = event["tasks"] as { node?: string }[] | undefined;
  const fault = event["fault"] as { meaning?: string; code?: string } | undefined;
  const promises = event["promises"] as unknown[] | undefined;
  const token = event["token"] as { principal?: { user?: string; role?: string } } | undefined;
  if (fault) found.push(fault.meaning || fault.code || "");
  if (promises) found.push(promises.length === 1 ? "1 promise" : `${promises.length || "no"} promises`);
  if (event.type === "RankPaceChanged") found.push(pace(event));
  else if (event["task"] !== undefined) found.push(`task ${String(event["task"])}`);
  if (event["reason"]) found.push(String(event["reason"]));
  if (event.message) found.push(event.message);
  if (event["queue"]) found.push(`queue ${String(event["queue"])}`);
  if (spec?.name && event.type !== "NodeReported") found.push(spec.name);
  if (spec?.name && event.type === "NodeReported") found.push(`node ${spec.name}`);
  if (tasks?.some((task) => task.node)) found.push(`on ${[...new Set(tasks.map((task) => task.node))].slice(0, 4).join(", ")}`);
  if (cordon) found.push(`${cordon.owner ?? ""} ${cordon.reason ?? ""}`.trim());
  if (event["exit_code"] !== undefined && event["exit_code"] !== null) found.push(`exit code ${String(event["exit_code"])}`);
  if (event["version"] !== undefined) found.push(`version ${String(event["version"])}`);
  if (token?.principal) found.push(`for ${token.principal.user ?? ""}, ${token.principal.role ?? "user"}`);
  const series = event["series"] as { hours?: { at_s: number }[] } | undefined;
  const hours = series?.hours ?? [];
  if (series) found.push(hours.length ? `${hours.length} hours, up to ${instant(hours.at(-1)!.at_s + 3600)}` : "none is known any more");
  if (event["name"]) found.push(String(event["name"]));
  return plain(found.join(" · "));
}

function pace(event: AnyEvent): string {
  const ratio = Number(event["ratio"] ?? 1);
  const task = `task ${String(event["task"] ?? 0)} on ${event.node ?? "its node"}`;
  return ratio > 1 ? `${task} takes ${Math.round((ratio - 1) * 100)}% longer than its peers${event["words"] ? `: ${String(event["words"])}` : ""}` : `${task} keeps pace again`;
}

/** Who did it: by name where a person did, empty where the server did. */
export function author(event: AnyEvent): string {
  const owner = (event["cordon"] as { owner?: string } | undefined)?.owner ?? "";
  return String(event.by ?? event["user"] ?? (owner.startsWith("user:") ? owner.slice(5) : ""));
}

const PEOPLE = /Submitted|Requested|Held|Released|Policy|Cordoned|Uncordoned|Token|ReservationAdded|ReservationRemoved/;

function Subject({ event }: { event: AnyEvent }): JSX.Element {
  if (event.job_id) return <JobLink id={event.job_id} />;
  if (event.node) return <NodeLinks names={[event.node]} />;
  return <span class="quiet">–</span>;
}

export function EventList({ rows }: { rows: readonly EventRow[] }): JSX.Element {
  return (
    <ul class="lines">
      {rows.map((row) => (
        <li key={row.seq}>
          <span>{words(row.event.type)}</span> <Subject event={row.event} />
          <span class="quiet ellipsis">{detail(row.event)}</span>
          <span class="spring" />
          <span class="quiet">
            <Ago at_s={row.event.at_s} />
          </span>
        </li>
      ))}
    </ul>
  );
}

/** On a narrow screen, without the date where that is today's. */
function When({ at_s }: { at_s: number }): JSX.Element {
  const [date, time] = instant(at_s).split(" ");
  const isToday = instant(now_s.peek()).startsWith(date!);
  return (
    <span class="mono" title={zoneName()}>
      <span class={isToday ? "hide-2" : ""}>{date} </span>
      {time}
    </span>
  );
}

const COLUMNS: Column<EventRow>[] = [
  { key: "seq", title: "Nr", align: "end", hide: 1, value: (row) => row.seq, cell: (row) => <span class="mono quiet">{row.seq}</span> },
  { key: "at", title: "Time", value: (row) => row.event.at_s, cell: (row) => <When at_s={row.event.at_s} /> },
  { key: "what", title: "What", value: (row) => row.event.type, cell: (row) => words(row.event.type) },
  { key: "subject", title: "Subject", value: (row) => row.event.job_id ?? row.event.node ?? "", cell: (row) => <Subject event={row.event} /> },
  { key: "by", title: "By", hide: 2, value: (row) => author(row.event), cell: (row) => <>{author(row.event) || <span class="quiet">the server</span>}</> },
  { key: "detail", title: "Detail", grow: true, hide: 2, value: (row) => detail(row.event), cell: (row) => <span class="quiet" title={detail(row.event)}>{detail(row.event)}</span> },
];

const PAGE = 500;

export function EventsPage(): JSX.Element {
  const [read, setRead] = useState<EventRow[] | null>(null);
  const [error, setError] = useState<unknown>(null);
  const load = async (before: number): Promise<void> => {
    try {
      const page = await get<{ rows: EventRow[] }>("/v1/events", { since: Math.max(0, before - PAGE - 1), limit: PAGE });
      setRead((rows) => [...page.rows.filter((row) => row.seq < before), ...(rows ?? [])]);
      setError(null);
    } catch (refusal) {
      setError(refusal);
    }
  };
  useEffect(() => void load(state.value.seq + 1), []);
  const q = param("q").toLowerCase();
  const who = param("who");
  const rows = useMemo(() => {
    const newest = read?.at(-1)?.seq ?? 0;
    return [...(read ?? []), ...state.value.events.filter((row) => row.seq > newest)]
      .filter((row) => who !== "people" || PEOPLE.test(row.event.type))
      .filter((row) => !q || `${row.event.type} ${row.event.job_id ?? ""} ${row.event.node ?? ""} ${row.event.by ?? ""} ${detail(row.event)}`.toLowerCase().includes(q))
      .reverse();
  }, [read, q, who, state.value.events]);
  if (error && !read) return <Refusal error={error} retry={() => void load(state.value.seq + 1)} />;
  if (!read) return <Loading what="the journal" />;
  const first = read[0]?.seq ?? 1;
  return (
    <>
      <div class="toolbar">
        <Filter label="Filter events" hint="kind, job, node, person  ( / )" />
        <Choice name="who" label="Show" options={[["", "everything"], ["people", "what people did (audit)"]]} />
        <a href={href("/events")} class="quiet">reset</a>
      </div>
      <Table
        name="events"
        rows={rows}
        columns={COLUMNS}
        id={(row) => String(row.seq)}
        command="tercio events"
        tools={first > 1 ? <button type="button" class="small" onClick={() => void load(first)}>Read older</button> : null}
        empty={<Empty title="No event matches" />}
      />
    </>
  );
}
