// One job: where it is, why, what would change it, what happened.

import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { Buttons, jobActions } from "../actions";
import { get, post } from "../api";
import { amounts, bytes, duration, instant, number, percent, plain, usd, zoneName } from "../format";
import { href, param } from "../router";
import { may, now_s, state } from "../store";
import type { Change, Decision, Job, Plan, Prediction, Sized, StoryLine } from "../types";
import { Ago, Card, Command, Copy, Empty, Facts, JobLink, lazy, Loading, NodeLinks, Pending, Refusal, State, Tabs, useAnswer } from "../widgets";
import { Goodput } from "./goodput";
import { Logs } from "./logs";

const Metrics = lazy(async () => (await import("./metrics")).Metrics);

export function JobPage({ id }: { id: string }): JSX.Element {
  const row = state.value.jobs.get(id);
  // The row changes with every event of the job; what it does not carry is asked for then.
  const full = useAnswer(() => get<Job>(`/v1/jobs/${encodeURIComponent(id)}`), [id, row?.state, row?.attempt, row?.nodes.join()]);
  const job = row ? { ...full.value, ...row, spec: full.value?.spec, predicted: row.predicted ?? full.value?.predicted ?? null, tasks: full.value?.tasks ?? [] } : full.value;
  if (full.error && !job) return <Refusal error={full.error} retry={full.again} />;
  if (!job) return <Loading what={id} />;
  const tab = param("tab") || "summary";
  return (
    <>
      <div class="headline">
        <h1>
          {job.name} <span class="mono quiet">{job.id}</span>
        </h1>
        <State of={job.state} reason={job.reason} />
        <Pending subject={job.id} />
        <span class="spring" />
        <Buttons of={jobActions([job])} />
      </div>
      {job.message && tab !== "explain" ? <p class="message">{job.message}</p> : null}
      <Tabs name={tab} names={["Summary", "Explain", "Story", "Placement", "Metrics", "Goodput", "Logs", "Spec"]} />
      {tab === "explain" ? (
        <Explain job={job} />
      ) : tab === "story" ? (
        <StoryTab path={`/v1/jobs/${id}/story`} version={`${job.state}${job.attempt}${job.reason}`} command={`tercio story ${id}`} />
      ) : tab === "placement" ? (
        <Placement job={job} />
      ) : tab === "metrics" ? (
        <Metrics path={`/v1/jobs/${encodeURIComponent(id)}/series`} version={`${job.state}${job.attempt}`} job={id} />
      ) : tab === "goodput" ? (
        <Goodput job={job} />
      ) : tab === "logs" ? (
        <Logs job={job} />
      ) : tab === "spec" ? (
        <Spec job={job} />
      ) : (
        <Summary job={job} />
      )}
    </>
  );
}

