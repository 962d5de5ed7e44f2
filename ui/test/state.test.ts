import { describe, expect, it } from "vitest";
import { capacity, EMPTY, EVENTS_KEPT, reduce, type Message, type State } from "../src/state";
import type { EventRow, Job, Node } from "../src/types";

function job(id: string, more: Partial<Job> = {}): Job {
  return {
    id, name: "train", queue: "research", user: "ana", tenant: "default", state: "queued", reason: "", message: "", priority: 0, attempt: 0, task_count: 1,
    devices: { H100: 1 }, nodes: [], submitted_s: 1, started_s: null, ended_s: null, limit_s: null, exit_code: null, start: null, array: null, labels: {},
    sites: [], ...more,
  };
}

function node(name: string, held: string[] = [], more: Partial<Node> = {}): Node {
  const devices = Array.from({ length: 4 }, (_, index) => ({ index, type: "H100", uuid: "", memory_bytes: 0, healthy: true, used: held[index] ? 1 : 0, jobs: held[index] ? [held[index]!] : [] }));
  return {
    name, site: "sim", state: "ready", reason: "", cordons: [], pool: "H100", total: { H100: 4 }, free: { H100: 4 - held.filter(Boolean).length }, cpus: 8, cpus_free: 8,
    memory_bytes: 0, memory_free_bytes: 0, labels: {}, devices, jobs: [...new Set(held.filter(Boolean))], ...more,
  };
}

function event(seq: number, type: string, more: Partial<EventRow> = {}, fields: Record<string, unknown> = {}): Message {
  return { kind: "event", row: { seq, event: { type, at_s: seq, ...fields }, ...more } };
}

const lists: Message = { kind: "lists", seq: 5, now_s: 5, jobs: [job("job-1")], nodes: [node("n1")], queues: [] };
const loaded = reduce(EMPTY, [lists]);

