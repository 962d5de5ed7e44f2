// What would another policy have made of the past?

import type { JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import uPlot from "uplot";
import { get, post } from "../api";
import { duration, instant, number, percent, plain, quote } from "../format";
import { param, setParams } from "../router";
import { theme } from "../theme";
import { Ago, Card, Choice, Command, Empty, Loading, Refusal, useAnswer } from "../widgets";

interface TwinJob {
  id: string;
  queue: string;
  devices: number;
  submit_s: number;
  start_s: number | null;
  end_s: number | null;
  state: string;
}

interface Course {
  name: string;
  at_s: number[];
  used: number[];
  waiting: number[];
  devices: number;
  jobs: TwinJob[];
}

interface Difference {
  mean: number;
  low: number | null;
  high: number | null;
  ratio: number | null;
  verdict: string;
}

interface Run {
  run: string;
  state: "running" | "done" | "failed";
  asked_s: number;
  by: string;
  arms: string[];
  days: number | null;
  add: string[];
  drain: string[];
  faults: string;
  done: number;
  whole: number;
  error: string;
  hint: string | null;
  answer: null | { rows: { key: string; title: string; values: (number | null)[]; differences: (Difference | null)[] }[]; courses: Course[]; jobs: number; notes: string[] };
}

const POLL_MS = 700;
const OWN = "own file";

export function TwinPage(): JSX.Element {
  const list = useAnswer(() => get<{ rows: Run[]; policies: string[] }>("/v1/twin/runs"), [param("run")]);
  const [error, setError] = useState<unknown>(null);
  const [file, setFile] = useState("");
  const name = param("run") || list.value?.rows[0]?.run || "";
  if (list.error) return <Refusal error={list.error} retry={list.again} />;
  if (!list.value) return <Loading what="the runs" />;
  const [one, other] = [param("one") || "in force", param("other") || "fifo"];
  const policies = list.value.policies.map((each): [string, string] => [each, each]);
  const start = async (): Promise<void> => {
    const arm = (policy: string): object => (policy === OWN ? { name: OWN, file } : { name: policy });
    try {
      const days = param("days");
      const run = await post<Run>("/v1/twin/runs", { arms: [arm(one), ...(other === one ? [] : [arm(other)])], ...(days ? { days: Number(days) } : {}), add: listed("add"), drain: listed("drain"), faults: param("faults").trim() });
      setError(null);
      setParams({ run: run.run, at: "" });
    } catch (refusal) {
      setError(refusal);
    }
  };
  return (
    <>
      <div class="toolbar">
        <Choice name="one" label="Policy" fallback="in force" options={policies} />
        <Choice name="other" label="against" fallback="fifo" options={[...policies, [OWN, "a file of mine"]]} />
        <Choice name="days" label="Jobs of" options={[["", "all time"], ["1", "the last day"], ["7", "the last 7 days"], ["30", "the last 30 days"]]} />
        {list.value.rows.length > 1 ? <Choice name="run" label="Earlier" fallback={list.value.rows[0]!.run} options={list.value.rows.map((run): [string, string] => [run.run, `${run.run}: ${run.arms.join(" / ")}`])} /> : null}
      </div>
      <form class="knobs twin-knobs" onSubmit={(event) => (event.preventDefault(), void start())}>
        <Knob name="add" label="With devices more" hint="16xH100" />
        <Knob name="drain" label="Without node or rack" hint="n7, r2" />
        <Knob name="faults" label="Nodes fail" hint="mean=60d" />
        <div class="buttons"><button type="submit" class="primary">Replay the past</button></div>
      </form>
      {other === OWN ? (
        <Card title="Policy file" wide>
          <textarea aria-label="policy file to try" rows={10} spellcheck={false} value={file} onInput={(event) => setFile(event.currentTarget.value)} />
        </Card>
      ) : null}
      {error ? <Refusal error={error} /> : null}
      {name ? (
        <OneRun key={name} name={name} />
      ) : (
        <Empty title="Nothing was replayed yet">
          The jobs that this server ran are played again through its own scheduler, in virtual time, on the nodes it has now. Nothing real is touched.
        </Empty>
      )}
    </>
  );
}

/** The parts of a list that is written with commas. */
function listed(name: string): string[] {
  return param(name).split(",").map((part) => part.trim()).filter(Boolean);
}

function Knob({ name, label, hint }: { name: string; label: string; hint: string }): JSX.Element {
  return (
    <label class="field">
      <span>{label}</span>
      <input value={param(name)} placeholder={hint} onInput={(event) => setParams({ [name]: event.currentTarget.value })} />
    </label>
  );
}

/** The same question on the command line, of a copy of the journal. */
export function command(run: Run): string {
  const policies = run.arms.filter((arm) => !/ (\+|without )/.test(arm));
  const words = [
    ...policies.map((arm) => `--policy ${arm === "in force" || arm === OWN ? "policy.yaml" : quote(arm)}`),
    ...run.add.map((each) => `--add ${quote(each)}`),
    ...run.drain.map((each) => `--drain ${quote(each)}`),
    ...(run.faults ? [`--faults ${quote(run.faults)}`] : []),
  ];
  return `tercio twin compare journal.db --cluster cluster.yaml ${words.join(" ")}`;
}

function OneRun({ name }: { name: string }): JSX.Element {
  const asked = useAnswer(() => get<Run>(`/v1/twin/runs/${encodeURIComponent(name)}`), [name]);
  const run = asked.value;
  useEffect(() => {
    if (run?.state !== "running") return;
    const timer = setTimeout(asked.again, POLL_MS);
    return () => clearTimeout(timer);
  }, [run]);
  if (asked.error) return <Refusal error={asked.error} retry={asked.again} />;
  if (!run) return <Loading what={name} />;
  if (run.state === "failed") return <div class="refusal" role="alert"><strong>{plain(run.error)}</strong>{run.hint ? <p>{run.hint}</p> : null}</div>;
  if (run.state === "running" || !run.answer) {
    return (
      <Card title="Replaying">
        <progress max={run.whole} value={run.done} aria-label="policies replayed" />
        <p class="quiet" role="status">{run.done} of {run.whole} policies are replayed; each run ends after five minutes at the latest.</p>
      </Card>
    );
  }
  return <Answer run={run} answer={run.answer} />;
}

function value(key: string, found: number | null): string {
  if (found === null) return "–";
  if (key.endsWith("_s")) return duration(found);
  return key.endsWith("_ratio") ? `${number(100 * found)}%` : number(found);
}

/** Places of the slider: whole numbers, so that its end is the end of the replay. */
const MARKS = 1000;
const VERDICTS: Record<string, [string, string]> = { better: ["✓ better", "state-ready"], worse: ["✕ worse", "state-down"], same: ["= same", "quiet"], unsure: ["? unsure", "quiet"] };

function Answer({ run, answer }: { run: Run; answer: NonNullable<Run["answer"]> }): JSX.Element {
  const { courses } = answer;
  const first = Math.min(...courses.map((course) => course.at_s[0] ?? Infinity));
  const last = Math.max(...courses.flatMap((course) => [course.at_s.at(-1) ?? 0, ...course.jobs.map((job) => job.end_s ?? 0)]));
  const at_s = Number(param("at")) || first + (last - first) / 3;
  return (
    <div class="grid">
      <Card title={`${answer.jobs} jobs, ${run.arms.join(" against ")}`} wide csv={run.run} more={<span class="quiet">{run.run} of {run.by}, <Ago at_s={run.asked_s} /></span>}>
        <div class="scroll" tabIndex={0} role="region" aria-label="comparison">
          <table class="plain">
            <thead>
              <tr>
                <th>Figure</th>
                {courses.map((course) => <th key={course.name} class="end">{course.name}</th>)}
                {courses.slice(1).map((course) => <th key={course.name}>{course.name} is</th>)}
              </tr>
            </thead>
            <tbody>
              {answer.rows.map((row) => (
                <tr key={row.key}>
                  <td class="prose">{row.title}</td>
                  {row.values.map((each, index) => <td key={index} class="end">{value(row.key, each)}</td>)}
                  {row.differences.slice(1).map((each, index) => {
                    const [words, tone] = VERDICTS[each?.verdict ?? ""] ?? ["–", "quiet"];
                    return <td key={index} class="nowrap"><span class={`state ${tone}`}>{words}</span>{each?.ratio ? <span class="quiet"> {each.ratio > 0 ? "+" : "−"}{percent(Math.abs(each.ratio))}</span> : null}</td>;
                  })}
                </tr>
              ))}
            </tbody>
          </table>
        </div>
        {answer.notes.map((note) => <p class="quiet small-text" key={note}>{plain(note)}</p>)}
        {run.faults ? <p class="quiet small-text">Nodes fail in every arm alike: {plain(run.faults)}.</p> : null}
        <Command text={command(run)} />
      </Card>
      <Card title="Over time" wide>
        <Timeline courses={courses} first={first} last={last} at_s={at_s} />
        <label class="field">
          <span>Instant: {instant(at_s)}</span>
          <input type="range" min={0} max={MARKS} value={Math.round((MARKS * (at_s - first)) / (last - first || 1))} aria-label="instant of the replay" aria-valuetext={instant(at_s)} onInput={(event) => setParams({ at: String(first + ((last - first) * Number(event.currentTarget.value)) / MARKS) })} />
        </label>
      </Card>
      {courses.map((course) => <Moment key={course.name} course={course} at_s={at_s} />)}
    </div>
  );
}

/** What held at an instant: the last step at or before it. */
export function held(at_s: readonly number[], values: readonly number[], when_s: number): number {
  let low = 0;
  let high = at_s.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (at_s[middle]! <= when_s) low = middle + 1;
    else high = middle;
  }
  return values[low - 1] ?? 0;
}

