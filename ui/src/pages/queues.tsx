// Who gets what?

import type { JSX } from "preact";
import { amounts, duration, number } from "../format";
import { href, param } from "../router";
import { sum } from "../state";
import { state } from "../store";
import { type Column, Table } from "../table";
import type { Queue } from "../types";
import { Bar, Empty, Filter, lazy } from "../widgets";

const Past = lazy(async () => (await import("./past")).Past);

function scale(queue: Queue): number {
  return Math.max(sum(queue.used) + sum(queue.wanted), sum(queue.guarantee), sum(queue.entitled), 1);
}

const COLUMNS: Column<Queue>[] = [
  {
    key: "queue",
    title: "Queue",
    value: (queue) => queue.path,
    cell: (queue) => {
      const depth = queue.path.split("/").length - 1;
      return (
        <a href={href(`/jobs?queue=${encodeURIComponent(queue.path)}`)} style={{ paddingInlineStart: `${depth * 18}px` }}>
          {depth ? "└ " : ""}
          {queue.path.split("/").at(-1)}
        </a>
      );
    },
  },
  {
    key: "use",
    title: "Use",
    value: (queue) => sum(queue.used),
    cell: (queue) => (
      <Bar
        label={queue.path}
        total={scale(queue)}
        parts={[
          { value: sum(queue.used) - sum(queue.borrowed), tone: "tone-used", name: "used" },
          { value: sum(queue.borrowed), tone: "tone-borrowed", name: "borrowed" },
          { value: sum(queue.wanted), tone: "tone-wanted", name: "wanted" },
        ]}
      />
    ),
  },
  { key: "used", title: "Used", align: "end", value: (queue) => sum(queue.used), cell: (queue) => number(sum(queue.used)) },
  { key: "guarantee", title: "Guarantee", align: "end", value: (queue) => sum(queue.guarantee), cell: (queue) => <Amount of={queue.guarantee} /> },
  { key: "entitled", title: "Share now", align: "end", hide: 2, value: (queue) => sum(queue.entitled), cell: (queue) => number(sum(queue.entitled)) },
  { key: "borrowed", title: "Borrowed", align: "end", hide: 2, value: (queue) => sum(queue.borrowed), cell: (queue) => number(sum(queue.borrowed)) },
  { key: "lent", title: "Lent", align: "end", hide: 2, value: (queue) => sum(queue.lent), cell: (queue) => number(sum(queue.lent)) },
  { key: "limit", title: "Limit", align: "end", hide: 1, value: (queue) => sum(queue.limit), cell: (queue) => <Amount of={queue.limit} /> },
  { key: "wanted", title: "Wanted", align: "end", value: (queue) => sum(queue.wanted), cell: (queue) => number(sum(queue.wanted)) },
  {
    key: "running",
    title: "Jobs",
    align: "end",
    value: (queue) => queue.running + queue.waiting,
    cell: (queue) => (
      <>
        {queue.running} <span class="quiet">run,</span> {queue.waiting} <span class="quiet">wait</span>
      </>
    ),
  },
  { key: "weight", title: "Weight", align: "end", hide: 1, value: (queue) => queue.weight, cell: (queue) => String(queue.weight) },
  { key: "past", title: "Past use", align: "end", hide: 1, value: (queue) => queue.decayed_use, cell: (queue) => <span title="device time, decayed to now">{duration(queue.decayed_use)}</span> },
];

function Amount({ of }: { of: Record<string, number> }): JSX.Element {
  return Object.keys(of).length ? <span class="mono">{amounts(of)}</span> : <span class="quiet">none</span>;
}

export function QueuesPage(): JSX.Element {
  const q = param("q").toLowerCase();
  const rows = state.value.queues.filter((queue) => queue.path.toLowerCase().includes(q));
  return (
    <>
      <div class="toolbar">
        <Filter label="Filter queues" hint="path  ( / )" />
        <p class="legend">
          <i class="tone-used" /> used <i class="tone-borrowed" /> borrowed <i class="tone-wanted" /> wanted
        </p>
      </div>
      <Table name="queues" rows={rows} columns={COLUMNS} id={(queue) => queue.path} open={(queue) => `/jobs?queue=${encodeURIComponent(queue.path)}`} command="tercio queue" empty={<Empty title="No queue matches" />} />
      <p class="quiet small-text">
        A queue gets its guarantee back on demand; what nobody is entitled to is shared by weight. The rules are under <a href={href("/settings?tab=policy")}>Settings</a>.
      </p>
      <Past />
    </>
  );
}
