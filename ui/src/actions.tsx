// Changes: each says what it will do and its command, is asked once, and shows as pending.

import { signal } from "@preact/signals";
import type { ComponentChildren, JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { send, url } from "./api";
import { amounts, quote } from "./format";
import { may, state, tell } from "./store";
import type { Job, Node } from "./types";
import { Command, JobLink, Refusal } from "./widgets";

export interface Action {
  title: string;
  verb: string;
  /** What will happen, in a sentence, and whom it stops. */
  plan: ComponentChildren;
  command: string;
  isDanger?: boolean;
  hasReason?: boolean;
  calls: { subject?: string; method: string; path: string }[];
  done?: () => void;
}

const asked = signal<Action | null>(null);
export const notices = signal<{ id: number; text: string; isBad: boolean }[]>([]);
let counter = 0;

export function notify(text: string, isBad = false): void {
  const id = ++counter;
  notices.value = [...notices.value.slice(-2), { id, text, isBad }];
  setTimeout(() => {
    notices.value = notices.value.filter((each) => each.id !== id);
  }, 6000);
}

export function ask(action: Action): void {
  asked.value = action;
}

/** A dialog over the page; Escape closes it, focus goes back where it was. */
export function Dialog({ title, close, children }: { title: string; close: () => void; children: ComponentChildren }): JSX.Element {
  const box = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    const element = box.current!;
    element.showModal();
    return () => element.close();
  }, []);
  return (
    <dialog ref={box} aria-label={title} onCancel={(event) => (event.preventDefault(), close())} onClick={(event) => event.target === box.current && close()}>
      <div class="dialog">{children}</div>
    </dialog>
  );
}

export function ActionDialog(): JSX.Element | null {
  const action = asked.value;
  return action ? <Asked key={action.title + action.command} action={action} /> : null;
}

function Asked({ action }: { action: Action }): JSX.Element {
  const [reason, setReason] = useState("");
  const [error, setError] = useState<unknown>(null);
  const [isBusy, setBusy] = useState(false);
  const close = (): void => {
    asked.value = null;
  };
  const command = action.hasReason && reason ? `${action.command} --reason ${quote(reason)}` : action.command;
  const perform = async (): Promise<void> => {
    setBusy(true);
    setError(null);
    for (const call of action.calls) {
      if (call.subject) tell({ kind: "asked", subject: call.subject, verb: action.verb, at_ms: Date.now() });
      try {
        await send(call.method, url(call.path), call.method === "DELETE" ? undefined : action.hasReason ? { reason } : {});
      } catch (refusal) {
        if (call.subject) tell({ kind: "refused", subject: call.subject });
        setError(refusal);
        setBusy(false);
        return;
      }
    }
    close();
    notify(`${action.verb}: done`);
    action.done?.();
  };
  return (
    <Dialog title={action.title} close={close}>
      <form onSubmit={(event) => (event.preventDefault(), void perform())}>
        <h2>{action.title}</h2>
        <div class="plan">{action.plan}</div>
        {action.hasReason ? (
          <label class="field">
            <span>Reason, for the story (may stay empty)</span>
            <input value={reason} maxLength={1000} onInput={(event) => setReason(event.currentTarget.value)} />
          </label>
        ) : null}
        <p class="quiet small-text">The same on the command line:</p>
        <Command text={command} />
        {error ? <Refusal error={error} /> : null}
        <div class="buttons">
          <button type="button" onClick={close}>
            Keep as it is
          </button>
          <button type="submit" class={action.isDanger ? "danger" : "primary"} disabled={isBusy}>
            {isBusy ? "Asking…" : action.title}
          </button>
        </div>
      </form>
    </Dialog>
  );
}

function Stops({ jobs }: { jobs: Job[] }): JSX.Element {
  const running = jobs.filter((job) => ["running", "starting", "suspended"].includes(job.state));
  return (
    <ul>
      {running.slice(0, 8).map((job) => (
        <li key={job.id}>
          <JobLink id={job.id} /> <span class="quiet">of {job.user}, holds {amounts(job.devices)}</span>
        </li>
      ))}
      {running.length > 8 ? <li>and {running.length - 8} more</li> : null}
    </ul>
  );
}

interface JobVerb {
  verb: string;
  title: string;
  states: string[];
  isDanger?: boolean;
  hasReason?: boolean;
  says: (jobs: Job[]) => ComponentChildren;
}

const JOB_VERBS: JobVerb[] = [
  {
    verb: "cancel",
    title: "Cancel",
    states: ["held", "queued", "starting", "running", "suspended"],
    isDanger: true,
    hasReason: true,
    says: (jobs) => {
      const running = jobs.filter((job) => job.nodes.length);
      return running.length ? (
        <>
          <p>
            Stops for good, after its grace, and frees what it holds. This cannot be undone:
          </p>
          <Stops jobs={running} />
        </>
      ) : (
        <p>Takes {jobs.length === 1 ? "it" : "them"} out of the queue for good. Nothing that runs is stopped.</p>
      );
    },
  },
  { verb: "hold", title: "Hold", states: ["queued"], says: () => <p>Keeps it from starting until it is released. Nothing is stopped.</p> },
  { verb: "release", title: "Release", states: ["held"], says: () => <p>Lets it start again when its turn comes. Nothing is stopped.</p> },
  { verb: "suspend", title: "Suspend", states: ["running"], says: () => <p>Pauses its processes. It keeps its devices, so nothing else can start there.</p> },
  { verb: "resume", title: "Resume", states: ["suspended"], says: () => <p>Lets its processes go on.</p> },
  {
    verb: "requeue",
    title: "Requeue",
    states: ["running", "starting", "suspended", "succeeded", "failed", "cancelled"],
    isDanger: true,
    says: (jobs) => (
      <>
        <p>Runs again from the queue, as a new attempt. What runs now is stopped after its grace:</p>
        <Stops jobs={jobs} />
      </>
    ),
  },
];

