// Streams as a real server sent them: the page ends with the lists that the server had at the end.

import { describe, expect, it } from "vitest";
import recorded from "./recorded.json";
import { EMPTY, reduce, type Message } from "../src/state";
import type { EventRow, Job, Node, Queue } from "../src/types";

interface Recording {
  seq: number;
  jobs: Job[];
  nodes: Node[];
  queues: Queue[];
  rows: EventRow[];
  after: { jobs: Job[]; nodes: Node[] };
}

describe("a recorded stream", () => {
  const from = recorded as unknown as Recording;
  const lists: Message = { kind: "lists", seq: from.seq, now_s: 0, jobs: from.jobs, nodes: from.nodes, queues: from.queues };
  const end = reduce(EMPTY, [lists, ...from.rows.map((row): Message => ({ kind: "event", row }))]);

  it("ends with the jobs of the server", () => {
    // Why a job waits may change without an event; the page reads that again from time to time.
    const short = (job: Job): unknown => [job.id, job.state, job.state === "queued" ? "" : job.reason, job.devices, job.nodes, job.array];
    const mine = [...end.jobs.values()].map(short).sort();
    expect(mine).toEqual(from.after.jobs.map(short).sort());
  });

  it("ends with the devices of the server", () => {
    const short = (node: Node): unknown => [node.name, node.state, node.free, node.devices.map((device) => [device.used, [...device.jobs].sort()])];
    expect([...end.nodes.values()].map(short)).toEqual(from.after.nodes.map(short));
  });
});
