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
  /** Where it runs or ran, else where it may start; none: anywhere. */
  sites: string[];
  spec?: unknown;
  tasks?: Task[];
  predicted?: Prediction | null;
}

export interface Prediction {
  devices: string;
  tasks: number;
  why: string;
  expected_s: number | null;
  low_s: number | null;
  high_s: number | null;
  cost_usd: number | null;
  actual_s: number | null;
  ratio: number | null;
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
  used_elsewhere: Amounts;
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
  sized?: Sized | null;
}

export interface Sized {
  choices: { devices: string; part: string; per_task: number; tasks: number; expected_s?: number | null; low_s?: number | null; high_s?: number | null; cost_usd?: number | null; why?: string }[];
  catalogue: string;
  calibration: string;
  site_ratio?: number;
  site_jobs?: number;
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
  nodes: string[];
  reason: string;
}

export interface Gap {
  type: string;
  devices: number;
  nodes: string[];
  from_s: number;
  until_s: number;
  device_hours: number;
  tasks: number;
  per_task: number;
  limit_s: number;
  reservation: string | null;
  job: string | null;
  site: string;
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

export interface Use {
  key: string;
  jobs: number;
  allocated_ms: number;
  starting_ms: number;
  restarting_ms: number;
  stopping_ms: number;
  checkpoint_ms: number;
  hung_ms: number;
  lost_ms: number;
  failed_ms: number;
  idle_ms: number | null;
  useful_ms: number;
  wasted_ms: number;
  queued_ms: number;
  unobserved_ms: number;
  goodput_ratio: number | null;
  energy_source: string;
  energy_kwh: number | null;
  cost_usd: number | null;
  carbon_kg: number | null;
}

export interface UseReport {
  by: string;
  since_s: number;
  until_s: number;
  rows: Use[];
  total: Use;
  capacity_ms: number;
  free_ms: number;
}

export interface RankUse {
  task: number;
  node: string;
  device: number;
  utilization_ratio: number | null;
  memory_used_bytes: number | null;
  memory_total_bytes: number | null;
  power_w: number | null;
  temperature_c: number | null;
  throttle_mask: number | null;
}

export interface JobUse {
  job: string;
  use: Use;
  step_count: number;
  ranks: RankUse[];
}

export interface DeviceSeries {
  subject: string;
  metric: Metric;
  at_s: number[];
  rows: { task: number | null; node: string; device: number; values: (number | null)[] }[];
  left_off: number;
  step_s: number;
}

export interface StepRow {
  rank: number;
  task: number;
  node: string;
  own_s: (number | null)[];
  ratio: number | null;
  is_slow: boolean;
}

export interface StepGroup {
  name: string;
  first: number[];
  per_column: number;
  rows: StepRow[];
  left_off: number;
}

export interface JobSteps {
  job: string;
  attempt: number;
  has_own: boolean;
  groups: StepGroup[];
}

export interface QueuePastRow {
  path: string;
  used: (number | null)[];
  entitled: (number | null)[];
  wanted: (number | null)[];
  decayed_use: (number | null)[];
  running: (number | null)[];
  waiting: (number | null)[];
}

export interface QueuePast {
  at_s: number[];
  rows: QueuePastRow[];
  step_s: number;
}

export type Metric = "utilization_ratio" | "memory_used_bytes" | "power_w" | "temperature_c";

export interface Prices {
  source: string;
  failure: string;
  flexible: string;
  warning: string;
  price_usd_per_kwh: number | null;
  carbon_g_per_kwh: number | null;
  price_until_s: number | null;
  carbon_until_s: number | null;
}

export interface Fleet {
  health: Record<string, number>;
  nodes: number;
  reporting: number;
  devices: number;
  power_w: number | null;
  power_limit_w: number | null;
  utilization_ratio: number | null;
  temperature_max_c: number | null;
  breaker_open_s: number | null;
}

export interface DeviceColumn {
  metric: Metric;
  nodes: Record<string, (number | null)[]>;
  health: Record<string, string>;
}

export interface Telemetry {
  index: number;
  serial?: string;
  fault?: string;
  utilization_ratio?: number;
  memory_used_bytes?: number;
  memory_total_bytes?: number;
  power_w?: number;
  power_limit_w?: number;
  temperature_c?: number;
  sm_clock_mhz?: number;
  ecc_uncorrected_count?: number;
}

export interface NodeHealth {
  node: string;
  state: string;
  since_s: number;
  reason: string;
  said: string;
  replaced_by: string;
  faults: { id: string; at_s: number; fault_class: string; code: string; severity: string; action: string; meaning?: string; serial?: string; device?: number; locus?: string; job?: string; evidence?: string; cleared_at_s?: number }[];
  moves: { at_s: number; start: string; finish: string; reason: string; actor: string }[];
  repairs: { at_s: number; action: string; cause: string[]; succeeded?: boolean | null }[];
  driver: string;
  devices: Record<string, Telemetry>;
  notes: Record<string, string>;
}
