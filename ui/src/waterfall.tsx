// Where device time went: one bar, and what each class of it means.

import type { JSX } from "preact";
import { hours, percent, usd, number } from "./format";
import type { Use } from "./types";
import { Facts } from "./widgets";

type Class = "useful_ms" | "starting_ms" | "restarting_ms" | "stopping_ms" | "checkpoint_ms" | "hung_ms" | "lost_ms" | "failed_ms" | "idle_ms";

/** In the order of the bar: what served first. */
export const CLASSES: [Class, string, string][] = [
  ["useful_ms", "useful", "work that counts"],
  ["checkpoint_ms", "checkpoint", "saving progress"],
  ["starting_ms", "starting", "until the first step"],
  ["stopping_ms", "stopping", "from the order to stop until the devices were free"],
  ["restarting_ms", "restarting", "until the first step of a later attempt"],
  ["idle_ms", "idle", "under 5 % busy for a minute and longer, and no step"],
  ["hung_ms", "hung", "without progress until it was killed"],
  ["lost_ms", "lost", "work after the last checkpoint that had to be done again"],
  ["failed_ms", "failed", "the rest of jobs that failed in the end"],
];

export function WaterfallBar({ use, label }: { use: Use; label: string }): JSX.Element {
  const total = use.allocated_ms || 1;
  const text = `${label}: ${CLASSES.filter(([key]) => use[key]).map(([key, name]) => `${percent((use[key] ?? 0) / total)} ${name}`).join(", ") || "nothing"}`;
  return (
    <span class="bar" role="img" aria-label={text} title={text}>
      {CLASSES.map(([key, name]) => (use[key] ? <i key={key} class={`fill use-${name}`} style={{ width: `${(100 * use[key]!) / total}%` }} /> : null))}
    </span>
  );
}

export function Waterfall({ use, label }: { use: Use; label: string }): JSX.Element {
  const total = use.allocated_ms || 1;
  return (
    <>
      <WaterfallBar use={use} label={label} />
      <table class="plain waterfall">
        <tbody>
          {CLASSES.filter(([key]) => use[key] || key === "useful_ms" || use[key] === null).map(([key, name, meaning]) => (
            <tr key={key}>
              <td>
                <i class={`swatch use-${name}`} aria-hidden="true" /> {name}
              </td>
              <td class="end">{hours(use[key])}</td>
              <td class="end quiet">{use[key] === null ? "–" : percent(use[key]! / total)}</td>
              <td class="quiet hide-2">{use[key] === null ? "no readings cover it: unknown is not zero" : meaning}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </>
  );
}

export function UseFacts({ use, more = [] }: { use: Use; more?: [string, JSX.Element | string][] }): JSX.Element {
  return (
    <Facts
      rows={[
        ["Allocated", `${hours(use.allocated_ms)} of devices`],
        ["Goodput", use.goodput_ratio === null ? "unknown" : percent(use.goodput_ratio)],
        ["Wasted", hours(use.wasted_ms)],
        ["Waited", `${hours(use.queued_ms)} of devices asked for`],
        ...more,
        ["Energy", use.energy_kwh === null ? "not measured" : `${number(use.energy_kwh)} kWh (${use.energy_source})`],
        ["Cost", use.cost_usd === null ? (use.energy_kwh === null ? "not known" : "no price covers it") : usd(use.cost_usd)],
        ["CO₂", use.carbon_kg === null ? (use.energy_kwh === null ? "not known" : "no carbon of power covers it") : `${number(use.carbon_kg)} kg`],
      ]}
    />
  );
}
