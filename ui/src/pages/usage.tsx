// Who used how much, what of it counted, and what did it cost?

import type { JSX } from "preact";
import { get } from "../api";
import { hours, number, percent, quote, usd } from "../format";
import { param } from "../router";
import { SiteChoice } from "../site";
import { now_s } from "../store";
import { type Column, Table } from "../table";
import type { Use, UseReport } from "../types";
import { CLASSES, UseFacts, Waterfall, WaterfallBar } from "../waterfall";
import { Bar, Card, Choice, Empty, JobLink, Loading, Refusal, usePolled } from "../widgets";

const DAY_S = 86_400;
const MS_PER_HOUR = 3_600_000;
const REPORT_MS = 60_000;

function columns(by: string, hasTotal: number): Column<Use>[] {
  return [
    { key: "key", title: { user: "User", queue: "Queue", job: "Job" }[by] ?? by, value: (row) => row.key, cell: (row) => (by === "job" ? <JobLink id={row.key} /> : <b>{row.key}</b>) },
    { key: "bar", title: "Where it went", file: "goodput_ratio", value: (row) => row.goodput_ratio ?? 0, cell: (row) => <WaterfallBar use={row} label={row.key} /> },
    { key: "allocated", title: "Allocated", align: "end", file: "allocated_h", value: (row) => row.allocated_ms / MS_PER_HOUR, cell: (row) => hours(row.allocated_ms) },
    { key: "share", title: "Of all", align: "end", hide: 2, value: (row) => row.allocated_ms / (hasTotal || 1), cell: (row) => percent(row.allocated_ms / (hasTotal || 1)) },
    { key: "goodput", title: "Goodput", align: "end", hide: 2, value: (row) => row.goodput_ratio ?? "", cell: (row) => percent(row.goodput_ratio) },
    { key: "wasted", title: "Wasted", align: "end", hide: 2, file: "wasted_h", value: (row) => row.wasted_ms / MS_PER_HOUR, cell: (row) => hours(row.wasted_ms) },
    { key: "queued", title: "Waited", align: "end", hide: 1, file: "queued_h", value: (row) => row.queued_ms / MS_PER_HOUR, cell: (row) => hours(row.queued_ms) },
    ...CLASSES.map(([key, name]): Column<Use> => ({ key: name, title: name, file: `${name}_h`, align: "end", hide: 1, value: (row) => (row[key] === null ? "unknown" : row[key]! / MS_PER_HOUR), cell: (row) => <span class="quiet">{row[key] === null ? "?" : row[key] ? hours(row[key]) : "–"}</span> })),
    { key: "energy", title: "kWh", file: "energy_kwh", align: "end", value: (row) => row.energy_kwh ?? "", cell: (row) => (row.energy_kwh === null ? <span class="quiet">–</span> : number(row.energy_kwh)) },
    { key: "cost", title: "Cost", file: "cost_usd", align: "end", value: (row) => row.cost_usd ?? "", cell: (row) => (row.cost_usd === null ? <span class="quiet">–</span> : usd(row.cost_usd)) },
    { key: "carbon", title: "kg CO₂", file: "carbon_kg", align: "end", hide: 2, value: (row) => row.carbon_kg ?? "", cell: (row) => (row.carbon_kg === null ? <span class="quiet">–</span> : number(row.carbon_kg)) },
    { key: "jobs", title: "Jobs", align: "end", hide: 2, value: (row) => row.jobs, cell: (row) => String(row.jobs) },
  ];
}

export function UsagePage(): JSX.Element {
  const by = param("of") || "queue";
  const site = param("site");
  const days = param("days");
  const since = days ? (Math.floor(now_s.peek() / DAY_S) - Number(days) + 1) * DAY_S : undefined;
  const asked = usePolled(() => get<UseReport>("/v1/report", { by, since, site: site || undefined }), [by, days, site], REPORT_MS);
  if (asked.error && !asked.value) return <Refusal error={asked.error} retry={asked.again} />;
  if (!asked.value) return <Loading what="the report" />;
  const { rows, total, capacity_ms, free_ms } = asked.value;
  const held = Math.min(total.allocated_ms, capacity_ms);
  return (
    <>
      <div class="toolbar">
        <SiteChoice />
        <Choice name="of" label="By" fallback="queue" options={[["queue", "queue"], ["user", "user"], ["job", "job"]]} />
        <Choice name="days" label="Since" options={[["", "the beginning"], ["1", "today (UTC)"], ["7", "7 days"], ["30", "30 days"]]} />
        <button type="button" class="small" onClick={asked.again}>Read again</button>
      </div>
      {total.allocated_ms ? (
        <div class="grid">
          <Card title="Where device time went">
            <Waterfall use={total} label="all" />
          </Card>
          <Card title="Sums">
            <UseFacts use={total} more={[["Jobs", String(total.jobs)]]} />
            {capacity_ms ? (
              <>
                <Bar label="capacity" total={capacity_ms} parts={[{ value: held, tone: "tone-used", name: "allocated ms" }]} />
                <p class="quiet small-text">{hours(free_ms)} of {hours(capacity_ms)} that the devices could have given were free.</p>
              </>
            ) : null}
            {total.cost_usd === null ? <p class="quiet small-text"><code>health.device_usd_per_hour</code> or <code>health.prices</code> in the server's configuration sets prices; <code>tercio health prices push</code> sends them.</p> : null}
          </Card>
        </div>
      ) : null}
      <Table name="usage" rows={[...rows]} columns={columns(by, total.allocated_ms)} id={(row) => row.key} command={`tercio report usage --by ${by}${site ? ` --site ${quote(site)}` : ""}`} empty={<Empty title="No job held a device since then" />} />
    </>
  );
}
