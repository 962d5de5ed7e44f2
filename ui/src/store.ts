// The page's state as signals, kept current by the stream of events.

import { computed, signal } from "@preact/signals";
import { all, frames, get, Problem, url } from "./api";
import { EMPTY, reduce, type Message, type State } from "./state";
import type { Board, EventRow, Job, Node, Queue, Server, Session } from "./types";

export const state = signal<State>(EMPTY);
export const session = signal<Session | null>(null);
export const server = signal<Server | null>(null);
/** `live`, `lost` since the stream broke, or `signed-out`. */
export const link = signal<"starting" | "live" | "lost" | "signed-out">("starting");
export const trouble = signal<string>("");
/** Seconds by which the server's clock is ahead of this one. */
const ahead_s = signal(0);
export const now_s = signal(Date.now() / 1000);

const RANK: Record<string, number> = { viewer: 0, user: 1, operator: 2, admin: 3 };

export function may(role: string): boolean {
  return (RANK[session.value?.role ?? "viewer"] ?? 0) >= (RANK[role] ?? 9);
}

export const jobs = computed(() => [...state.value.jobs.values()]);
export const nodes = computed(() => [...state.value.nodes.values()]);

export function tell(...messages: Message[]): void {
  state.value = reduce(state.value, messages);
}

const ENDED_SHOWN = 500;
const RECENT = 20;
const PAUSE_S = 0.25;
const SILENCE_MS = 40_000;

async function load(): Promise<number> {
  const facts = await get<Server>("/v1/server");
  server.value = facts;
  ahead_s.value = facts.now_s - Date.now() / 1000;
  now_s.value = facts.now_s;
  const [live, recent, machines, queues, page] = await Promise.all([
    all<Job>("/v1/jobs"),
    get<{ rows: Job[] }>("/v1/jobs", { all: true, limit: ENDED_SHOWN }),
    all<Node>("/v1/nodes", { devices: true }),
    all<Queue>("/v1/queues"),
    // Those that are kept; a journal that begins later answers with a refusal.
    get<{ rows: EventRow[] }>("/v1/events", { since: Math.max(0, facts.seq - RECENT), limit: RECENT }).catch(() => ({ rows: [] })),
  ]);
  const rows = new Map([...recent.rows, ...live].map((job) => [job.id, job]));
  const list = { kind: "lists" as const, jobs: [...rows.values()], nodes: machines, queues };
  tell({ ...list, events: page.rows.filter((row) => row.seq <= facts.seq), seq: facts.seq, now_s: facts.now_s });
  return facts.seq;
}

let stopped = new AbortController();

/** Keep the state current until the session ends. */
export async function follow(): Promise<void> {
  stopped.abort();
  const own = new AbortController();
  stopped = own;
  let isRead = false;
  let wait_ms = 500;
  while (!own.signal.aborted) {
    try {
      if (!isRead || state.value.isStale) {
        await load();
        isRead = true;
      }
      await read(own.signal);
      wait_ms = 500;
    } catch (error) {
      if (error instanceof Problem && error.status === 401) {
        link.value = "signed-out";
        return;
      }
      if (error instanceof Problem && error.status === 410) isRead = false;
      trouble.value = error instanceof Problem ? error.detail : "the connection broke";
    }
    if (own.signal.aborted) return;
    link.value = "lost";
    await new Promise((done) => setTimeout(done, wait_ms * (0.5 + Math.random())));
    wait_ms = Math.min(wait_ms * 2, 10_000);
  }
}

async function read(stop: AbortSignal): Promise<void> {
  const silent = new AbortController();
  const either = AbortSignal.any([stop, silent.signal]);
  let timer = setTimeout(() => silent.abort(), SILENCE_MS);
  try {
    const path = url("/v1/events", { since: state.value.seq, views: true, pause_s: PAUSE_S });
    for await (const found of frames(path, either)) {
      clearTimeout(timer);
      timer = setTimeout(() => silent.abort(), SILENCE_MS);
      link.value = "live";
      const messages: Message[] = [];
      for (const frame of found) {
        if (frame.name === "board") messages.push({ kind: "board", board: JSON.parse(frame.text) as Board });
        else if (frame.name === "error") throw new Problem(503, "unavailable", "the stream ended", null, null);
        else messages.push({ kind: "event", row: JSON.parse(frame.text) as EventRow });
      }
      if (messages.length) tell(...messages);
      if (state.value.isStale) await load();
    }
  } finally {
    clearTimeout(timer);
  }
}

const REASONS_MS = 30_000;
let reasonsOf = 0;

/** Why jobs wait changes with every cycle; the journal tells the first reason only. */
async function refresh(): Promise<void> {
  if (document.hidden || link.value !== "live" || reasonsOf === state.value.seq) return;
  reasonsOf = state.value.seq;
  const page = await get<{ rows: Job[] }>("/v1/jobs", { state: "queued", limit: 500 });
  tell({ kind: "reasons", jobs: page.rows });
}

setInterval(() => void refresh().catch(() => undefined), REASONS_MS);

export function leave(): void {
  stopped.abort();
  session.value = null;
  state.value = EMPTY;
  link.value = "signed-out";
}

function tick(): void {
  if (!document.hidden) now_s.value = Date.now() / 1000 + ahead_s.value;
}

setInterval(tick, 1000);
document.addEventListener("visibilitychange", tick);