describe("reduce", () => {
  it("takes the rows that an event carries", () => {
    const after = reduce(loaded, [event(6, "JobPlaced", { jobs: [job("job-1", { state: "starting" })], nodes: [node("n1", ["job-1"])] })]);
    expect(after.jobs.get("job-1")?.state).toBe("starting");
    expect(after.nodes.get("n1")?.free).toEqual({ H100: 3 });
    expect(after.seq).toBe(6);
  });

  it("leaves the state before as it was", () => {
    const before = loaded.jobs.get("job-1");
    reduce(loaded, [event(6, "JobPlaced", { jobs: [job("job-1", { state: "running" })] })]);
    expect(loaded.jobs.get("job-1")).toBe(before);
    expect(loaded.seq).toBe(5);
  });

  it("passes over events that the lists were read after, so that a repeated stream changes nothing", () => {
    const old = event(5, "JobPlaced", { jobs: [job("job-1", { state: "running" })] });
    expect(reduce(loaded, [old]).jobs.get("job-1")?.state).toBe("queued");
    const next = event(6, "JobPlaced", { jobs: [job("job-1", { state: "running" })] });
    const once = reduce(loaded, [next]);
    expect(reduce(once, [next, old])).toEqual(once);
  });

  it("ends the same for one batch and for one event at a time", () => {
    const messages = [
      event(6, "JobSubmitted", { jobs: [job("job-2")] }, { job_id: "job-2" }),
      event(7, "JobPlaced", { jobs: [job("job-2", { state: "running", nodes: ["n1"] })], nodes: [node("n1", ["job-2"])] }, { job_id: "job-2" }),
      event(8, "TaskExited", { jobs: [job("job-2", { state: "succeeded" })], nodes: [node("n1")] }, { job_id: "job-2" }),
    ];
    const together = reduce(loaded, messages);
    const single = messages.reduce<State>((state, message) => reduce(state, [message]), loaded);
    expect(single).toEqual(together);
    expect(together.jobs.get("job-2")?.state).toBe("succeeded");
  });

  it("shows a change as pending until its event arrives", () => {
    const asked = reduce(loaded, [{ kind: "asked", subject: "job-1", verb: "cancel", at_ms: 1 }]);
    expect(asked.pending.get("job-1")?.verb).toBe("cancel");
    expect(reduce(asked, [event(6, "NodeCordoned", {}, { node: "n1" })]).pending.size).toBe(1);
    expect(reduce(asked, [event(6, "JobCancelRequested", {}, { job_id: "job-1" })]).pending.size).toBe(0);
    expect(reduce(asked, [{ kind: "refused", subject: "job-1" }]).pending.size).toBe(0);
  });

  it("takes an element of an array that is gone off its node", () => {
    const half = node("n1", ["job-8.0", "job-8.0", "job-9"]);
    const held = job("job-8.0", { devices: { H100: 2 }, nodes: ["n1"] });
    const before = reduce(EMPTY, [{ kind: "lists", seq: 5, now_s: 5, jobs: [held], nodes: [half], queues: [] }]);
    const after = reduce(before, [event(6, "TaskExited", { gone: ["job-8.0"] }, { job_id: "job-8.0" })]);
    expect(after.jobs.has("job-8.0")).toBe(false);
    expect(after.nodes.get("n1")?.jobs).toEqual(["job-9"]);
    expect(after.nodes.get("n1")?.free).toEqual({ H100: 3 });
    expect(after.nodes.get("n1")?.devices.map((device) => device.used)).toEqual([0, 0, 1, 0]);
  });

  it("keeps the other holder's part of a shared device", () => {
    const shared = node("n1", [], { free: { H100: 3 }, jobs: ["a.0", "b"] });
    shared.devices[0] = { ...shared.devices[0]!, used: 1, jobs: ["a.0", "b"] };
    const held = job("a.0", { devices: { H100: 0.5 }, nodes: ["n1"] });
    const before = reduce(EMPTY, [{ kind: "lists", seq: 5, now_s: 5, jobs: [held], nodes: [shared], queues: [] }]);
    const after = reduce(before, [event(6, "TaskExited", { gone: ["a.0"] })]);
    expect(after.nodes.get("n1")?.devices[0]).toMatchObject({ used: 0.5, jobs: ["b"] });
    expect(after.nodes.get("n1")?.free).toEqual({ H100: 3.5 });
  });

  it("forgets what the server forgot", () => {
    const after = reduce(loaded, [event(6, "JobsForgotten", {}, { job_ids: ["job-1"] }), event(7, "NodeRemoved", {}, { node: "n1" })]);
    expect(after.jobs.size).toBe(0);
    expect(after.nodes.size).toBe(0);
  });

  it("asks for the lists anew when an event does not tell all that changed", () => {
    expect(reduce(loaded, [event(6, "NodeLost", {}, { node: "n1" })]).isStale).toBe(true);
    expect(reduce(loaded, [event(6, "JobPlaced", { is_stale: true })]).isStale).toBe(true);
    expect(reduce(reduce(loaded, [event(6, "NodeLost")]), [lists]).isStale).toBe(false);
  });

  it("keeps a bounded number of events, however long the page is open", () => {
    let state = loaded;
    for (let seq = 6; seq < 6 + 5 * EVENTS_KEPT; seq += 1) state = reduce(state, [event(seq, "JobWaited", {}, { job_id: "job-1" })]);
    expect(state.events.length).toBe(EVENTS_KEPT);
    expect(state.events.at(-1)?.seq).toBe(5 + 5 * EVENTS_KEPT);
    expect(state.jobs.size).toBe(1);
  });

  it("takes only reasons from a list that may be older", () => {
    const running = reduce(loaded, [event(6, "JobPlaced", { jobs: [job("job-1", { state: "running" })] })]);
    const list: Message = { kind: "reasons", jobs: [job("job-1", { reason: "Order", user: "eve" })] };
    expect(reduce(running, [list]).jobs.get("job-1")?.reason).toBe("");
    expect(reduce(loaded, [list]).jobs.get("job-1")).toMatchObject({ reason: "Order", user: "ana" });
  });

  it("never lets older rows replace newer ones", () => {
    const newer = reduce(loaded, [event(6, "JobPlaced", { jobs: [job("job-1", { state: "running" })] })]);
    expect(reduce(newer, [{ kind: "jobs", jobs: [job("job-1"), job("job-0")] }]).jobs.get("job-1")?.state).toBe("running");
  });
});

describe("capacity", () => {
  it("counts what is free only where work may go", () => {
    const found = capacity([node("n1", ["a"]), node("n2", ["b", "b"], { state: "cordoned" })]);
    expect(found).toEqual({ total: 8, used: 3, free: 3, out: 2 });
  });
});