function Summary({ job }: { job: Job }): JSX.Element {
  const runs_s = job.started_s === null ? null : (job.ended_s ?? now_s.value) - job.started_s;
  return (
    <div class="grid">
      <Card title="Summary">
        <Facts
          rows={[
            ["Queue", <a href={href(`/jobs?queue=${encodeURIComponent(job.queue)}`)}>{job.queue}</a>],
            ["User", <>{job.user} <span class="quiet">tenant {job.tenant}</span></>],
            ["Devices", <span class="mono">{amounts(job.devices)}</span>],
            ["Tasks", String(job.task_count)],
            ["Nodes", <NodeLinks names={job.nodes} most={8} />],
            ["Priority", String(job.priority)],
            ["Attempt", String(job.attempt)],
            ...(job.exit_code === null ? [] : [["Exit code", String(job.exit_code)] as [string, string]]),
            ...(Object.keys(job.labels).length ? [["Labels", Object.entries(job.labels).map(([k, v]) => `${k}=${v}`).join(" ")] as [string, string]] : []),
          ]}
        />
        <Command text={`tercio show ${job.id}`} />
      </Card>
      <Card title="Time">
        <Facts
          rows={[
            ["Submitted", <><Ago at_s={job.submitted_s} /> <span class="quiet">{instant(job.submitted_s)} {zoneName()}</span></>],
            ["Started", <Ago at_s={job.started_s} />],
            ["Ended", <Ago at_s={job.ended_s} />],
            ["Waited", duration((job.started_s ?? job.ended_s ?? now_s.value) - job.submitted_s)],
            ["Ran", runs_s === null ? "–" : duration(runs_s)],
            ["Limit", job.limit_s === null ? "none" : duration(job.limit_s)],
            ...(job.start ? [["Expected start", <><Ago at_s={job.start.at_s} /> <span class="quiet">({job.start.label})</span></>] as [string, JSX.Element]] : []),
          ]}
        />
        {runs_s !== null && job.limit_s !== null && job.ended_s === null ? (
          <progress max={job.limit_s} value={Math.min(runs_s, job.limit_s)} aria-label="share of the time limit used" />
        ) : null}
      </Card>
      {job.predicted ? <Predicted of={job.predicted} /> : null}
      {job.array ? (
        <Card title="Array">
          <Facts rows={(["size", "waiting", "active", "succeeded", "failed", "cancelled"] as const).map((key) => [key, String(job.array![key])])} />
        </Card>
      ) : null}
    </div>
  );
}

/** What sizing expected, beside what happened: the range of 80 %, and where the run ended in it. */
function Predicted({ of }: { of: Prediction }): JSX.Element {
  const { expected_s, low_s, high_s, actual_s } = of;
  const most = Math.max(high_s ?? 0, actual_s ?? 0) * 1.1;
  return (
    <Card title="Predicted and actual">
      {expected_s !== null && low_s !== null && high_s !== null ? (
        <span class="ranged" role="img" aria-label={`expected ${duration(expected_s)}, between ${duration(low_s)} and ${duration(high_s)}${actual_s === null ? "" : `, was ${duration(actual_s)}`}`}>
          <i class="ranged-span" style={{ left: `${(100 * low_s) / most}%`, width: `${(100 * (high_s - low_s)) / most}%` }} />
          <i class="ranged-expected" style={{ left: `${(100 * expected_s) / most}%` }} />
          {actual_s === null ? null : <i class="ranged-actual" style={{ left: `${(100 * actual_s) / most}%` }} />}
        </span>
      ) : null}
      <Facts
        rows={[
          ["Chosen", `${of.tasks} × ${of.devices}`],
          ["Why", of.why],
          ["Predicted", expected_s === null ? "no tokens were stated" : <>{duration(expected_s)} <span class="quiet">({duration(low_s ?? 0)} to {duration(high_s ?? 0)}, 80 %)</span></>],
          ["Actual", actual_s === null ? "not ended yet" : <>{duration(actual_s)} <span class="quiet">{of.ratio === null ? "" : `${percent(of.ratio)} of the prediction`}</span></>],
          ...(of.cost_usd === null ? [] : [["Cost", `${usd(of.cost_usd)} predicted`] as [string, string]]),
        ]}
      />
    </Card>
  );
}

function SizedChoices({ sized }: { sized: Sized }): JSX.Element {
  return (
    <>
      <h3>What sizing chose</h3>
      <table class="plain">
        <tbody>
          {sized.choices.map((each, index) => (
            <tr key={each.devices + each.tasks}>
              <td>{index + 1}. <b class="mono">{each.tasks > 1 ? `${each.tasks} × ` : ""}{each.devices}</b></td>
              <td class="end">{each.expected_s ? duration(each.expected_s) : "–"}</td>
              <td class="end">{each.cost_usd ? usd(each.cost_usd) : "–"}</td>
              <td class="quiet">{each.why}</td>
            </tr>
          ))}
        </tbody>
      </table>
      <p class="quiet small-text">
        Catalogue {sized.catalogue}, calibration {sized.calibration}
        {sized.site_jobs ? `, corrected by ${sized.site_jobs} finished jobs of this cluster` : ""}.
      </p>
    </>
  );
}