const STROKES = ["#2f6fd6", "#c2571a", "#2f9e62", "#7b3fe4", "#b8860b", "#c13584"];
const DASHES = [[], [8, 4], [2, 3], [10, 3, 2, 3], [5, 2], [1, 4]];
const POINTS = 300;

function Timeline({ courses, first, last, at_s }: { courses: Course[]; first: number; last: number; at_s: number }): JSX.Element {
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const [what, setWhat] = useState<"used" | "waiting">("used");
  const times = Array.from({ length: POINTS }, (_, index) => first + ((last - first) * index) / (POINTS - 1));
  const shown = useRef(at_s);
  shown.current = at_s;
  useEffect(() => {
    // Kept here: the box is gone from the reference before the observer is told to stop.
    const element = box.current!;
    const style = getComputedStyle(document.documentElement);
    const tone = (variable: string): string => style.getPropertyValue(variable).trim();
    const axis = { stroke: tone("--quiet"), grid: { stroke: tone("--line"), width: 1 }, ticks: { stroke: tone("--line"), width: 1 }, font: "12px system-ui, sans-serif" };
    const mark = (self: uPlot): void => {
      const x = Math.round(self.valToPos(shown.current, "x", true)) + 0.5;
      self.ctx.strokeStyle = tone("--text");
      self.ctx.beginPath();
      self.ctx.moveTo(x, self.bbox.top);
      self.ctx.lineTo(x, self.bbox.top + self.bbox.height);
      self.ctx.stroke();
    };
    plot.current = new uPlot(
      {
        width: element.clientWidth,
        height: 220,
        padding: [12, 28, 0, 0],
        legend: { show: false },
        cursor: { show: false },
        hooks: { draw: [mark] },
        axes: [{ ...axis, values: (_, ticks) => ticks.map((tick) => instant(tick).slice(last - first > 172_800 ? 5 : 11, last - first > 172_800 ? 10 : 16)) }, { ...axis, size: 56 }],
        series: [{}, ...courses.map((course, index) => ({ label: course.name, stroke: STROKES[index]!, dash: DASHES[index]!, width: 1.5, points: { show: false }, paths: uPlot.paths.stepped!({ align: 1 }) }))],
      },
      [times, ...courses.map((course) => times.map((time) => held(course.at_s, course[what], time)))] as uPlot.AlignedData,
      element,
    );
    const watch = new ResizeObserver(() => plot.current?.setSize({ width: element.clientWidth, height: 220 }));
    watch.observe(element);
    return () => {
      watch.disconnect();
      plot.current?.destroy();
    };
  }, [courses, what, theme.value]);
  useEffect(() => plot.current?.redraw(false), [at_s]);
  return (
    <>
      <div class="toolbar">
        <label class="choice">
          <span>Show</span>
          <select value={what} onChange={(event) => setWhat(event.currentTarget.value as "used" | "waiting")}>
            <option value="used">devices in use</option>
            <option value="waiting">jobs waiting</option>
          </select>
        </label>
        <p class="legend">
          {courses.map((course, index) => (
            <span key={course.name}>
              <svg width="22" height="8" aria-hidden="true">
                <line x1="0" y1="4" x2="22" y2="4" stroke={STROKES[index]} stroke-width="2.4" stroke-dasharray={DASHES[index]!.join(" ") || undefined} />
              </svg>{" "}
              {course.name}
            </span>
          ))}
        </p>
      </div>
      <div ref={box} class="plot" role="img" aria-label="devices in use, or jobs waiting, of each policy over time; the instant chosen below is told in the tables" />
    </>
  );
}

