// Which machines are in trouble?

import type { JSX } from "preact";
import { useMemo, useState } from "preact/hooks";
import { Buttons, healthActions, nodeActions } from "../actions";
import { get } from "../api";
import { amounts, bytes, number, quote } from "../format";
import { href, param } from "../router";
import { SiteChoice } from "../site";
import { sum } from "../state";
import { nodes, state } from "../store";
import { type Column, Table } from "../table";
import type { Node, NodeHealth } from "../types";
import { Ago, Bar, Card, Choice, Command, Empty, Facts, Filter, JobLink, lazy, Loading, Pending, Refusal, State, Tabs, usePolled } from "../widgets";
import { HealthTab } from "./health";
import { StoryTab } from "./job";

const Metrics = lazy(async () => (await import("./metrics")).Metrics);

function Cells({ node }: { node: Node }): JSX.Element {
  const used = node.devices.filter((device) => device.used > 0).length;
  if (node.devices.length > 16) {
    return <Bar label={node.name} total={node.devices.length} parts={[{ value: used, tone: "tone-used", name: "in use" }]} />;
  }
  return (
    <span class="cells" role="img" aria-label={`${used} of ${node.devices.length} devices in use`}>
      {node.devices.map((device) => (
        <i key={device.index} class={`cell${device.healthy ? "" : " ill"}${device.used >= 1 ? " other" : device.used > 0 ? " part" : ""}`} title={`${device.index}: ${device.jobs.join(", ") || "free"}`} />
      ))}
    </span>
  );
}

const COLUMNS: Column<Node>[] = [
  { key: "node", title: "Node", value: (node) => node.name, cell: (node) => <a href={href(`/nodes/${encodeURIComponent(node.name)}`)}>{node.name}</a> },
  {
    key: "state",
    title: "State",
    value: (node) => node.state,
    cell: (node) => (
      <>
        <State of={node.state} />
        {node.devices.some((device) => !device.healthy) ? <span class="warn"> ! device</span> : null} <Pending subject={node.name} />
      </>
    ),
  },
  { key: "devices", title: "Devices", value: (node) => sum(node.total) - sum(node.free), cell: (node) => <Cells node={node} /> },
  { key: "free", title: "Free", value: (node) => sum(node.free), cell: (node) => <span class="mono">{amounts(node.free)}</span> },
  { key: "cpus", title: "Free cores", align: "end", hide: 1, value: (node) => node.cpus_free, cell: (node) => `${number(node.cpus_free)} of ${number(node.cpus)}` },
  { key: "memory", title: "Free memory", align: "end", hide: 1, value: (node) => node.memory_free_bytes, cell: (node) => bytes(node.memory_free_bytes) },
  { key: "jobs", title: "Jobs", align: "end", hide: 2, value: (node) => node.jobs.length, cell: (node) => <a href={href(`/jobs?q=${encodeURIComponent(node.name)}`)}>{node.jobs.length}</a> },
  { key: "pool", title: "Pool", hide: 1, value: (node) => node.pool, cell: (node) => node.pool },
  { key: "site", title: "Site", hide: 1, value: (node) => node.site, cell: (node) => node.site },
  {
    key: "why",
    title: "Why",
    grow: true,
    hide: 2,
    value: (node) => node.cordons.map((c) => `${c.owner} ${c.reason ?? ""}`).join("; ") || node.reason,
    cell: (node) => <span class="quiet">{node.cordons.map((c) => `${c.owner}${c.reason ? `: ${c.reason}` : ""}`).join("; ") || node.reason || "–"}</span>,
  },
];

export function NodesPage(): JSX.Element {
  const [selected, setSelected] = useState<Set<string>>(new Set());
  const which = param("state");
  const q = param("q").toLowerCase();
  const site = param("site");
  const rows = useMemo(
    () =>
      nodes.value.filter((node) => {
        if (which === "trouble" && node.state === "ready" && node.devices.every((device) => device.healthy)) return false;
        if (which === "free" && !sum(node.free)) return false;
        if (which && !["trouble", "free"].includes(which) && node.state !== which) return false;
        if (site && node.site !== site) return false;
        return !q || `${node.name} ${node.pool} ${Object.entries(node.labels).map(([k, v]) => `${k}=${v}`).join(" ")}`.toLowerCase().includes(q);
      }),
    [nodes.value, which, q, site],
  );
  const chosen = rows.filter((node) => selected.has(node.name));
  return (
    <>
      <div class="toolbar">
        <Filter label="Filter nodes" hint="name, pool, rack=r1  ( / )" />
        <Choice
          name="state"
          label="Show"
          options={[
            ["", "all"],
            ["trouble", "in trouble"],
            ["free", "with free devices"],
            ["ready", "ready"],
            ["cordoned", "cordoned"],
            ["draining", "draining"],
            ["down", "down"],
          ]}
        />
        <SiteChoice />
        {chosen.length ? <Buttons of={nodeActions(chosen)} /> : null}
      </div>
      <Table
        name="nodes"
        rows={rows}
        columns={COLUMNS}
        id={(node) => node.name}
        open={(node) => `/nodes/${encodeURIComponent(node.name)}`}
        selected={selected}
        onSelect={setSelected}
        command={`tercio node list${site ? ` --site ${quote(site)}` : ""}`}
        empty={
          q || which || site ? (
            <Empty title="No node matches" />
          ) : (
            <Empty title="No node has reported yet">
              <code>tercio doctor</code> looks for causes.
            </Empty>
          )
        }
      />
    </>
  );
}