function Explain({ job }: { job: Job }): JSX.Element {
  const asked = useAnswer(() => get<{ decision: Decision }>(`/v1/jobs/${job.id}/decision`), [job.id, job.state, job.reason, job.message]);
  if (asked.error) return <Refusal error={asked.error} retry={asked.again} />;
  if (!asked.value) return <Loading what="the decision" />;
  return (
    <div class="grid">
      <DecisionCard decision={asked.value.decision} title={job.nodes.length ? "Where it is" : "Why it waits"} command={`tercio explain ${job.id}`} />
      {job.state === "queued" && may("user") ? <WhatIf job={job} /> : null}
    </div>
  );
}

export function DecisionCard({ decision: made, title, command, isBrief }: { decision: Decision; title: string; command: string; isBrief?: boolean }): JSX.Element {
  const helps = made.change && !(made.start && Date.parse(made.change.starts ?? "") / 1000 >= made.start.at_s);
  return (
    <Card title={title}>
      {isBrief ? null : (
        <p class="verdict">
          <b>{made.reason === "Ready" ? "" : made.reason}</b> {made.message}
        </p>
      )}
      {helps ? (
        <p class="would-help">
          <b>Would help</b> {changeWords(made.change!, now_s.value)}
        </p>
      ) : null}
      <Facts
        rows={[
          ["Wants", <span class="mono">{amounts(made.wanted)}</span>],
          ...(made.free ? [["Free now", <span class="mono">{amounts(made.free)}</span>] as [string, JSX.Element]] : []),
          ...(made.best ? [["Nearest", <>{made.best.node ?? made.best.domain} <span class="mono quiet">{amounts(made.best.free)}</span></>] as [string, JSX.Element]] : []),
          ...(made.position ? [["Position", `${made.position} in its pool`] as [string, string]] : []),
          ...(made.nodes?.length ? [["Nodes", <NodeLinks names={made.nodes} most={8} />] as [string, JSX.Element]] : []),
          ...(made.start
            ? [["Starts", <><Ago at_s={made.start.at_s} /> <span class="quiet">({made.start.label}; likely {duration(made.start.low_s - now_s.value)} to {duration(made.start.high_s - now_s.value)} from now)</span></>] as [string, JSX.Element]]
            : []),
        ]}
      />
      {made.holders?.length ? (
        <>
          <h3>Who holds it</h3>
          <table class="plain">
            <tbody>
              {made.holders.slice(0, 10).map((holder) => (
                <tr key={holder.job}>
                  <td><JobLink id={holder.job} /></td>
                  <td class="mono">{amounts(holder.devices)}</td>
                  <td class="end quiet">{holder.ends_s ? <>ends <Ago at_s={holder.ends_s} /></> : "no known end"}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </>
      ) : null}
      {made.excluded?.length ? (
        <p class="quiet">Left out: {made.excluded.map((each) => `${each.nodes} ${each.nodes === 1 ? "node" : "nodes"} (${each.by})`).join(", ")}</p>
      ) : null}
      <Command text={command} />
    </Card>
  );
}

/** The words of `tercio explain`; `{to}` is the new value. */
const CHANGES: Record<string, string> = {
  tasks: "ask for {to}",
  devices: "ask for {to} per task",
  type: "ask for devices of type {to}",
  topology: "relax the topology to {to}",
  queue: "submit it to queue {to}",
  after: "wait for {to} to end",
  limit: "raise the limit to {to}",
  concurrency: "let {to} elements of the array run at once",
  repair: "bring node {to} back",
  time_limit_s: "set a time limit of {to}",
  uncordon: "'tercio node uncordon {to}'",
  cpus: "ask for {to} cores per task",
  memory: "ask for {to} of memory per task",
  release: "'tercio release {to}'",
};

function changeWords(change: Change, seen_s: number): string {
  let to = typeof change.to === "number" ? number(change.to) : String(change.to);
  if (change.what === "memory" && typeof change.to === "number") to = bytes(change.to);
  else if (change.what === "time_limit_s" && typeof change.to === "number") to = duration(change.to);
  else if (change.what === "tasks" || change.what === "devices") to += ` ${to === "1" ? change.what.slice(0, -1) : change.what}`;
  const words = (CHANGES[change.what] ?? `change ${change.what} to {to}`).replace("{to}", to);
  const starts = change.starts ?? "now";
  const at_s = Date.parse(starts) / 1000;
  const when = starts === "later" ? "then" : Number.isNaN(at_s) ? starts : `in ${duration(at_s - seen_s)}`;
  return `${words}; it would ${starts === "later" ? "wait for room" : "start"} ${when}`;
}

const KNOBS: [string, string, string][] = [
  ["gpus", "Devices per task", "H100:4, or 4"],
  ["tasks", "Tasks", "2"],
  ["queue", "Queue", "research"],
  ["priority", "Priority", "10"],
  ["time", "Time limit", "2h"],
  ["topology", "Same domain", "rack, none"],
];

function WhatIf({ job }: { job: Job }): JSX.Element {
  const [changes, setChanges] = useState<Record<string, string>>({});
  const [answer, setAnswer] = useState<{ plan?: Plan; error?: unknown }>({});
  const given = Object.fromEntries(Object.entries(changes).filter(([, value]) => value.trim()));
  const trial = async (): Promise<void> => {
    try {
      setAnswer({ plan: await post<Plan>(`/v1/jobs/${job.id}/what-if`, { changes: given }) });
    } catch (error) {
      setAnswer({ error });
    }
  };
  return (
    <Card title="What if">
      <form class="knobs" onSubmit={(event) => (event.preventDefault(), void trial())}>
        <p class="quiet">Asks the scheduler itself. Nothing is changed.</p>
        {KNOBS.map(([key, label, hint]) => (
          <label class="field" key={key}>
            <span>{label}</span>
            <input placeholder={hint} value={changes[key] ?? ""} onInput={(event) => setChanges({ ...changes, [key]: event.currentTarget.value })} />
          </label>
        ))}
        <div class="buttons">
          <button type="submit" class="primary" disabled={!Object.keys(given).length}>
            Ask
          </button>
        </div>
      </form>
      {answer.error ? <Refusal error={answer.error} /> : null}
      {answer.plan ? <PlanOutcome plan={answer.plan} /> : null}
      <Command text={`tercio explain ${job.id}${Object.entries(given).map(([k, v]) => ` --what-if ${k}=${v}`).join("")}`} />
    </Card>
  );
}

const OUTCOMES: Record<string, [string, string]> = {
  now: ["✓", "would start now"],
  later: ["○", "would wait"],
  never: ["✕", "can never fit"],
};

export function PlanOutcome({ plan }: { plan: Plan }): JSX.Element {
  const [symbol, words] = OUTCOMES[plan.outcome]!;
  const made = plan.decision;
  return (
    <div class={`outcome outcome-${plan.outcome}`} role="status">
      <p class="verdict">
        <b>
          {symbol} It {words}
        </b>{" "}
        {made.message}
      </p>
      <Facts
        rows={[
          ...(made.nodes?.length ? [["On", <NodeLinks names={made.nodes} most={8} />] as [string, JSX.Element]] : []),
          ...(plan.outcome !== "now" ? [["Why", made.reason] as [string, string]] : []),
          ...(made.start ? [["Starts", <><Ago at_s={made.start.at_s} /> <span class="quiet">({made.start.label})</span></>] as [string, JSX.Element]] : []),
          ["Stops", plan.evicts.length ? <>{plan.evicts.map((job) => <span key={job}><JobLink id={job} /> </span>)}</> : "no job"],
        ]}
      />
      {plan.sized ? <SizedChoices sized={plan.sized} /> : null}
      {plan.warnings.map((text) => (
        <p class="warn" key={text}>
          ! {text}
        </p>
      ))}
    </div>
  );
}

export function StoryTab({ path, version, command }: { path: string; version: string; command: string }): JSX.Element {
  const asked = useAnswer(() => get<{ rows: StoryLine[] }>(path), [path, version]);
  if (asked.error) return <Refusal error={asked.error} retry={asked.again} />;
  if (!asked.value) return <Loading what="the story" />;
  return (
    <Card title="Story" wide>
      {asked.value.rows.length ? (
        <ol class="story">
          {asked.value.rows.map((line, index) => (
            <li key={`${line.seq}-${index}`} class={/Failed|Lost|Evicted|Cancel/.test(line.kind) ? "bad" : undefined}>
              <span class="when">
                {instant(line.at_s)} <span class="quiet"><Ago at_s={line.at_s} /></span>
              </span>
              <span>{plain(line.text)}</span>
            </li>
          ))}
        </ol>
      ) : (
        <Empty title="Nothing is told of it yet" />
      )}
      <Command text={command} />
    </Card>
  );
}

function Placement({ job }: { job: Job }): JSX.Element {
  const tasks = job.tasks ?? [];
  if (!tasks.length) return <Empty title="It holds nothing now">Explain says why it waits.</Empty>;
  const machines = [...new Set(tasks.map((task) => task.node))];
  return (
    <div class="grid">
      <Card title={`On ${machines.length} ${machines.length === 1 ? "node" : "nodes"}`} more={<a href={href(`/topology?job=${job.id}`)}>on the map</a>}>
        <div class="racks">
          {machines.map((name) => {
            const node = state.value.nodes.get(name);
            return (
              <a class="rack-node" key={name} href={href(`/nodes/${encodeURIComponent(name)}`)}>
                <span>{name}</span>
                <span class="cells">
                  {node?.devices.map((device) => {
                    const isOwn = device.jobs.includes(job.id);
                    return <i key={device.index} class={isOwn ? "cell own" : device.used > 0 ? "cell other" : "cell"} title={`device ${device.index}: ${isOwn ? "this job" : device.jobs.join(", ") || "free"}`} />;
                  })}
                </span>
              </a>
            );
          })}
        </div>
        <p class="legend">
          <i class="tone-own" /> this job <i class="tone-used" /> others <i class="tone-free" /> free
        </p>
      </Card>
      <Card title="Tasks" wide csv={`${job.id}-tasks`}>
        <div class="scroll" tabIndex={0} role="region" aria-label="table of tasks">
          <table class="plain">
            <thead>
              <tr>
                {["Task", "State", "Node", "Devices", "Started", "Ended", "Exit"].map((title) => (
                  <th key={title}>{title}</th>
                ))}
              </tr>
            </thead>
            <tbody>
              {tasks.slice(0, 500).map((task) => (
                <tr key={task.task}>
                  <td>{task.task}{task.group ? ` ${task.group}` : ""}</td>
                  <td><State of={task.state} /></td>
                  <td><NodeLinks names={[task.node]} /></td>
                  <td class="mono">{task.devices.join(",") || "–"}</td>
                  <td><Ago at_s={task.started_s} /></td>
                  <td><Ago at_s={task.ended_s} /></td>
                  <td>{task.exit_code ?? "–"} {plain(task.message)}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      </Card>
    </div>
  );
}

function Spec({ job }: { job: Job }): JSX.Element {
  const text = JSON.stringify(job.spec ?? {}, null, 2);
  return (
    <Card title="Spec" wide more={<Copy text={text} />}>
      <pre class="code" tabIndex={0} aria-label="the job as it was understood">{plain(text)}</pre>
      <Command text={`tercio show ${job.id} -o json`} />
    </Card>
  );
}
