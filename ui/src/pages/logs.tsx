// The log of a job as it grows, with search.

import type { JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { frames, url } from "../api";
import { instant, plain } from "../format";
import { param } from "../router";
import { ENDED } from "../state";
import type { Job } from "../types";
import { Choice, Command, Empty, Filter, Loading, Refusal } from "../widgets";

interface Line {
  task: number;
  at_s: number;
  stream: string;
  text: string;
}

const KEPT = 5000;
const SHOWN = 1500;

export function Logs({ job }: { job: Job }): JSX.Element {
  const [lines, setLines] = useState<Line[] | null>(null);
  const [error, setError] = useState<unknown>(null);
  const [isFollowing, setFollowing] = useState(true);
  const box = useRef<HTMLDivElement>(null);
  const task = param("task");
  const q = param("q").toLowerCase();
  const hasRun = job.attempt > 0;
  useEffect(() => {
    if (!hasRun) return;
    const stop = new AbortController();
    setLines(null);
    setError(null);
    void (async () => {
      const kept: Line[] = [];
      try {
        const path = url(`/v1/jobs/${job.id}/logs`, { tail: 1000, follow: !ENDED.has(job.state), task: task || undefined });
        for await (const found of frames(path, stop.signal)) {
          for (const frame of found) if (frame.name === "message") kept.push(JSON.parse(frame.text) as Line);
          if (kept.length > KEPT) kept.splice(0, kept.length - KEPT);
          setLines([...kept]);
        }
        setLines([...kept]);
      } catch (refusal) {
        if (!stop.signal.aborted) setError(refusal);
      }
    })();
    return () => stop.abort();
  }, [job.id, task, hasRun]);
  const matching = (lines ?? []).filter((line) => !q || line.text.toLowerCase().includes(q));
  useEffect(() => {
    if (isFollowing && box.current) box.current.scrollTop = box.current.scrollHeight;
  }, [lines, isFollowing]);
  if (!hasRun) return <Empty title="It has not run yet, so there is no log" />;
  return (
    <>
      <div class="toolbar">
        <Filter label="Search the log" hint="search the log  ( / )" />
        {job.task_count > 1 ? <Choice name="task" label="Task" options={[["", "all"], ...Array.from({ length: Math.min(job.task_count, 512) }, (_, i): [string, string] => [String(i), String(i)])]} /> : null}
        <label class="choice">
          <input type="checkbox" checked={isFollowing} onChange={() => setFollowing(!isFollowing)} /> <span>Follow</span>
        </label>
        <span class="quiet" role="status">
          {q ? `${matching.length} of ${lines?.length ?? 0} lines` : `${lines?.length ?? 0} lines`}
        </span>
      </div>
      {error ? <Refusal error={error} /> : null}
      {lines === null && !error ? (
        <Loading what="the log" />
      ) : matching.length ? (
        <div
          class="log"
          ref={box}
          tabIndex={0}
          role="log"
          aria-label="log"
          aria-live="off"
          onWheel={(event) => event.deltaY < 0 && setFollowing(false)}
        >
          {matching.slice(-SHOWN).map((line, index) => (
            <div key={index} class={line.stream === "err" ? "err" : line.stream === "tercio" ? "engine" : undefined}>
              <span class="log-at" title={instant(line.at_s)}>
                {job.task_count > 1 ? `[${line.task}] ` : ""}
                {instant(line.at_s).slice(11)}
              </span>
              <Marked text={plain(line.text)} q={q} />
            </div>
          ))}
        </div>
      ) : (
        <Empty title={q ? "No line has that" : "Nothing was written yet"} />
      )}
      <Command text={`tercio logs${isFollowing ? " --follow" : ""}${task ? ` --task ${task}` : ""} ${job.id}`} />
    </>
  );
}

function Marked({ text, q }: { text: string; q: string }): JSX.Element {
  const at = q ? text.toLowerCase().indexOf(q) : -1;
  if (at < 0) return <span>{text}</span>;
  return (
    <span>
      {text.slice(0, at)}
      <mark>{text.slice(at, at + q.length)}</mark>
      {text.slice(at + q.length)}
    </span>
  );
}
