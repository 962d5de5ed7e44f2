// What runs, what waits and why?

import type { JSX } from "preact";
import { useMemo, useState } from "preact/hooks";
import { Buttons, jobActions } from "../actions";
import { get } from "../api";
import { amounts, duration, quote, SYMBOLS } from "../format";
import { href, param } from "../router";
import { isAt, SiteChoice } from "../site";
import { ACTIVE, ENDED, sum, WAITING } from "../state";
import { jobs, now_s, state, tell } from "../store";
import { type Column, Table } from "../table";
import type { Job } from "../types";
import { Ago, Choice, Empty, Filter, NodeLinks, Pending, State } from "../widgets";

const COLUMNS: Column<Job>[] = [
  {
    key: "job",
    title: "Job",
    value: (job) => job.id,
    cell: (job) => (
      <a href={href(`/jobs/${job.id}`)}>
        <span class="mono quiet" title={job.id}>{job.id.replace(/^job-0*/, "")}</span> {job.name}
      </a>
    ),
  },
  {
    key: "state",
    title: "State",
    value: (job) => job.state,
    cell: (job) => (
      <>
        <span class={job.reason && WAITING.has(job.state) ? "hide-2" : ""}>
          <State of={job.state} />
        </span>
        {job.reason ? (
          <a class="only-narrow" href={href(`/jobs/${job.id}?tab=explain`)}>
            {" "}
            {WAITING.has(job.state) ? `${SYMBOLS[job.state]} ` : ""}
            {job.reason}
          </a>
        ) : null}
        {job.array ? <span class="quiet hide-2"> {job.array.active} run, {job.array.waiting} wait of {job.array.size}</span> : null} <Pending subject={job.id} />
      </>
    ),
  },
  {
    key: "why",
    title: "Why",
    grow: true,
    hide: 2,
    value: (job) => job.reason + (job.message ? `: ${job.message}` : ""),
    cell: (job) =>
      job.reason ? (
        <a class="why" href={href(`/jobs/${job.id}?tab=explain`)} title={job.message}>
          <b>{job.reason}</b> <span class="quiet">{job.message}</span>
        </a>
      ) : (
        <span class="quiet">–</span>
      ),
  },
  { key: "devices", title: "Devices", value: (job) => sum(job.devices), cell: (job) => <span class="mono">{amounts(job.devices)}</span> },
  { key: "queue", title: "Queue", hide: 1, value: (job) => job.queue, cell: (job) => <a href={href(`/jobs?queue=${encodeURIComponent(job.queue)}`)}>{job.queue}</a> },
  { key: "user", title: "User", hide: 1, value: (job) => job.user, cell: (job) => <a href={href(`/jobs?q=${encodeURIComponent(job.user)}`)}>{job.user}</a> },
  { key: "nodes", title: "Nodes", hide: 1, value: (job) => job.nodes.join(" "), cell: (job) => <NodeLinks names={job.nodes} most={2} /> },
  { key: "submitted", title: "Submitted", hide: 2, value: (job) => job.submitted_s, cell: (job) => <Ago at_s={job.submitted_s} /> },
  {
    key: "time",
    title: "Runs / starts",
    hide: 2,
    align: "end",
    value: (job) => job.started_s ?? job.start?.at_s ?? 0,
    cell: (job) =>
      job.started_s !== null ? (
        duration((job.ended_s ?? now_s.value) - job.started_s)
      ) : job.start ? (
        <Ago at_s={job.start.at_s} />
      ) : (
        <span class="quiet">–</span>
      ),
  },
];

/** What is searched, made once for each job as it is: a row that changes is another object. */
const texts = new WeakMap<Job, string>();

export function matches(job: Job, words: string[]): boolean {
  if (!words.length) return true;
  let text = texts.get(job);
  if (text === undefined) {
    text = `${job.id} ${job.name} ${job.queue} ${job.user} ${job.state} ${job.reason} ${job.nodes.join(" ")} ${Object.entries(job.labels).map(([k, v]) => `${k}=${v}`).join(" ")}`.toLowerCase();
    texts.set(job, text);
  }
  return words.every((word) => text.includes(word));
}

export function JobsPage(): JSX.Element {
  const [selected, setSelected] = useState<Set<string>>(new Set());
  const [isAll, setAll] = useState(false);
  const which = param("state") || "live";
  const queue = param("queue");
  const q = param("q");
  const site = param("site");
  const rows = useMemo(() => {
    const words = q.toLowerCase().split(/\s+/).filter(Boolean);
    return jobs.value
      .filter((job) => {
        const isWaiting = WAITING.has(job.state) || (job.array?.waiting ?? 0) > 0;
        if (which === "live" && ENDED.has(job.state)) return false;
        if (which === "waiting" && !isWaiting) return false;
        if (which === "active" && !ACTIVE.has(job.state)) return false;
        if (which === "ended" && !ENDED.has(job.state)) return false;
        if (queue && job.queue !== queue && !job.queue.startsWith(`${queue}/`)) return false;
        return isAt(job, site) && matches(job, words);
      })
      .sort((a, b) => b.submitted_s - a.submitted_s || (a.id < b.id ? 1 : -1));
  }, [jobs.value, which, queue, q, site]);
  const chosen = rows.filter((job) => selected.has(job.id));
  const older = async (): Promise<void> => {
    const last = [...jobs.value].sort((a, b) => a.submitted_s - b.submitted_s)[0];
    if (!last) return;
    const after = btoa(`jobs:${last.id}`).replace(/=+$/, "");
    const page = await get<{ rows: Job[]; next: string | null }>("/v1/jobs", { all: true, limit: 1000, after });
    tell({ kind: "jobs", jobs: page.rows });
    setAll(page.next === null);
  };
  return (
    <>
      <div class="toolbar">
        <Filter label="Filter jobs" hint="name, user, reason, label=value  ( / )" />
        <Choice
          name="state"
          label="Show"
          fallback="live"
          options={[
            ["live", "waiting and running"],
            ["waiting", "waiting"],
            ["active", "running"],
            ["ended", "ended"],
            ["any", "all"],
          ]}
        />
        <Choice name="queue" label="Queue" options={[["", "any"], ...state.value.queues.map((each): [string, string] => [each.path, each.path])]} />
        <SiteChoice />
        {chosen.length ? <Buttons of={jobActions(chosen)} /> : null}
      </div>
      <Table
        name="jobs"
        rows={rows}
        columns={COLUMNS}
        id={(job) => job.id}
        open={(job) => `/jobs/${job.id}`}
        selected={selected}
        onSelect={setSelected}
        command={`tercio ps${which === "live" ? "" : " --all"}${queue ? ` --queue ${quote(queue)}` : ""}${site ? ` --site ${quote(site)}` : ""}`}
        tools={
          ["ended", "any"].includes(which) && !isAll ? (
            <button type="button" class="small" onClick={() => void older()}>
              Read older
            </button>
          ) : null
        }
        empty={
          q || queue || site ? (
            <Empty title="No job matches">Take a filter away, or show ended jobs too.</Empty>
          ) : (
            <Empty title={which === "waiting" ? "Nothing waits" : "No jobs here"}>
              <p>
                Submit one under <a href={href("/plan")}>Plan</a>, or with <code>tercio submit job.yaml</code>.
              </p>
            </Empty>
          )
        }
      />
    </>
  );
}
