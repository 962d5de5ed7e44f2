// Is the cluster healthy and well used? What waits, and why?

import type { JSX } from "preact";
import { get } from "../api";
import { amounts, instant, number, percent, plain, watts } from "../format";
import { href, param } from "../router";
import { isAt, sited, SiteChoice, sites, useQueues } from "../site";
import { ACTIVE, capacity, sum, WAITING } from "../state";
import { jobs, nodes, server, state } from "../store";
import type { Fleet, Job, Prices } from "../types";
import { Ago, Bar, Card, Empty, State, usePolled } from "../widgets";
import { EventList } from "./events";
import { parts } from "./queues";

const FLEET_MS = 15_000;
const PRICES_MS = 60_000;

export function Overview(): JSX.Element {
  const site = param("site");
  const machines = nodes.value.filter((node) => !site || node.site === site);
  const here = jobs.value.filter((job) => isAt(job, site));
  const use = capacity(machines);
  const waiting = here.filter((job) => WAITING.has(job.state) || (job.array?.waiting ?? 0) > 0);
  const active = here.filter((job) => ACTIVE.has(job.state));
  const other = active.filter((job) => job.state !== "running").length;
  const wanted = site ? waiting.reduce((all, job) => all + sum(job.devices), 0) : state.value.queues.filter((q) => !q.path.includes("/")).reduce((all, q) => all + sum(q.wanted), 0);
  const ill = machines.filter((node) => node.state !== "ready" || node.devices.some((d) => !d.healthy));
  const fleet = usePolled(() => get<Fleet>("/v1/fleet", { site: site || undefined }), [site], FLEET_MS).value;
  const prices = usePolled(() => get<Prices>("/v1/prices"), [], PRICES_MS).value;
  const notes = [...new Set(server.value?.notes ?? [])];
  return (
    <>
      {sites.value.length > 1 || site ? (
        <div class="toolbar">
          <SiteChoice />
        </div>
      ) : null}
      <div class="tiles">
        <Tile to="/topology" title="Devices in use" value={`${number(use.used)} of ${number(use.total)}`}>
          <Bar
            label="devices"
            total={use.total}
            parts={[
              { value: use.used, tone: "tone-used", name: "in use" },
              { value: use.out, tone: "tone-warn", name: "out of service" },
            ]}
          />
          <span class="quiet">
            {number(use.free)} free{use.out > 0.01 ? `, ${number(use.out)} out of service` : ""}
          </span>
        </Tile>
        <Tile to="/jobs?state=active" title="Jobs running" value={String(active.length)}>
          <span class="quiet">{other ? `${other} of them starting, stopping or suspended` : active.length ? "none starts, stops or is suspended" : "nothing runs now"}</span>
        </Tile>
        <Tile to="/jobs?state=waiting" title="Jobs waiting" value={String(waiting.length)}>
          <span class="quiet">for {number(wanted)} devices in all</span>
        </Tile>
        <Tile to={ill.length ? "/nodes?state=trouble" : "/nodes"} title="Nodes ready" value={`${machines.filter((n) => n.state === "ready").length} of ${machines.length}`}>
          <span class={ill.length ? "warn" : "quiet"}>{ill.length ? `! ${ill.length} in trouble` : "✓ all healthy"}</span>
        </Tile>
        {fleet ? <HealthTile of={fleet} /> : null}
        {fleet && fleet.power_w !== null ? <PowerTile of={fleet} watts_now={fleet.power_w} /> : null}
        {prices ? <PriceTile of={prices} /> : null}
      </div>
      {notes.length ? (
        <details class="server-notes">
          <summary>
            {notes.length === 1 ? "A note" : `${notes.length} notes`} of the server
          </summary>
          {notes.map((note) => (
            <p key={note}>{note}</p>
          ))}
        </details>
      ) : null}
      <div class="grid">
        <Reasons of={here} />
        <Pressure />
        <Card title="Waiting longest" more={<a href={href(sited("/jobs?state=waiting&sort=submitted"))}>all</a>}>
          {waiting.length ? (
            <ul class="lines">
              {[...waiting]
                .sort((a, b) => a.submitted_s - b.submitted_s || a.id.localeCompare(b.id))
                .slice(0, 6)
                .map((job) => (
                  <li key={job.id}>
                    <a href={href(`/jobs/${job.id}?tab=explain`)}>{job.name}</a>
                    <span class="quiet"> {job.reason || "waits for the next cycle"}</span>
                    <span class="spring" />
                    <span class="quiet">
                      {amounts(job.devices)} · <Ago at_s={job.submitted_s} />
                    </span>
                  </li>
                ))}
            </ul>
          ) : (
            <Empty title="Nothing waits" />
          )}
        </Card>
        <Card title="Nodes in trouble" more={<a href={href(sited("/nodes"))}>all nodes</a>}>
          {ill.length ? (
            <ul class="lines">
              {ill.slice(0, 6).map((node) => (
                <li key={node.name}>
                  <a href={href(`/nodes/${encodeURIComponent(node.name)}`)}>{node.name}</a> <State of={node.state} />
                  <span class="spring" />
                  <span class="quiet ellipsis">{node.cordons.map((c) => c.reason || c.owner).join(", ") || node.reason}</span>
                </li>
              ))}
            </ul>
          ) : (
            <Empty title="Every node takes work" />
          )}
        </Card>
        <Card title={site ? "What just changed, at all sites" : "What just changed"} wide more={<a href={href("/events")}>all events</a>}>
          {state.value.events.length ? (
            <EventList rows={[...state.value.events].slice(-8).reverse()} />
          ) : (
            <Empty title="Nothing has happened yet" />
          )}
        </Card>
      </div>
    </>
  );
}

