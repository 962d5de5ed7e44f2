// What the page knows: a pure function of the lists it read first and the events since.

import type { Board, EventRow, Job, Node, Queue } from "./types";

export const EVENTS_KEPT = 200;

export interface Pending {
  verb: string;
  since_ms: number;
}

export interface State {
  seq: number;
  now_s: number;
  jobs: ReadonlyMap<string, Job>;
  nodes: ReadonlyMap<string, Node>;
  queues: readonly Queue[];
  events: readonly EventRow[];
  pending: ReadonlyMap<string, Pending>;
  /** Something changed that no event tells whole: the lists are to be read again. */
  isStale: boolean;
  isLoaded: boolean;
}

export type Message =
  | { kind: "event"; row: EventRow }
  | { kind: "board"; board: Board }
  | { kind: "lists"; seq: number; now_s: number; jobs: Job[]; nodes: Node[]; queues: Queue[]; events?: EventRow[] }
  | { kind: "jobs"; jobs: Job[] }
  | { kind: "reasons"; jobs: Job[] }
  | { kind: "asked"; subject: string; verb: string; at_ms: number }
  | { kind: "refused"; subject: string };

export const EMPTY: State = {
  seq: 0,
  now_s: 0,
  jobs: new Map(),
  nodes: new Map(),
  queues: [],
  events: [],
  pending: new Map(),
  isStale: false,
  isLoaded: false,
};

// After these, objects changed that the event does not carry.
const WIDE = new Set(["NodeLost", "NodeFenced", "RepairTimedOut", "ServerStarted"]);

/** Return the state after some messages. Each map is copied at most once. */
export function reduce(state: State, messages: readonly Message[]): State {
  const next = { ...state };
  let jobs: Map<string, Job> | null = null;
  let nodes: Map<string, Node> | null = null;
  let pending: Map<string, Pending> | null = null;
  let events: EventRow[] | null = null;
  const settle = (subject: string | undefined): void => {
    if (subject !== undefined && (pending ?? state.pending).has(subject)) {
      pending ??= new Map(state.pending);
      pending.delete(subject);
    }
  };
  for (const message of messages) {
    switch (message.kind) {
      case "lists":
        jobs = new Map(message.jobs.map((job) => [job.id, job]));
        nodes = new Map(message.nodes.map((node) => [node.name, node]));
        next.queues = message.queues;
        // What happened before the page was opened, to have something to show.
        if (!state.isLoaded) events = [...(message.events ?? [])];
        next.seq = message.seq;
        next.now_s = message.now_s;
        next.isStale = false;
        next.isLoaded = true;
        break;
      case "jobs":
        jobs ??= new Map(state.jobs);
        for (const job of message.jobs) if (!jobs.has(job.id)) jobs.set(job.id, job);
        break;
      case "reasons":
        // Only why they wait: what else the list says may be older than the events.
        jobs ??= new Map(state.jobs);
        for (const { id, reason, message: text, start } of message.jobs) {
          const job = jobs.get(id);
          if (job !== undefined && WAITING.has(job.state)) jobs.set(id, { ...job, reason, message: text, start });
        }
        break;
      case "board":
        next.queues = message.board.queues;
        next.now_s = Math.max(next.now_s, message.board.now_s);
        break;
      case "asked":
        pending ??= new Map(state.pending);
        pending.set(message.subject, { verb: message.verb, since_ms: message.at_ms });
        break;
      case "refused":
        settle(message.subject);
        break;
      case "event": {
        const { row } = message;
        if (row.seq <= next.seq) break;
        next.seq = row.seq;
        next.now_s = Math.max(next.now_s, row.event.at_s);
        events ??= [...state.events];
        events.push({ seq: row.seq, event: row.event });
        if (row.jobs?.length) {
          jobs ??= new Map(state.jobs);
          for (const job of row.jobs) jobs.set(job.id, job);
        }
        if (row.nodes?.length) {
          nodes ??= new Map(state.nodes);
          for (const node of row.nodes) nodes.set(node.name, node);
        }
        if (row.event.type === "NodeRemoved" && row.event.node !== undefined) {
          nodes ??= new Map(state.nodes);
          nodes.delete(row.event.node);
        }
        if (row.event.type === "JobsForgotten") {
          jobs ??= new Map(state.jobs);
          for (const id of row.event["job_ids"] as string[]) jobs.delete(id);
        }
        for (const id of row.gone ?? []) {
          const job = (jobs ?? state.jobs).get(id);
          if (job === undefined) continue;
          jobs ??= new Map(state.jobs);
          jobs.delete(id);
          nodes ??= new Map(state.nodes);
          release(nodes, job);
        }
        settle(row.event.job_id);
        settle(row.event.job_id?.split(".")[0]);
        settle(row.event.node);
        if (row.is_stale === true || WIDE.has(row.event.type)) next.isStale = true;
        break;
      }
    }
  }
  if (events !== null) next.events = events.slice(-EVENTS_KEPT);
  if (jobs !== null) next.jobs = jobs;
  if (nodes !== null) next.nodes = nodes;
  if (pending !== null) next.pending = pending;
  return next;
}

/** Take a job that is gone off its nodes; every task of it held the same share of each device. */
function release(nodes: Map<string, Node>, job: Job): void {
  const held = job.nodes.flatMap((name) => nodes.get(name)?.devices.filter((device) => device.jobs.includes(job.id)) ?? []);
  const share = held.length ? sum(job.devices) / held.length : 0;
  for (const name of job.nodes) {
    const node = nodes.get(name);
    if (node === undefined || !node.jobs.includes(job.id)) continue;
    const free = { ...node.free };
    const devices = node.devices.map((device) => {
      if (!device.jobs.includes(job.id)) return device;
      const jobs = device.jobs.filter((id) => id !== job.id);
      const used = jobs.length ? Math.max(0, device.used - share) : 0;
      if (device.healthy) free[device.type] = (free[device.type] ?? 0) + device.used - used;
      return { ...device, jobs, used };
    });
    nodes.set(name, { ...node, devices, free, jobs: node.jobs.filter((id) => id !== job.id) });
  }
}

export const WAITING = new Set(["queued", "held"]);
export const ACTIVE = new Set(["starting", "running", "suspended", "stopping"]);
export const ENDED = new Set(["succeeded", "failed", "cancelled"]);

export function sum(amounts: Record<string, number>): number {
  let total = 0;
  for (const value of Object.values(amounts)) total += value;
  return total;
}

/** Devices in use, free to be used, out of service, and all, of some nodes. */
export function capacity(nodes: Iterable<Node>): { total: number; used: number; free: number; out: number } {
  const found = { total: 0, used: 0, free: 0, out: 0 };
  for (const node of nodes) {
    const total = sum(node.total);
    const used = node.devices.length ? node.devices.reduce((all, d) => all + d.used, 0) : total - sum(node.free);
    found.total += total;
    found.used += used;
    if (node.state === "ready") found.free += sum(node.free);
  }
  found.out = Math.max(0, found.total - found.used - found.free);
  return found;
}