function Moment({ course, at_s }: { course: Course; at_s: number }): JSX.Element {
  const waiting = course.jobs.filter((job) => job.submit_s <= at_s && (job.start_s === null || job.start_s > at_s)).sort((a, b) => a.submit_s - b.submit_s);
  return (
    <Card title={`${course.name} at that instant`} csv={waiting.length ? `${course.name}-waiting` : undefined}>
      <p>
        <b>{number(held(course.at_s, course.used, at_s))}</b> of {course.devices} devices in use, <b>{number(held(course.at_s, course.waiting, at_s))}</b> jobs wait
      </p>
      {waiting.length ? (
        <table class="plain">
          <thead>
            <tr>
              <th>Waits longest</th>
              <th>Queue</th>
              <th class="end">Devices</th>
              <th class="end">For</th>
              <th class="end">Starts after</th>
            </tr>
          </thead>
          <tbody>
            {waiting.slice(0, 8).map((job) => (
              <tr key={job.id}>
                <td class="mono">{job.id}</td>
                <td>{job.queue}</td>
                <td class="end">{job.devices}</td>
                <td class="end">{duration(at_s - job.submit_s)}</td>
                <td class="end">{job.start_s === null ? "never" : duration(job.start_s - job.submit_s)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      ) : (
        <p class="quiet">None of the jobs told waits.</p>
      )}
    </Card>
  );
}
