// Devices over time: lines, a heat map by rank, and who is furthest from the others.

import type { JSX } from "preact";
import { get } from "../api";
import { bytes, instant, number, percent, watts } from "../format";
import { Plot, type Line } from "../plot";
import { href, param } from "../router";
import { HeatMap } from "../heat";
import { now_s } from "../store";
import type { DeviceSeries, Metric } from "../types";
import { Steps } from "./steps";
import { Card, Choice, Empty, Loading, Refusal, usePolled } from "../widgets";

const METRICS: [Metric, string, (value: number) => string][] = [
  ["utilization_ratio", "utilisation", percent],
  ["memory_used_bytes", "memory", bytes],
  ["power_w", "power", watts],
  ["temperature_c", "temperature", (value) => `${number(value)} °C`],
];
const LINES_MAX = 8;
const POLL_MS = 15_000;

type Row = DeviceSeries["rows"][number];

/** Readings of a job's or a node's devices; of a job its steps by rank as well. */
export function Metrics({ path, version, job }: { path: string; version: string; job?: string }): JSX.Element {
  const metric = (METRICS.find(([name]) => name === param("metric")) ?? METRICS[0]!)[0];
  const asked = usePolled(() => get<DeviceSeries>(path, { metric }), [path, metric, version], POLL_MS);
  const series = asked.value;
  if (asked.error && !series) return <Refusal error={asked.error} retry={asked.again} />;
  if (!series) return <Loading what="readings" />;
  const [, word, say] = METRICS.find(([name]) => name === series.metric)!;
  const isKnown = series.rows.some((row) => row.values.some((value) => value !== null));
  return (
    <>
      {job ? <Steps job={job} version={version} /> : null}
      <div class="toolbar readings">
        <Choice name="metric" label="Show" fallback="utilization_ratio" options={METRICS.map(([name, text]): [string, string] => [name, text])} />
        <span class="quiet small-text">the last hour, a reading every {number(series.step_s)} s{series.left_off ? `; ${series.left_off} more devices are left off` : ""}</span>
      </div>
      {isKnown ? (
        <div class="grid">
          <Card title={`${word[0]!.toUpperCase()}${word.slice(1)} over time`} wide>
            <Plot at_s={series.at_s} lines={lines(series)} say={say} word={`${word} of ${series.rows.length} devices`} isShare={series.metric === "utilization_ratio"} />
          </Card>
          <Card title="By device" wide>
            <Heat series={series} say={say} word={word} />
          </Card>
          <Apart series={series} say={say} word={word} />
        </div>
      ) : (
        <Empty title="No reading covers it">
          Readings come from <code>tercio agent</code> on each node; the server reads its own machine.
        </Empty>
      )}
    </>
  );
}

function name(row: Row): string {
  return row.task === null ? `device ${row.device}` : `rank ${row.task} · ${row.node}:${row.device}`;
}

/** A few devices are a line each; many are their middle with the least and the most. */
export function lines(series: DeviceSeries): Line[] {
  if (series.rows.length <= LINES_MAX) return series.rows.map((row) => ({ label: name(row), values: row.values }));
  const known = series.rows.filter((row) => row.values.some((value) => value !== null)).length;
  const at = (share: number): (number | null)[] =>
    series.at_s.map((_, index) => {
      const found = series.rows.map((row) => row.values[index] ?? null).filter((value): value is number => value !== null).sort((a, b) => a - b);
      // The newest step is told when most have reported: few of them are not the job.
      return found.length > 0.8 * known ? found[Math.round(share * (found.length - 1))]! : null;
    });
  return [
    { label: "highest", values: at(1) },
    { label: "median", values: at(0.5) },
    { label: "lowest", values: at(0) },
  ];
}

function Heat({ series, say, word }: { series: DeviceSeries; say: (value: number) => string; word: string }): JSX.Element {
  const found = series.rows.flatMap((row) => row.values).filter((value): value is number => value !== null);
  const isShare = series.metric === "utilization_ratio";
  const least = isShare ? 0 : found.reduce((a, b) => Math.min(a, b), Infinity);
  const most = isShare ? 1 : found.reduce((a, b) => Math.max(a, b), -Infinity);
  return (
    <HeatMap
      rows={series.rows}
      count={series.at_s.length}
      of={series}
      ratio={(row, index) => {
        const value = row.values[index];
        return value === null || value === undefined ? null : (value - least) / (most - least || 1);
      }}
      name={name}
      tell={(row, index) => {
        const value = row.values[index];
        return `${name(row)} at ${instant(series.at_s[index]!).slice(11)}: ${value === null || value === undefined ? "no reading" : say(value)}`;
      }}
      label={`${word} of each device over time, one row a device; the table below names those furthest from the others`}
      ends={[say(least), say(most)]}
      hint="each row is a device, oldest at the left"
    />
  );
}

const RECENT_S = 600;

/** Means of the last ten minutes, those furthest from the median first. */
export function apart(series: DeviceSeries, seen_s: number): { row: Row; mean: number; off: number }[] {
  const from = series.at_s.findIndex((at_s) => at_s >= seen_s - RECENT_S);
  if (from < 0) return [];
  const means = series.rows.flatMap((row) => {
    const values = row.values.slice(from).filter((value): value is number => value !== null);
    return values.length ? [{ row, mean: values.reduce((a, b) => a + b, 0) / values.length }] : [];
  });
  const middle = [...means].sort((a, b) => a.mean - b.mean)[Math.floor(means.length / 2)]?.mean ?? 0;
  return means.map((each) => ({ ...each, off: middle ? each.mean / middle - 1 : 0 })).sort((a, b) => Math.abs(b.off) - Math.abs(a.off));
}

function Apart({ series, say, word }: { series: DeviceSeries; say: (value: number) => string; word: string }): JSX.Element | null {
  const rows = apart(series, now_s.value);
  if (rows.length < 2) return null;
  return (
    <Card title="Furthest from the others" csv={`${series.subject}-${series.metric}`} rows={() => [["rank", "node", "device", "mean", "off"], ...rows.map(({ row, mean, off }) => [String(row.task ?? ""), row.node, String(row.device), String(mean), String(off)])]}>
      <table class="plain">
        <thead>
          <tr>
            <th>Device</th>
            <th class="end">Mean {word}, 10 min</th>
            <th class="end">Off the median</th>
          </tr>
        </thead>
        <tbody>
          {rows.slice(0, 8).map(({ row, mean, off }) => (
            <tr key={`${row.node}:${row.device}`}>
              <td class="nowrap">
                <a href={href(`/nodes/${encodeURIComponent(row.node)}?tab=metrics`)}>
                  {row.task === null ? "" : `rank ${row.task} · `}
                  {row.node}:{row.device}
                </a>
              </td>
              <td class="end">{say(mean)}</td>
              <td class={`end ${Math.abs(off) > 0.1 ? "warn" : "quiet"}`}>{Math.abs(off) > 0.1 ? "! " : ""}{off >= 0 ? "+" : "−"}{Math.abs(Math.round(off * 100))}%</td>
            </tr>
          ))}
        </tbody>
      </table>
      <p class="quiet small-text">In a job whose ranks wait for each other, the slow one is the one that differs.</p>
    </Card>
  );
}
