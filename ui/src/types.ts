// The bodies of the API (`tercio.model.views`) as far as the page reads them.

export type Amounts = Record<string, number>;

export interface Estimate {
  at_s: number;
  low_s: number;
  high_s: number;
  label: string;
}

export interface Job {
  id: string;
  name: string;
  queue: string;
  user: string;
  tenant: string;
  state: string;
  reason: string;
  message: string;
  priority: number;
  attempt: number;
  task_count: number;
  devices: Amounts;
  nodes: string[];
  submitted_s: number;
  started_s: number | null;
  ended_s: number | null;
  limit_s: number | null;
  exit_code: number | null;
  start: Estimate | null;
  array: { size: number; waiting: number; active: number; succeeded: number; failed: number; cancelled: number } | null;
  labels: Record<string, string>;
  spec?: unknown;
  tasks?: Task[];
}

export interface Task {
  task: number;
  group: string;
  state: string;
  node: string;
  devices: number[];
  started_s: number | null;
  ended_s: number | null;
  exit_code: number | null;
  message: string;
}

export interface Device {
  index: number;
  type: string;
  uuid: string;
  memory_bytes: number;
  healthy: boolean;
  used: number;
  jobs: string[];
}

export interface Node {
  name: string;
  site: string;
  state: string;
  reason: string;
  cordons: { owner: string; reason?: string; since_s?: number; is_draining?: boolean }[];
  pool: string;
  total: Amounts;
  free: Amounts;
  cpus: number;
  cpus_free: number;
  memory_bytes: number;
  memory_free_bytes: number;
  labels: Record<string, string>;
  devices: Device[];
  jobs: string[];
}

export interface Queue {
  path: string;
  guarantee: Amounts;
  limit: Amounts;
  weight: number;
  used: Amounts;
  entitled: Amounts;
  borrowed: Amounts;
  lent: Amounts;
  wanted: Amounts;
  decayed_use: number;
  running: number;
  waiting: number;
  preemptible: boolean;
  order: string;
}

export interface Change {
  what: string;
  to: string | number;
  starts?: string;
}

export interface Decision {
  job: string;
  outcome: string;
  reason: string;
  message: string;
  wanted?: Amounts;
  free?: Amounts;
  best?: { node?: string; domain?: string; free?: Amounts };
  holders?: { job: string; devices: Amounts; ends_s?: number }[];
  excluded?: { by: string; nodes: number }[];
  change?: Change;
  position?: number;
  start?: Estimate;
  nodes?: string[];
}

export interface Plan {
  outcome: "now" | "later" | "never";
  decision: Decision;
  evicts: string[];
  changes: Record<string, string>;
  warnings: string[];
}

export interface StoryLine {
  seq: number;
  at_s: number;
  kind: string;
  text: string;
}

export interface AnyEvent {
  type: string;
  at_s: number;
  job_id?: string;
  node?: string;
  by?: string;
  message?: string;
  [field: string]: unknown;
}

export interface EventRow {
  seq: number;
  event: AnyEvent;
  jobs?: Job[];
  nodes?: Node[];
  gone?: string[];
  is_stale?: boolean;
}

export interface Board {
  seq: number;
  now_s: number;
  queues: Queue[];
}

export interface Session {
  user: string;
  tenant: string;
  role: string;
}

export interface Page<T> {
  rows: T[];
  next: string | null;
}

export interface Server {
  version: string;
  epoch: number;
  started_s: number;
  now_s: number;
  seq: number;
  sites: string[];
  jobs_waiting: number;
  jobs_active: number;
  nodes: number;
  notes: string[];
}

export interface Reservation {
  name: string;
  queue: string | null;
  user: string | null;
  type: string | null;
  devices: number;
  shape: Amounts;
  from_s: number;
  duration_s: number;
  every_s: number | null;
  until_s: number | null;
  is_open: boolean;
  window: [number, number] | null;
}

export interface Topology {
  levels: string[];
  per_task: Amounts;
  rows: { level: string; name: string; nodes: number; up: number; total: Amounts; free: Amounts; fits: Amounts }[];
  largest: { level: string; type: string; tasks: number; domain: string }[];
}

export interface PolicyPlan {
  version: number;
  evicts: { job: string; name: string; queue: string; user: string; for_job: string | null; message: string }[];
  starts: { job: string; name: string; queue: string; user: string; when: string; nodes: string[] }[];
  queues: { path: string; before: Amounts | null; after: Amounts | null }[];
  warnings: string[];
}

export interface Token {
  token_id: string;
  user: string;
  tenant: string;
  role: string;
  groups: string[];
  expires_s: number | null;
  secret: string | null;
}
