// Where is free capacity, and how fragmented is it?

import type { JSX } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { get } from "../api";
import { amounts, number, quote } from "../format";
import { go, href, param } from "../router";
import { SiteChoice, sited } from "../site";
import { nodes, state } from "../store";
import type { DeviceColumn, Node, Topology } from "../types";
import { Card, Choice, Command, Empty, Loading, Refusal, useAnswer, usePolled } from "../widgets";
import { heat, MEASURED, shade } from "../shades";

const GAP = 2;
const PAD = 6;
const TITLE = 18;

interface Spot {
  node: Node;
  x: number;
  y: number;
  columns: number;
  width: number;
  height: number;
}

interface Region {
  name: string;
  x: number;
  y: number;
  width: number;
  height: number;
}

interface Placed {
  spots: Spot[];
  regions: Region[];
  height: number;
  cell: number;
}

/** Lay nodes out by rack, racks in rows as wide as there is room. */
export function layout(machines: readonly Node[], level: string, width: number): Placed {
  const cell = machines.length <= 64 ? 20 : machines.length <= 300 ? 14 : 10;
  const groups = new Map<string, Node[]>();
  for (const node of machines) {
    const name = node.labels[level] ?? (level === "node" ? "" : `no ${level}`);
    (groups.get(name) ?? groups.set(name, []).get(name)!).push(node);
  }
  const spots: Spot[] = [];
  const regions: Region[] = [];
  let x = 0;
  let y = 0;
  let row = 0;
  for (const [name, members] of [...groups].sort((a, b) => a[0].localeCompare(b[0], undefined, { numeric: true }))) {
    const most = Math.max(1, ...members.map((node) => node.devices.length));
    const columns = Math.min(most, most <= 8 ? 4 : 8);
    const w = columns * (cell + GAP) + PAD;
    const h = Math.ceil(most / columns) * (cell + GAP) + PAD;
    const across = Math.max(1, Math.min(members.length, Math.floor((width - 2 * PAD) / w), Math.ceil(Math.sqrt(members.length) * 1.6)));
    const regionWidth = Math.max(across * w + PAD, 70);
    const regionHeight = Math.ceil(members.length / across) * h + PAD + TITLE;
    if (x > 0 && x + regionWidth > width) {
      x = 0;
      y += row + PAD * 2;
      row = 0;
    }
    regions.push({ name, x, y, width: regionWidth, height: regionHeight });
    members.forEach((node, index) => {
      spots.push({ node, columns, x: x + PAD + (index % across) * w, y: y + TITLE + Math.floor(index / across) * h, width: w - PAD, height: h - PAD });
    });
    x += regionWidth + PAD * 2;
    row = Math.max(row, regionHeight);
  }
  return { spots, regions, height: y + row + 2, cell };
}

function hue(text: string): number {
  let value = 0;
  for (const c of text) value = (value * 31 + c.charCodeAt(0)) % 360;
  return (value * 47) % 360;
}

type Paint = (node: Node, index: number) => string;

function painter(by: string, style: CSSStyleDeclaration, job: string, column?: DeviceColumn): Paint {
  const tone = (name: string): string => style.getPropertyValue(name).trim();
  const [free, used, out, own] = [tone("--cell-free"), tone("--cell-used"), tone("--cell-out"), tone("--cell-own")];
  const isDark = style.getPropertyValue("--dark").trim() === "1";
  return (node, index) => {
    const device = node.devices[index]!;
    if (job) return device.jobs.includes(job) ? own : device.used > 0 ? used : free;
    const range = MEASURED[by];
    if (range) {
      const value = column?.metric === by ? column.nodes[node.name]?.[index] : undefined;
      return value === undefined || value === null ? free : shade(heat(range, value));
    }
    const health = column?.health[node.name];
    if (by === "health" && health) return health === "suspect" || health === "probation" ? tone("--cell-warn") : out;
    if (by === "health") return !device.healthy || node.state === "down" ? out : node.state === "ready" ? tone("--cell-ok") : tone("--cell-warn");
    if (by === "queue" || by === "job") {
      const holder = device.jobs[0];
      if (holder === undefined) return node.state === "down" || !device.healthy ? out : free;
      const key = by === "job" ? holder : (state.value.jobs.get(holder)?.queue ?? "hidden");
      return `hsl(${hue(key)} ${isDark ? "55% 58%" : "60% 45%"})`;
    }
    if (!device.healthy || node.state === "down") return out;
    if (device.used <= 0) return free;
    return device.used < 1 ? tone("--cell-part") : used;
  };
}

