import { expect, test } from "vitest";
import { SAMPLE, wished } from "../src/draft";

const GAP = { devices: "H100:8", tasks: "2", limit: "3h19m" };

test("the sample takes all that a gap says", () => {
  expect(wished(SAMPLE, GAP)).toBe(SAMPLE.replace("tasks: 1", "tasks: 2").replace('"1"', '"H100:8"').replace("limit: 2h", "limit: 3h19m"));
  expect(wished(wished(SAMPLE, GAP), { devices: "L4:1", tasks: "1", limit: "2h" })).toBe(SAMPLE.replace('"1"', '"L4:1"'));
});

test("a file of one's own keeps all but its limit", () => {
  const own = (time: string): string => `name: x\nper_task: {devices: 4}\n${time}run: |\n  limit: no\n`;
  for (const [before, after] of [
    ["time: {limit: 8h}\n", "time: {limit: 3h19m}\n"],
    ["time: {expected: 6h, limit: 8h}\n", "time: {expected: 6h, limit: 3h19m}\n"],
    ["time:\n  expected: 6h\n  limit: 8h  # long\n", "time:\n  expected: 6h\n  limit: 3h19m  # long\n"],
  ] as const) {
    expect(wished(own(before), GAP)).toBe(own(after));
  }
  expect(wished(own(""), GAP)).toBe(`${own("")}time: {limit: 3h19m}\n`);
  const unread = own("time: {expected: 6h}\n");
  expect(wished(unread, GAP)).toBe(unread);
});

test("nothing but a limit, a count and a type is taken from an address", () => {
  expect(wished(SAMPLE, { devices: '8"\nrun: x', tasks: "1\nx: y", limit: "1h}\nrun: x" })).toBe(SAMPLE);
});
