// Who used how much?

import type { JSX } from "preact";
import { get } from "../api";
import { number } from "../format";
import { param } from "../router";
import { now_s } from "../store";
import { type Column, Table } from "../table";
import { Bar, Choice, Empty, Loading, Refusal, useAnswer } from "../widgets";

interface Row {
  key: string;
  device_ms: Record<string, number>;
  jobs: number;
}

function hours(row: Row): number {
  return Object.values(row.device_ms).reduce((all, ms) => all + ms, 0) / 3_600_000;
}

export function UsagePage(): JSX.Element {
  const by = param("of") || "queue";
  const days = param("days");
  const since = days ? Math.floor(now_s.peek() / 86_400 - Number(days) + 1) * 86_400 : undefined;
  const asked = useAnswer(() => get<{ rows: Row[] }>("/v1/usage", { by, limit: 1000, since }), [by, days]);
  if (asked.error) return <Refusal error={asked.error} retry={asked.again} />;
  if (!asked.value) return <Loading what="usage" />;
  const rows = [...asked.value.rows].sort((a, b) => hours(b) - hours(a));
  const most = Math.max(...rows.map(hours), 1e-9);
  const total = rows.reduce((all, row) => all + hours(row), 0);
  const columns: Column<Row>[] = [
    { key: "key", title: by === "user" ? "User" : "Queue", value: (row) => row.key, cell: (row) => <b>{row.key}</b> },
    { key: "bar", title: "Share", grow: true, value: (row) => hours(row) / (total || 1), cell: (row) => <Bar label={row.key} total={most} parts={[{ value: hours(row), tone: "tone-used", name: "device hours" }]} /> },
    { key: "hours", title: "Device hours", align: "end", value: hours, cell: (row) => number(hours(row)) },
    { key: "ratio", title: "Of all", align: "end", hide: 2, value: (row) => hours(row) / (total || 1), cell: (row) => `${Math.round((100 * hours(row)) / (total || 1))}%` },
    { key: "types", title: "By type, hours", hide: 2, value: (row) => JSON.stringify(row.device_ms), cell: (row) => <span class="mono quiet">{Object.entries(row.device_ms).map(([type, ms]) => `${type}:${number(ms / 3_600_000)}`).join(" ")}</span> },
    { key: "jobs", title: "Jobs", align: "end", value: (row) => row.jobs, cell: (row) => String(row.jobs) },
  ];
  return (
    <>
      <div class="toolbar">
        <Choice name="of" label="By" fallback="queue" options={[["queue", "queue"], ["user", "user"]]} />
        <Choice name="days" label="Since" options={[["", "the beginning"], ["1", "today (UTC)"], ["7", "7 days"], ["30", "30 days"]]} />
        <button type="button" class="small" onClick={asked.again}>Read again</button>
        <span class="quiet">{number(total)} device hours in all</span>
      </div>
      <Table name="usage" rows={rows} columns={columns} id={(row) => row.key} command={`tercio usage --by ${by}`} empty={<Empty title="Nothing has run yet" />} />
    </>
  );
}