export function jobActions(jobs: Job[]): { title: string; isDanger: boolean; start: () => void }[] {
  if (!may("user") || !jobs.length) return [];
  return JOB_VERBS.flatMap((verb) => {
    const able = jobs.filter((job) => verb.states.includes(job.state));
    if (!able.length) return [];
    const names = able.length === 1 ? able[0]!.id : `${able.length} jobs`;
    const start = (): void =>
      ask({
        title: `${verb.title} ${names}`,
        verb: verb.verb,
        plan: verb.says(able),
        command: `tercio ${verb.verb} ${able.map((job) => job.id).join(" ")}`,
        isDanger: verb.isDanger ?? false,
        hasReason: verb.hasReason ?? false,
        calls: able.map((job) => ({ subject: job.id, method: "POST", path: `/v1/jobs/${job.id}/${verb.verb}` })),
      });
    return [{ title: jobs.length > 1 ? `${verb.title} ${able.length}` : verb.title, isDanger: verb.isDanger ?? false, start }];
  });
}

export function nodeActions(nodes: Node[]): { title: string; isDanger: boolean; start: () => void }[] {
  if (!may("operator") || !nodes.length) return [];
  const make = (verb: string, title: string, able: Node[], plan: ComponentChildren, isDanger = false) => {
    if (!able.length) return [];
    const names = able.length === 1 ? able[0]!.name : `${able.length} nodes`;
    const start = (): void =>
      ask({
        title: `${title} ${names}`,
        verb,
        plan,
        command: able.map((node) => `tercio node ${verb} ${quote(node.name)}`).join(" && "),
        isDanger,
        hasReason: verb !== "uncordon",
        calls: able.map((node) => ({ subject: node.name, method: "POST", path: `/v1/nodes/${encodeURIComponent(node.name)}/${verb}` })),
      });
    return [{ title: nodes.length > 1 ? `${title} ${able.length}` : title, isDanger, start }];
  };
  const open = nodes.filter((node) => node.cordons.length === 0);
  const shut = nodes.filter((node) => node.cordons.length > 0);
  const full = nodes.filter((node) => !node.cordons.some((cordon) => cordon.is_draining));
  const stopped = [...new Set(full.flatMap((node) => node.jobs))].flatMap((id) => state.value.jobs.get(id) ?? []);
  return [
    ...make("cordon", "Cordon", open, <p>No new work goes there. What runs goes on.</p>),
    ...make("uncordon", "Uncordon", shut, <p>Lifts your own cordon: new work may go there again. Cordons of others stay.</p>),
    ...make(
      "drain",
      "Drain",
      full,
      stopped.length ? (
        <>
          <p>Cordons it, and stops and requeues what runs there, each with its grace:</p>
          <Stops jobs={stopped} />
        </>
      ) : (
        <p>Cordons it. Nothing runs there, so nothing is stopped.</p>
      ),
      true,
    ),
  ];
}

const FROM: Record<string, string[]> = {
  quarantine: ["ok", "suspect", "probation"],
  probation: ["quarantined", "retired"],
  return: ["suspect", "quarantined", "repairing", "probation"],
  retire: ["quarantined", "repairing"],
};

/** What a person may say about the health of a node. */
export function healthActions(node: Node, health: string): { title: string; isDanger: boolean; start: () => void }[] {
  if (!may("operator")) return [];
  const stopped = node.jobs.flatMap((id) => state.value.jobs.get(id) ?? []);
  const plans: Record<string, ComponentChildren> = {
    quarantine: stopped.length ? (
      <>
        <p>Takes it out as ill: nothing new goes there, and what runs there is stopped and requeued, each with its grace:</p>
        <Stops jobs={stopped} />
      </>
    ) : (
      <p>Takes it out as ill: nothing new goes there. Nothing runs there, so nothing is stopped.</p>
    ),
    probation: <p>Tries it again: new work may go there, and the next fault takes it out at once. Nothing is stopped.</p>,
    return: <p>Calls it healthy: new work may go there, as far as no other cordon keeps it away. Nothing is stopped.</p>,
    retire: <p>Takes it out for good. Nothing is stopped; only a person brings it back, by a probation.</p>,
  };
  return Object.entries(FROM).flatMap(([verb, from]) => {
    if (!from.includes(health)) return [];
    const title = verb[0]!.toUpperCase() + verb.slice(1);
    const start = (): void =>
      ask({
        title: `${title} ${node.name}`,
        verb,
        plan: plans[verb],
        command: `tercio node ${verb} ${quote(node.name)}`,
        isDanger: verb === "quarantine" || verb === "retire",
        hasReason: true,
        calls: [{ subject: node.name, method: "POST", path: `/v1/nodes/${encodeURIComponent(node.name)}/${verb}` }],
      });
    return [{ title, isDanger: verb === "quarantine" || verb === "retire", start }];
  });
}

export function Buttons({ of }: { of: { title: string; isDanger: boolean; start: () => void }[] }): JSX.Element | null {
  return of.length ? (
    <div class="actions">
      {of.map((each) => (
        <button key={each.title} type="button" class={each.isDanger ? "danger-quiet" : ""} onClick={each.start}>
          {each.title}
        </button>
      ))}
    </div>
  ) : null;
}

export function Notices(): JSX.Element {
  return (
    <div class="notices" role="status" aria-live="polite">
      {notices.value.map((each) => (
        <div key={each.id} class={each.isBad ? "notice bad" : "notice"}>
          {each.text}
        </div>
      ))}
    </div>
  );
}
