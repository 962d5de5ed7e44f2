// Who gets what?

import type { JSX } from "preact";
import { amounts, duration, number, quote } from "../format";
import { href, param } from "../router";
import { sum } from "../state";
import { SiteChoice, sited, useQueues } from "../site";
import { type Column, Table } from "../table";
import type { Queue } from "../types";
import { Bar, Empty, Filter, lazy, Loading, Refusal } from "../widgets";

const Past = lazy(async () => (await import("./past")).Past);

function scale(queue: Queue): number {
  return Math.max(sum(queue.used) + sum(queue.used_elsewhere) + sum(queue.wanted), sum(queue.guarantee), sum(queue.entitled), 1);
}

/** The parts of a bar of use: of one site, what is used there and elsewhere. */
export function parts(queue: Queue, site: string): { value: number; tone: string; name: string }[] {
  const wanted = { value: sum(queue.wanted), tone: "tone-wanted", name: "wanted" };
  if (site) return [{ value: sum(queue.used), tone: "tone-used", name: "used here" }, { value: sum(queue.used_elsewhere), tone: "tone-elsewhere", name: "used elsewhere" }, wanted];
  return [{ value: sum(queue.used) - sum(queue.borrowed), tone: "tone-used", name: "used" }, { value: sum(queue.borrowed), tone: "tone-borrowed", name: "borrowed" }, wanted];
}

function columns(site: string): Column<Queue>[] {
  return [
    {
      key: "queue",
      title: "Queue",
      value: (queue) => queue.path,
      cell: (queue) => {
        const depth = queue.path.split("/").length - 1;
        return (
          <a href={href(sited(`/jobs?queue=${encodeURIComponent(queue.path)}`))} style={{ paddingInlineStart: `${depth * 18}px` }}>
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
          parts={parts(queue, site)}
        />
      ),
    },
    { key: "used", title: "Used", align: "end", value: (queue) => sum(queue.used), cell: (queue) => number(sum(queue.used)) },
    ...(site ? [{ key: "elsewhere", title: "Elsewhere", file: "used_elsewhere", align: "end", value: (queue: Queue) => sum(queue.used_elsewhere), cell: (queue: Queue) => number(sum(queue.used_elsewhere)) } as Column<Queue>] : []),
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
}

function Amount({ of }: { of: Record<string, number> }): JSX.Element {
  return Object.keys(of).length ? <span class="mono">{amounts(of)}</span> : <span class="quiet">none</span>;
}

export function QueuesPage(): JSX.Element {
  const q = param("q").toLowerCase();
  const site = param("site");
  const asked = useQueues();
  if (asked.error && !asked.value) return <Refusal error={asked.error} retry={asked.again} />;
  if (!asked.value) return <Loading what="the queues" />;
  const rows = asked.value.filter((queue) => queue.path.toLowerCase().includes(q));
  return (
    <>
      <div class="toolbar">
        <SiteChoice />
        <Filter label="Filter queues" hint="path  ( / )" />
        <p class="legend">
          {site ? (
            <>
              <i class="tone-used" /> used here <i class="tone-elsewhere" /> used elsewhere <i class="tone-wanted" /> wanted
            </>
          ) : (
            <>
              <i class="tone-used" /> used <i class="tone-borrowed" /> borrowed <i class="tone-wanted" /> wanted
            </>
          )}
        </p>
      </div>
      <Table name="queues" rows={rows} columns={columns(site)} id={(queue) => queue.path} open={(queue) => sited(`/jobs?queue=${encodeURIComponent(queue.path)}`)} command={site ? `tercio queue list --site ${quote(site)}` : "tercio queue"} empty={<Empty title="No queue matches" />} />
      {site ? (
        <p class="quiet small-text">
          Used, wanted and jobs are those of site {site}: what runs there, and what may start there, be it elsewhere too. Guarantees, limits, shares, what is borrowed or lent, past use and the history are over all sites.
        </p>
      ) : null}
      <p class="quiet small-text">
        A queue gets its guarantee back on demand; what nobody is entitled to is shared by weight. The rules are under <a href={href("/settings?tab=policy")}>Settings</a>.
      </p>
      <Past />
    </>
  );
}