const COLUMN_MS = 15_000;

export function TopologyPage(): JSX.Element {
  const site = param("site");
  const asked = useAnswer(() => get<Topology>("/v1/topology", { site: site || undefined }), [Math.floor(state.value.seq / 20), site]);
  const shown = useMemo(() => nodes.value.filter((node) => !site || node.site === site), [nodes.value, site]);
  const levels = asked.value?.levels.filter((level) => shown.some((node) => node.labels[level])) ?? [];
  const level = param("level") || levels.at(-1) || "node";
  const by = param("by") || "use";
  const job = param("job");
  const metric = MEASURED[by] ? by : "utilization_ratio";
  const isMeasured = metric === by || by === "health";
  const tables = useMemo(() => (asked.value ? <><Largest of={asked.value} site={site} /><Domains of={asked.value} /></> : null), [asked.value]);
  const column = usePolled(async () => (isMeasured ? get<DeviceColumn>("/v1/fleet/devices", { metric }) : undefined), [metric, isMeasured], COLUMN_MS).value;
  if (!nodes.value.length) return state.value.isLoaded ? <Empty title="No node has reported yet" /> : <Loading what="nodes" />;
  return (
    <>
      <div class="toolbar">
        <Choice name="by" label="Colour by" fallback="use" options={[["use", "use"], ["queue", "queue"], ["job", "job"], ["health", "health"], ["utilization_ratio", "utilisation"], ["temperature_c", "temperature"], ["power_w", "power"]]} />
        {levels.length > 0 ? <Choice name="level" label="Group by" fallback={levels.at(-1)!} options={levels.map((each): [string, string] => [each, each])} /> : null}
        <SiteChoice />
        {job ? <a class="chip" href={href(sited("/topology"))}>only {job} ✕</a> : null}
        <Legend by={job ? "own" : by} />
      </div>
      {MEASURED[by] && column && !Object.keys(column.nodes).length ? <p class="message">No node reports readings: <code>tercio agent</code> on each node sends them.</p> : null}
      <DeviceMap machines={shown} level={level} by={by} job={job} column={column} />
      <div class="grid">
        {asked.error ? <Refusal error={asked.error} retry={asked.again} /> : null}
        {tables}
      </div>
    </>
  );
}

function Legend({ by }: { by: string }): JSX.Element {
  const jobs = by === "queue" ? state.value.jobs : null;
  const shown = useMemo(() => [...new Set([...(jobs?.values() ?? [])].filter((job) => job.nodes.length).map((job) => job.queue))].sort(), [jobs]);
  if (by === "queue") {
    return (
      <p class="legend">
        {shown.slice(0, 8).map((queue) => (
          <span key={queue}>
            <i style={{ background: `hsl(${hue(queue)} 57% 51%)` }} /> {queue}
          </span>
        ))}
        <i class="tone-free" /> free
      </p>
    );
  }
  const range = MEASURED[by];
  if (range) {
    return (
      <p class="legend">
        {range.say(range.least)}
        {[0, 0.25, 0.5, 0.75, 1].map((part) => (
          <i key={part} style={{ background: shade(part) }} />
        ))}
        {range.say(range.most)} <i class="tone-free" /> no reading
      </p>
    );
  }
  const rows: Record<string, [string, string][]> = {
    use: [["tone-used", "in use"], ["tone-part", "shared in part"], ["tone-free", "free"], ["tone-out", "ill or down"], ["tone-none", "dashed: takes no work"]],
    health: [["tone-ok", "healthy"], ["tone-warn", "cordoned, suspect or on probation"], ["tone-out", "ill, quarantined or down"]],
    own: [["tone-own", "this job"], ["tone-used", "others"], ["tone-free", "free"]],
    job: [["tone-free", "free"], ["tone-out", "ill or down"], ["tone-none", "dashed: takes no work"]],
  };
  return (
    <p class="legend">
      {(rows[by] ?? []).map(([tone, text]) => (
        <span key={text}>
          <i class={tone} /> {text}
        </span>
      ))}
    </p>
  );
}

