// Where a node stands, its faults by serial number, what was done and why.

import type { JSX } from "preact";
import { bytes, instant, percent, plain, watts, zoneName } from "../format";
import type { Node, NodeHealth } from "../types";
import { Ago, Card, Command, Empty, Facts, JobLink, NodeLinks, State } from "../widgets";

const SEVERITY: Record<string, string> = { fatal: "state-down", error: "state-down", warning: "state-queued" };

export function HealthTab({ node, health }: { node: Node; health: NodeHealth }): JSX.Element {
  const faults = [...health.faults].reverse();
  const moves = [...health.moves].reverse();
  return (
    <div class="grid">
      <Card title="Where it stands">
        <Facts
          rows={[
            ["Health", <State of={health.state} />],
            ["Since", health.since_s ? <Ago at_s={health.since_s} /> : "always"],
            ...(health.reason ? [["Why", plain(health.reason)] as [string, string]] : []),
            ...(health.said ? [["Asks for", plain(health.said)] as [string, string]] : []),
            ...(health.replaced_by ? [["Replaced by", <NodeLinks names={[health.replaced_by]} />] as [string, JSX.Element]] : []),
            ["Driver", health.driver || "no fresh reading"],
            ...Object.entries(health.notes).map(([name, note]): [string, string] => [name, plain(note)]),
          ]}
        />
        <Command text={`tercio node show ${node.name}`} />
      </Card>
      <Card title="What was done">
        {moves.length || health.repairs.length ? (
          <ol class="story">
            {moves.map((move) => (
              <li key={`${move.at_s}${move.finish}`} class={move.finish === "quarantined" ? "bad" : undefined}>
                <span class="when" title={`${instant(move.at_s)} ${zoneName()}`}><Ago at_s={move.at_s} /></span>
                <span>
                  {move.start} → <b>{move.finish}</b> by {move.actor.replace(/^user:/, "")}: {plain(move.reason)}
                </span>
              </li>
            ))}
            {[...health.repairs].reverse().map((repair) => (
              <li key={`${repair.at_s}${repair.action}`} class={repair.succeeded === false ? "bad" : undefined}>
                <span class="when"><Ago at_s={repair.at_s} /></span>
                <span>
                  {repair.action.replaceAll("_", " ")} for {repair.cause.filter(Boolean).join(" ")}: {repair.succeeded === true ? "it helped" : repair.succeeded === false ? "it did not help" : "under way"}
                </span>
              </li>
            ))}
          </ol>
        ) : (
          <Empty title="Nothing had to be done" />
        )}
      </Card>
      <Card title="Faults" wide csv={faults.length ? "faults" : undefined}>
        {faults.length ? (
          <div class="scroll" tabIndex={0} role="region" aria-label="table of faults">
            <table class="plain">
              <thead>
                <tr>{["Code", "Severity", "Meaning", "Asks for", "Device", "Serial", "Job", "Seen", "Cleared"].map((title) => <th key={title}>{title}</th>)}</tr>
              </thead>
              <tbody>
                {faults.map((fault) => (
                  <tr key={fault.id} title={fault.evidence ? plain(fault.evidence) : undefined}>
                    <td class="mono nowrap">{fault.fault_class === "reading" ? "" : `${fault.fault_class} `}{fault.code}</td>
                    <td><span class={`state ${SEVERITY[fault.severity] ?? "quiet"}`}>{fault.severity}</span></td>
                    <td class="prose">{plain(fault.meaning ?? "")}</td>
                    <td>{fault.action.replaceAll("_", " ")}</td>
                    <td>{fault.device ?? "node"}</td>
                    <td class="mono">{fault.serial ?? "–"}</td>
                    <td>{fault.job ? <JobLink id={fault.job} /> : "–"}</td>
                    <td class="nowrap"><Ago at_s={fault.at_s} /></td>
                    <td class="nowrap">{fault.cleared_at_s ? <Ago at_s={fault.cleared_at_s} /> : <span class="warn">! stands</span>}</td>
                  </tr>
                ))}
              </tbody>
            </table>
          </div>
        ) : (
          <Empty title="No fault is known" />
        )}
      </Card>
      <Now health={health} />
    </div>
  );
}

function Now({ health }: { health: NodeHealth }): JSX.Element | null {
  const rows = Object.entries(health.devices);
  if (!rows.length) return null;
  return (
    <Card title="Devices now" wide csv="devices-now">
      <div class="scroll" tabIndex={0} role="region" aria-label="table of readings">
        <table class="plain">
          <thead>
            <tr>{["Nr", "Serial", "Busy", "Memory", "Power", "Heat", "Clock", "ECC errors"].map((title) => <th key={title}>{title}</th>)}</tr>
          </thead>
          <tbody>
            {rows.map(([index, device]) => (
              <tr key={index}>
                <td>{index}</td>
                <td class="mono">{device.serial ?? "–"}</td>
                <td>{percent(device.utilization_ratio)}</td>
                <td>{device.memory_used_bytes === undefined ? "–" : `${bytes(device.memory_used_bytes)}${device.memory_total_bytes ? ` of ${bytes(device.memory_total_bytes)}` : ""}`}</td>
                <td>{device.power_w === undefined ? "–" : `${watts(device.power_w)}${device.power_limit_w ? ` of ${watts(device.power_limit_w)}` : ""}`}</td>
                <td>{device.temperature_c === undefined ? "–" : `${device.temperature_c} °C`}</td>
                <td>{device.sm_clock_mhz === undefined ? "–" : `${device.sm_clock_mhz} MHz`}</td>
                <td>{device.ecc_uncorrected_count ?? "–"}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </Card>
  );
}
