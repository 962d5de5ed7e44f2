// What would another policy have made of the past?

import type { JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import uPlot from "uplot";
import { get, post } from "../api";
import { duration, instant, number, percent, plain } from "../format";
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
      const run = await post<Run>("/v1/twin/runs", { arms: [arm(one), ...(other === one ? [] : [arm(other)])], ...(days ? { days: Number(days) } : {}) });
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
        <button type="button" class="primary" onClick={() => void start()}>Replay the past</button>
        {list.value.rows.length > 1 ? <Choice name="run" label="Earlier" fallback={list.value.rows[0]!.run} options={list.value.rows.map((run): [string, string] => [run.run, `${run.run}: ${run.arms.join(" / ")}`])} /> : null}
      </div>
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
        <Command text="tercio twin compare --help" />
      </Card>
      <Card title="Over time" wide>
        <Timeline courses={courses} first={first} last={last} at_s={at_s} />
        <label class="field">
          <span>Instant: {instant(at_s)}</span>
          <input type="range" min={first} max={last} step={(last - first) / 1000 || 1} value={at_s} aria-label="instant of the replay" onInput={(event) => setParams({ at: event.currentTarget.value })} />
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

const STROKES = ["#2f6fd6", "#c2571a", "#2f9e62"];
const POINTS = 300;

function Timeline({ courses, first, last, at_s }: { courses: Course[]; first: number; last: number; at_s: number }): JSX.Element {
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const [what, setWhat] = useState<"used" | "waiting">("used");
  const times = Array.from({ length: POINTS }, (_, index) => first + ((last - first) * index) / (POINTS - 1));
  const shown = useRef(at_s);
  shown.current = at_s;
  useEffect(() => {
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
        width: box.current!.clientWidth,
        height: 220,
        padding: [12, 28, 0, 0],
        legend: { show: false },
        cursor: { show: false },
        hooks: { draw: [mark] },
        axes: [{ ...axis, values: (_, ticks) => ticks.map((tick) => instant(tick).slice(last - first > 172_800 ? 5 : 11, last - first > 172_800 ? 10 : 16)) }, { ...axis, size: 56 }],
        series: [{}, ...courses.map((course, index) => ({ label: course.name, stroke: STROKES[index]!, width: 1.5, points: { show: false }, paths: uPlot.paths.stepped!({ align: 1 }) }))],
      },
      [times, ...courses.map((course) => times.map((time) => held(course.at_s, course[what], time)))] as uPlot.AlignedData,
      box.current!,
    );
    const watch = new ResizeObserver(() => plot.current?.setSize({ width: box.current!.clientWidth, height: 220 }));
    watch.observe(box.current!);
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
              <i style={{ background: STROKES[index] }} /> {course.name}
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