/** An empty map at the size it needs, with the frames of its regions. */
function blank(element: HTMLCanvasElement, placed: Placed, width: number, style: CSSStyleDeclaration): CanvasRenderingContext2D {
  const ratio = window.devicePixelRatio || 1;
  element.width = width * ratio;
  element.height = placed.height * ratio;
  element.style.width = `${width}px`;
  element.style.height = `${placed.height}px`;
  const pen = element.getContext("2d")!;
  pen.scale(ratio, ratio);
  pen.font = "11px system-ui, sans-serif";
  for (const region of placed.regions) {
    pen.strokeStyle = style.getPropertyValue("--line");
    pen.strokeRect(region.x + 0.5, region.y + 0.5, region.width - 1, region.height - 1);
    pen.fillStyle = style.getPropertyValue("--quiet");
    pen.fillText(region.name, region.x + PAD, region.y + 12, region.width - PAD);
  }
  return pen;
}

function drawNode(pen: CanvasRenderingContext2D, spot: Spot, node: Node, cell: number, paint: Paint, style: CSSStyleDeclaration): void {
  if (node.state !== "ready") {
    pen.strokeStyle = style.getPropertyValue(node.state === "down" ? "--cell-out" : "--cell-warn");
    pen.setLineDash([3, 2]);
    pen.strokeRect(spot.x - 2.5, spot.y - 2.5, spot.width + 3, spot.height + 3);
    pen.setLineDash([]);
  }
  for (let index = 0; index < node.devices.length; index += 1) {
    pen.fillStyle = paint(node, index);
    pen.fillRect(spot.x + (index % spot.columns) * (cell + GAP), spot.y + Math.floor(index / spot.columns) * (cell + GAP), cell, cell);
  }
}

function DeviceMap({ machines, level, by, job, column }: { machines: Node[]; level: string; by: string; job: string; column: DeviceColumn | undefined }): JSX.Element {
  const canvas = useRef<HTMLCanvasElement>(null);
  const box = useRef<HTMLDivElement>(null);
  const [width, setWidth] = useState(0);
  const [theme, setTheme] = useState(0);
  const [tip, setTip] = useState<{ x: number; y: number; text: string } | null>(null);
  useEffect(() => {
    const watch = new ResizeObserver(() => setWidth(box.current?.clientWidth ?? 0));
    watch.observe(box.current!);
    const themed = new MutationObserver(() => setTheme((n) => n + 1));
    themed.observe(document.documentElement, { attributes: true });
    return () => {
      watch.disconnect();
      themed.disconnect();
    };
  }, []);
  // Where nodes stand changes when nodes come and go; their use only changes the paint.
  const names = machines.map((node) => node.name).join();
  const placed = useMemo(() => layout(machines, level, Math.max(300, width - 2)), [names, level, width]);
  const drawn = useRef<{ frame: unknown[]; nodes: Map<string, Node> }>({ frame: [], nodes: new Map() });
  useEffect(() => {
    const element = canvas.current;
    if (!element || !width) return;
    const waiting = requestAnimationFrame(() => {
      const frame = [placed, by, job, width, theme, column];
      const isWhole = frame.some((part, index) => part !== drawn.current.frame[index]);
      if (isWhole) drawn.current = { frame, nodes: new Map() };
      const known = drawn.current.nodes;
      const style = getComputedStyle(document.documentElement);
      const pen = isWhole ? blank(element, placed, width, style) : element.getContext("2d")!;
      const paint = painter(by, style, job, column);
      for (const spot of placed.spots) {
        const node = state.value.nodes.get(spot.node.name) ?? spot.node;
        // A node that changed is another object: the others stay as they are drawn.
        if (known.get(node.name) === node) continue;
        if (!isWhole) pen.clearRect(spot.x - 3, spot.y - 3, spot.width + 4, spot.height + 4);
        known.set(node.name, node);
        drawNode(pen, spot, node, placed.cell, paint, style);
      }
    });
    return () => cancelAnimationFrame(waiting);
  }, [placed, state.value.nodes, by, job, width, theme, column]);
  const at = (event: MouseEvent): Spot | undefined => {
    const place = canvas.current!.getBoundingClientRect();
    const [x, y] = [event.clientX - place.left, event.clientY - place.top];
    return placed.spots.find((spot) => x >= spot.x && x <= spot.x + spot.width && y >= spot.y && y <= spot.y + spot.height);
  };
  const show = (event: MouseEvent): void => {
    const spot = at(event);
    if (!spot) return setTip(null);
    const node = state.value.nodes.get(spot.node.name) ?? spot.node;
    const place = box.current!.getBoundingClientRect();
    setTip({ x: event.clientX - place.left, y: event.clientY - place.top, text: `${node.name} · ${node.state} · ${amounts(node.free)} free · ${node.jobs.length} jobs` });
  };
  return (
    <div class="map" ref={box}>
      <canvas
        ref={canvas}
        role="img"
        aria-label={`map of ${placed.spots.length} nodes; the table of domains below tells the same`}
        onMouseMove={show}
        onMouseLeave={() => setTip(null)}
        onClick={(event) => {
          const spot = at(event);
          if (spot) go(`/nodes/${encodeURIComponent(spot.node.name)}`);
        }}
      />
      {tip ? (
        <div class="tip" style={{ left: `${Math.min(tip.x + 12, Math.max(0, width - 260))}px`, top: `${tip.y + 14}px` }}>
          {tip.text}
        </div>
      ) : null}
    </div>
  );
}

