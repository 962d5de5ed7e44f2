// What happens if I submit this? Edit, review, submit.

import type { JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { notify } from "../actions";
import { post } from "../api";
import { SAMPLE, wished } from "../draft";
import { go, param, setParams } from "../router";
import { may, state } from "../store";
import type { Plan } from "../types";
import { Card, Command, Empty, Refusal } from "../widgets";
import { DecisionCard, PlanOutcome } from "./job";

/** The keys of a job file with what they mean, for completion at the start of a line. */
const KEYS: [string, string][] = [
  ["name: ", "a-z, 0-9 and -"],
  ["queue: ", "path in the queue tree"],
  ["priority: ", "-1000 to 1000, larger first"],
  ["tasks: ", "a gang of exactly so many; \"2..8\" is elastic"],
  ["per_task:\n  devices: ", "such as \"H100:8 | A100:8\""],
  ["topology: ", "{same: rack, prefer: island}"],
  ["exclusive: ", "whole nodes"],
  ["nodes: ", "{match: \"pool == 'a'\", exclude: [n7]}"],
  ["time: ", "{limit: 8h, expected: 6h}"],
  ["run: |\n  ", "one command per task"],
  ["setup: |\n  ", "once per task before run"],
  ["framework: ", "plain, torch, torchrun, tensorflow, jax, mpi, ray"],
  ["env: ", "{WANDB_MODE: offline}"],
  ["secrets: ", "[HF_TOKEN]"],
  ["checkpoint: ", "{path: /ckpt/x, signal: SIGUSR1, grace: 120s}"],
  ["retry: ", "{on: [node_failed, preempted], max: 5}"],
  ["depends_on: ", "[{job: job-00001, when: ok}]"],
  ["array: ", "\"0-99%8\""],
  ["reservation: ", "name of a reservation"],
  ["preemptible: ", "true or false"],
  ["labels: ", "{project: x}"],
];

const draft = { file: sessionStorage.getItem("draft") ?? SAMPLE };

/** The draft, with what a link to the page asks for. */
function begin(): string {
  if (param("limit")) keep(wished(draft.file, { devices: param("devices"), tasks: param("tasks"), limit: param("limit") }));
  return draft.file;
}

function keep(text: string): void {
  draft.file = text;
  sessionStorage.setItem("draft", text);
}

export function PlanPage(): JSX.Element {
  const [file, setFile] = useState(begin);
  const [answer, setAnswer] = useState<{ plan?: Plan; error?: unknown; of?: string }>({});
  const [isBusy, setBusy] = useState(false);
  const [found, setFound] = useState<[string, string][]>([]);
  const box = useRef<HTMLTextAreaElement>(null);
  // It is in the draft now: read again, the page shows what was made of it since.
  useEffect(() => setParams({ devices: "", tasks: "", limit: "" }), []);
  // One key for one text: a repeated click submits no second job.
  const key = useRef(crypto.randomUUID());
  if (!may("user")) return <Empty title="Your role may look, not submit">Ask an admin for the role user.</Empty>;
  const edit = (text: string, caret: number): void => {
    keep(text);
    setFile(text);
    const line = text.slice(0, caret).split("\n").at(-1) ?? "";
    const queue = /^queue:\s*(\S*)$/.exec(line);
    if (queue) setFound(state.value.queues.filter((each) => each.path.startsWith(queue[1]!)).map((each): [string, string] => [each.path, "queue"]).slice(0, 8));
    else setFound(/^[a-z_]+$/.test(line) ? KEYS.filter(([name]) => name.startsWith(line)).slice(0, 8) : []);
  };
  const complete = (text: string): void => {
    // The box itself is asked and written, at once: keys that follow may not wait for a frame.
    const element = box.current!;
    const before = element.value;
    const caret = element.selectionStart;
    const start = Math.max(before.lastIndexOf("\n", caret - 1), before.lastIndexOf(" ", caret - 1)) + 1;
    element.value = before.slice(0, start) + text + before.slice(caret);
    element.focus();
    element.setSelectionRange(start + text.length, start + text.length);
    edit(element.value, start + text.length);
    setFound([]);
  };
  const run = async (perform: () => Promise<void>): Promise<void> => {
    setBusy(true);
    try {
      await perform();
    } catch (error) {
      setAnswer({ error, of: file });
    }
    setBusy(false);
  };
  const review = (): Promise<void> =>
    run(async () => {
      const plan = await post<Plan>("/v1/plan", { file, source: "job.yaml" });
      key.current = crypto.randomUUID();
      setAnswer({ plan, of: file });
    });
  const submit = (): Promise<void> =>
    run(async () => {
      const done = await post<{ ids: string[]; warnings: string[] }>("/v1/jobs", { file, source: "job.yaml" }, { "Idempotency-Key": key.current });
      for (const text of done.warnings) notify(text);
      notify(`submitted ${done.ids.join(", ")}`);
      go(`/jobs/${done.ids[0]}?tab=explain`);
    });
  const isReviewed = answer.of === file;
  return (
    <div class="grid plan-grid">
      <Card title="1 · Job file">
        <div class="editor">
          <textarea
            ref={box}
            data-filter
            aria-label="job file"
            spellcheck={false}
            autocapitalize="off"
            value={file}
            rows={Math.min(28, Math.max(14, file.split("\n").length + 1))}
            onInput={(event) => edit(event.currentTarget.value, event.currentTarget.selectionStart)}
            onKeyDown={(event) => {
              if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) void review();
              if (event.key === "Tab" && found.length && !event.shiftKey) {
                event.preventDefault();
                complete(found[0]![0]);
              }
              if (event.key === "Escape") setFound([]);
            }}
          />
          {found.length ? (
            <ul class="completions" aria-label="completions; Tab takes the first">
              {found.map(([text, meaning]) => (
                <li key={text}>
                  <button type="button" onClick={() => complete(text)}>
                    <b>{text.split(":")[0]}</b> <span class="quiet">{meaning}</span>
                  </button>
                </li>
              ))}
            </ul>
          ) : null}
        </div>
        <div class="buttons">
          <span class="quiet small-text">Ctrl-Enter reviews; every key is in the manual under job file.</span>
          <span class="spring" />
          <button type="button" class={isReviewed ? "" : "primary"} disabled={isBusy || !file.trim()} onClick={() => void review()}>
            Review
          </button>
        </div>
      </Card>
      <Card title="2 · Review">
        {answer.error ? <Refusal error={answer.error} /> : null}
        {answer.plan ? (
          <>
            {isReviewed ? null : <p class="warn">! The file was changed since; review it again.</p>}
            <PlanOutcome plan={answer.plan} />
            <div class="buttons">
              <span class="spring" />
              <button type="button" class="primary" disabled={isBusy || !isReviewed || answer.plan.outcome === "never"} onClick={() => void submit()}>
                Submit
              </button>
            </div>
            <DecisionCard decision={answer.plan.decision} title="In detail" isBrief command="tercio plan job.yaml" />
          </>
        ) : answer.error ? null : (
          <Empty title="Nothing reviewed yet">The review runs the scheduler that decides, on the cluster as it is now. It changes nothing.</Empty>
        )}
        <Command text={`tercio submit - <<'END'\n${file}END`} />
      </Card>
    </div>
  );
}