function Tile({ to, title, value, children }: { to: string; title: string; value: string; children: preact.ComponentChildren }): JSX.Element {
  return (
    <a class="tile" href={href(sited(to))}>
      <span class="tile-title">{title}</span>
      <span class="tile-value">{value}</span>
      {children}
    </a>
  );
}

function HealthTile({ of }: { of: Fleet }): JSX.Element {
  const out = (["quarantined", "repairing", "probation", "suspect", "retired"] as const).filter((name) => of.health[name]);
  return (
    <Tile to="/topology?by=health" title="Health" value={`${of.health["ok"] ?? 0} of ${of.nodes} ok`}>
      <span class={out.length || of.breaker_open_s ? "warn" : "quiet"}>
        {out.length ? `! ${out.map((name) => `${of.health[name]} ${name}`).join(", ")}` : of.reporting ? `✓ ${of.reporting} report readings` : "no node reports readings"}
        {of.breaker_open_s ? " · automation is stopped" : ""}
      </span>
    </Tile>
  );
}

function PowerTile({ of, watts_now }: { of: Fleet; watts_now: number }): JSX.Element {
  return (
    <Tile to="/topology?by=power_w" title="Power of the devices" value={watts(watts_now)}>
      {of.power_limit_w ? <Bar label="power" total={of.power_limit_w} parts={[{ value: watts_now, tone: "tone-used", name: "watts" }]} /> : null}
      <span class="quiet">
        {of.utilization_ratio === null ? "" : `${percent(of.utilization_ratio)} busy`}
        {of.temperature_max_c === null ? "" : `, hottest ${of.temperature_max_c} °C`}
        {of.reporting < of.nodes ? `, ${of.reporting} of ${of.nodes} nodes` : ""}
      </span>
    </Tile>
  );
}

/** What power costs, where somebody says it or the policy asks for it. */
function PriceTile({ of }: { of: Prices }): JSX.Element | null {
  const isCarbon = of.flexible === "carbon" || of.price_usd_per_kwh === null;
  const rate = isCarbon ? of.carbon_g_per_kwh : of.price_usd_per_kwh;
  const until_s = isCarbon ? of.carbon_until_s : of.price_until_s;
  const trouble = plain(of.failure || of.warning);
  if (rate === null && !trouble && !of.source) return null;
  return (
    <Tile to="/usage" title={isCarbon && rate !== null ? "Carbon of power" : "Price of power"} value={rate === null ? "not known" : isCarbon ? `${number(rate)} g/kWh` : `${Number(rate.toPrecision(4))} USD/kWh`}>
      <span class={trouble ? "warn" : "quiet"} title={trouble || undefined}>
        {of.failure ? "! its source cannot be read" : until_s === null ? (of.warning ? "! the policy orders flexible jobs by it" : "no hour from now on is known") : <>{of.warning ? "! known only until" : "known until"} {instant(until_s)}</>}
      </span>
    </Tile>
  );
}

function Reasons({ of }: { of: Job[] }): JSX.Element {
  const counts = new Map<string, { jobs: number; devices: number }>();
  for (const job of of) {
    if (!WAITING.has(job.state)) continue;
    const reason = job.reason || "Undecided";
    const row = counts.get(reason) ?? { jobs: 0, devices: 0 };
    row.jobs += 1;
    row.devices += sum(job.devices);
    counts.set(reason, row);
  }
  const rows = [...counts].sort((a, b) => b[1].jobs - a[1].jobs || a[0].localeCompare(b[0])).slice(0, 8);
  const most = rows[0]?.[1].jobs ?? 1;
  return (
    <Card title="Why jobs wait" more={<a href={href(sited("/jobs?state=waiting"))}>all</a>}>
      {rows.length ? (
        <table class="plain">
          <tbody>
            {rows.map(([reason, row]) => (
              <tr key={reason}>
                <td>
                  <a href={href(sited(`/jobs?state=waiting&q=${encodeURIComponent(reason)}`))}>{reason}</a>
                </td>
                <td class="bar-cell">
                  <Bar label={reason} total={most} parts={[{ value: row.jobs, tone: "tone-wait", name: "jobs" }]} />
                </td>
                <td class="end">
                  {row.jobs} <span class="quiet">{row.jobs === 1 ? "job" : "jobs"}, {number(row.devices)} devices</span>
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      ) : (
        <Empty title="Nothing waits">Every job that was submitted runs or has ended.</Empty>
      )}
    </Card>
  );
}

function Pressure(): JSX.Element {
  const site = param("site");
  const rows = (useQueues().value ?? []).filter((queue) => !queue.path.includes("/")).slice(0, 8);
  const most = Math.max(1, ...rows.map((queue) => Math.max(sum(queue.used) + sum(queue.used_elsewhere) + sum(queue.wanted), sum(queue.guarantee))));
  return (
    <Card title="Queues" more={<a href={href(sited("/queues"))}>tree</a>}>
      <table class="plain">
        <tbody>
          {rows.map((queue) => (
            <tr key={queue.path}>
              <td>
                <a href={href(sited(`/jobs?queue=${encodeURIComponent(queue.path)}`))}>{queue.path}</a>
              </td>
              <td class="bar-cell">
                <Bar
                  label={queue.path}
                  total={most}
                  parts={parts(queue, site)}
                />
              </td>
              <td class="end">
                {number(sum(queue.used))} <span class="quiet">used, {number(sum(queue.wanted))} wanted</span>
              </td>
            </tr>
          ))}
        </tbody>
      </table>
      <p class="legend">
        <i class="tone-used" /> {site ? "used here" : "used"} <i class={site ? "tone-elsewhere" : "tone-borrowed"} /> {site ? "used elsewhere" : "borrowed"} <i class="tone-wanted" /> wanted
      </p>
    </Card>
  );
}