function Largest({ of, site }: { of: Topology; site: string }): JSX.Element {
  return (
    <Card title="Largest gang that fits now" csv="gangs">
      {of.largest.length ? (
        <table class="plain">
          <thead>
            <tr>
              <th>In one</th>
              <th>Type</th>
              <th class="end">Tasks</th>
              <th class="end">Devices</th>
              <th>Where</th>
            </tr>
          </thead>
          <tbody>
            {of.largest.map((row) => (
              <tr key={row.level + row.type}>
                <td>{row.level}</td>
                <td>{row.type}</td>
                <td class="end">{row.tasks}</td>
                <td class="end">{row.tasks * (of.per_task[row.type] ?? 1)}</td>
                <td>{row.tasks ? row.domain : <span class="quiet">none</span>}</td>
              </tr>
            ))}
          </tbody>
        </table>
      ) : (
        <Empty title="No devices are known" />
      )}
      <p class="quiet small-text">Each task takes {amounts(of.per_task)}.</p>
      <Command text={`tercio topo${site ? ` --site ${quote(site)}` : ""}`} />
    </Card>
  );
}

function Domains({ of }: { of: Topology }): JSX.Element {
  return (
    <Card title="Domains" wide csv="domains">
      <div class="scroll tall" tabIndex={0} role="region" aria-label="table of domains">
        <table class="plain">
          <thead>
            <tr>
              <th>Level</th>
              <th>Name</th>
              <th class="end">Nodes</th>
              <th class="end">Taking work</th>
              <th class="end">Free</th>
              <th class="end">All</th>
              <th>Largest gang</th>
            </tr>
          </thead>
          <tbody>
            {of.rows.slice(0, 400).map((row) => (
              <tr key={row.level + row.name}>
                <td class="quiet">{row.level}</td>
                <td>{row.name}</td>
                <td class="end">{row.nodes}</td>
                <td class="end">{row.up}</td>
                <td class="end">{amounts(row.free)}</td>
                <td class="end">{amounts(row.total)}</td>
                <td>{Object.entries(row.fits).filter(([, n]) => n).map(([type, n]) => `${number(n)} × ${number(of.per_task[type] ?? 1)} ${type}`).join(", ") || "none"}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </Card>
  );
}
