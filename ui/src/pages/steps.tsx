// Who is slow in a job, and since which step: own time of each rank against the median rank.

import type { JSX } from "preact";
import { get } from "../api";
import { number } from "../format";
import { HeatMap } from "../heat";
import { href } from "../router";
import type { JobSteps, StepGroup, StepRow } from "../types";
import { Card, Command, Empty, Loading, Refusal, usePolled } from "../widgets";

const POLL_MS = 10_000;
const LISTED = 8;
/** The ends of the scale, against the median rank. */
const [LEAST, MOST] = [0.95, 1.3];

export function middles(group: StepGroup): (number | null)[] {
  return group.first.map((_, index) => {
    const known = group.rows.map((row) => row.own_s[index] ?? null).filter((value): value is number => value !== null).sort((a, b) => a - b);
    return known.length ? known[Math.floor(known.length / 2)]! : null;
  });
}

function percent(ratio: number): string {
  const off = Number(((ratio - 1) * 100).toFixed(1));
  return `${off > 0 ? "+" : off < 0 ? "−" : ""}${number(Math.abs(off))}%`;
}
const seconds = (value: number): string => (value < 1 ? `${Math.round(value * 1000)} ms` : `${number(Number(value.toFixed(2)))} s`);

/** Every rank and column, not only the slowest. */
function table(group: StepGroup): string[][] {
  const rows = group.rows.flatMap((row) => group.first.map((first, index) => [String(row.rank), row.node, String(first), String(row.own_s[index] ?? "")]));
  return [["rank", "node", "step", "own_s"], ...rows];
}

export function Steps({ job, version }: { job: string; version: string }): JSX.Element {
  const asked = usePolled(() => get<JobSteps>(`/v1/jobs/${encodeURIComponent(job)}/steps`), [job, version], POLL_MS);
  const steps = asked.value;
  if (asked.error && !steps) return <Refusal error={asked.error} retry={asked.again} />;
  if (!steps) return <Loading what="its steps" />;
  return (
    <div class="grid">
      {steps.groups.length ? (
        steps.groups.map((group) => <Group key={group.name} steps={steps} group={group} />)
      ) : (
        <Card title="Steps by rank" wide>
          <Empty title="It has marked no step">
            A job that appends a line such as <code>1767225600.250 step 12 own 0.41</code> to the file in <code>$TERCIO_MARKS</code> after each step, or calls <code>tercio.step(12, own_s=0.41)</code>, shows here which rank is slow.
          </Empty>
        </Card>
      )}
    </div>
  );
}

function Group({ steps, group }: { steps: JobSteps; group: StepGroup }): JSX.Element {
  const middle = middles(group);
  const ranks = [...group.rows].sort((a, b) => Number(b.is_slow) - Number(a.is_slow) || (b.ratio ?? 0) - (a.ratio ?? 0));
  const last = group.first.at(-1)! + group.per_column - 1;
  const ratio = (row: StepRow, index: number): number | null => {
    const [own_s, usual] = [row.own_s[index] ?? null, middle[index] ?? null];
    return own_s === null || !usual ? null : own_s / usual;
  };
  const title = `Steps by rank${group.name ? `, ${group.name}` : ""}`;
  const slow = group.rows.filter((row) => row.is_slow);
  return (
    <>
      <Card title={title} wide>
        <p class={slow.length ? "message" : "quiet small-text"}>
          {slow.length
            ? `! ${slow.length === 1 ? `rank ${slow[0]!.rank} on ${slow[0]!.node} is` : `${slow.length} ranks are`} slower than the others: in a job whose ranks wait for each other, all of them wait.`
            : "✓ No rank is slower than its peers."}
        </p>
        <HeatMap
          rows={group.rows}
          count={group.first.length}
          of={steps}
          ratio={(row, index) => {
            const found = ratio(row, index);
            return found === null ? null : (found - LEAST) / (MOST - LEAST);
          }}
          name={(row) => `${row.rank} · ${row.node}`}
          isMarked={(row) => row.is_slow}
          tell={(row, index) => {
            const [found, own_s] = [ratio(row, index), row.own_s[index]];
            const first = group.first[index]!;
            const which = group.per_column > 1 ? `steps ${first} to ${first + group.per_column - 1}` : `step ${first}`;
            return `rank ${row.rank} on ${row.node}, ${which}: ${found === null ? "not told" : `${seconds(own_s!)}, ${percent(found)}`}`;
          }}
          label={`own time of ${group.rows.length} ranks in steps ${group.first[0]} to ${last} against the median rank; the table below names the slowest`}
          ends={[percent(LEAST), `${percent(MOST)} off the median rank`]}
          hint={`each row is a rank; steps ${group.first[0]} to ${last} from the left${group.per_column > 1 ? `, ${group.per_column} to a column` : ""}`}
        />
        {steps.has_own ? null : <p class="quiet small-text">The ranks do not tell their own time, so the wait for the others is in it: in a synchronous job all look alike. <code>own</code> after the step says it.</p>}
        {group.left_off ? <p class="quiet small-text">{group.left_off} ranks that are not slow are left off.</p> : null}
        <Command text={`tercio show ${steps.job} --steps`} />
      </Card>
      <Card title="Slowest ranks" csv={`${steps.job}-steps`} rows={() => table(group)}>
        <table class="plain">
          <thead>
            <tr>
              <th>Rank</th>
              <th>Node</th>
              <th class="end">Newest step</th>
              <th class="end">Off the median</th>
            </tr>
          </thead>
          <tbody>
            {ranks.slice(0, LISTED).map((row) => {
              const newest = row.own_s.findLast((value) => value !== null);
              return (
                <tr key={row.rank}>
                  <td>rank {row.rank}</td>
                  <td>
                    <a href={href(`/nodes/${encodeURIComponent(row.node)}?tab=metrics`)}>{row.node}</a>
                  </td>
                  <td class="end">{newest === null || newest === undefined ? "–" : seconds(newest)}</td>
                  <td class={`end ${row.is_slow ? "warn" : "quiet"}`}>
                    {row.is_slow ? "! " : ""}
                    {row.ratio === null ? "–" : percent(row.ratio)}
                  </td>
                </tr>
              );
            })}
          </tbody>
        </table>
      </Card>
    </>
  );
}