export function NodePage({ name }: { name: string }): JSX.Element {
  const node = state.value.nodes.get(name);
  if (!node) return state.value.isLoaded ? <Empty title={`There is no node ${name}`} /> : <Loading what={name} />;
  return <OneNode node={node} />;
}

const HEALTH_MS = 20_000;

function OneNode({ node }: { node: Node }): JSX.Element {
  const { name } = node;
  const tab = param("tab") || "devices";
  const path = `/v1/nodes/${encodeURIComponent(name)}`;
  const asked = usePolled(() => get<NodeHealth>(`${path}/health`), [name, node.state, node.cordons.length, state.value.pending.has(name)], HEALTH_MS);
  const health = asked.value;
  const standing = health?.faults.filter((fault) => !fault.cleared_at_s).length ?? 0;
  return (
    <>
      <div class="headline">
        <h1>{node.name}</h1>
        <State of={node.state} reason={node.reason} />
        {health && health.state !== "ok" ? <a href={href(`/nodes/${encodeURIComponent(name)}?tab=health`)}><State of={health.state} /></a> : null}
        {standing ? <a class="warn" href={href(`/nodes/${encodeURIComponent(name)}?tab=health`)}>! {standing} {standing === 1 ? "fault stands" : "faults stand"}</a> : null}
        <Pending subject={node.name} />
        <span class="spring" />
        <Buttons of={[...nodeActions([node]), ...healthActions(node, health?.state ?? "")]} />
      </div>
      {node.cordons.map((cordon) => (
        <p class="message" key={cordon.owner}>
          {cordon.is_draining ? "Draining" : "Cordoned"} by {cordon.owner}
          {cordon.reason ? `: ${cordon.reason}` : ""} <Ago at_s={cordon.since_s} />
        </p>
      ))}
      <Tabs name={tab} names={["Devices", "Health", "Metrics", "Story"]} />
      {tab === "health" ? (
        health ? <HealthTab node={node} health={health} /> : asked.error ? <Refusal error={asked.error} retry={asked.again} /> : <Loading what="its health" />
      ) : tab === "metrics" ? (
        <Metrics path={`${path}/series`} version={name} />
      ) : tab === "story" ? (
        <StoryTab path={`/v1/nodes/${encodeURIComponent(name)}/story`} version={`${node.state}${node.jobs.join()}`} command={`tercio story node/${name}`} />
      ) : (
        <div class="grid">
          <Card title="Devices" wide csv={`${name}-devices`}>
            <div class="scroll" tabIndex={0} role="region" aria-label="table of devices">
              <table class="plain">
                <thead>
                  <tr>
                    {["Nr", "Type", "Health", "In use", "Jobs", "Memory"].map((title) => (
                      <th key={title}>{title}</th>
                    ))}
                  </tr>
                </thead>
                <tbody>
                  {node.devices.map((device) => (
                    <tr key={device.index}>
                      <td>{device.index}</td>
                      <td>{device.type}</td>
                      <td>{device.healthy ? <span class="state state-ready">✓ healthy</span> : <span class="state state-down">✕ ill</span>}</td>
                      <td class="bar-cell"><Bar label={`device ${device.index}`} total={1} parts={[{ value: device.used, tone: "tone-used", name: "used" }]} /></td>
                      <td>{device.jobs.length ? device.jobs.map((job) => <span key={job}><JobLink id={job} /> </span>) : <span class="quiet">free</span>}</td>
                      <td class="quiet">{device.memory_bytes ? bytes(device.memory_bytes) : "–"}</td>
                    </tr>
                  ))}
                </tbody>
              </table>
            </div>
            {node.devices.length ? null : <Empty title="It has no accelerators" />}
          </Card>
          <Card title="Facts">
            <Facts
              rows={[
                ["Site", node.site],
                ["Pool", node.pool || "–"],
                ["Free", <span class="mono">{amounts(node.free)} of {amounts(node.total)}</span>],
                ["Cores", `${number(node.cpus_free)} free of ${number(node.cpus)}`],
                ["Memory", `${bytes(node.memory_free_bytes)} free of ${bytes(node.memory_bytes)}`],
                ...Object.entries(node.labels).map(([key, value]): [string, string] => [key, value]),
              ]}
            />
            <Command text={`tercio node show ${name}`} />
          </Card>
        </div>
      )}
    </>
  );
}
