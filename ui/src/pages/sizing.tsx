// How many devices does it take, how long, and what does it cost?

import type { JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { get, post } from "../api";
import { bytes, duration, number, percent, quote, usd } from "../format";
import { param, setParams } from "../router";
import { may } from "../store";
import { type Column, Table } from "../table";
import { theme } from "../theme";
import { Card, Choice, Command, Empty, Facts, Loading, Refusal, useAnswer } from "../widgets";

interface Price {
  usd_h: number;
  high_usd_h: number;
  provider: string;
  instance_type: string;
  date: string;
  source: string;
  is_recalled: boolean;
}

interface Answer {
  kind: string;
  model: string;
  answers: Record<string, unknown>[];
  assumed: string[];
  note: string;
  catalogue_date: string;
  calibration_date: string;
}

interface Catalogue {
  models: string[];
  parts: { name: string; memory_bytes: number; year: number; source: string; usd_h: number | null; price_source: string }[];
  catalogue_date: string;
}

interface Row {
  id: string;
  devices: number;
  part: string;
  layout: string;
  needed: number;
  usable: number;
  /** Seconds of the whole run, or of one token when serving; null where it is not known. */
  time_s: number | null;
  low_s: number | null;
  high_s: number | null;
  speed: number | null;
  cost: number | null;
  energy_kwh: number | null;
  fits: boolean;
  basis: string;
  binds: string;
  price: Price | null;
  best: boolean;
}

const HOUR_S = 3600;
const DAY_S = 86_400;

/** The answers of any verb as rows of one table. */
export function rowsOf(answer: Answer): Row[] {
  const rows = answer.answers.map((each, index): Row => {
    const base = { id: String(index), layout: "", needed: 0, usable: 0, time_s: null, low_s: null, high_s: null, speed: null, cost: null, energy_kwh: null, fits: true, binds: "", best: false };
    const a = each as Record<string, number> & Record<string, string> & Record<string, never>;
    const price = (each["price"] ?? null) as Price | null;
    if (answer.kind === "SizingTrain") {
      const plan = each["plan"] as Record<string, number> & { precision: string; recompute: string };
      const split = (["tp", "pp", "cp", "ep"] as const).filter((name) => plan[name]! > 1).map((name) => `${name}${plan[name]}`);
      return {
        ...base, devices: plan["gpus"]!, part: a["gpu"]!, layout: [...split, `mb${plan["micro_batch"]}×${plan["microbatches"]}`, plan.precision, plan.recompute === "none" ? "" : `recompute ${plan.recompute}`].filter(Boolean).join(" "),
        needed: a["memory_total_bytes"]!, usable: a["usable_bytes"]!, time_s: a["days"]! * DAY_S, low_s: a["days_low"]! * DAY_S, high_s: a["days_high"]! * DAY_S,
        speed: a["tokens_per_s"]!, cost: a["cost_usd"] ?? null, energy_kwh: a["energy_kwh"] ?? null, basis: a["basis"]!, binds: a["change"] ?? "", price,
      };
    }
    if (answer.kind === "SizingServe") {
      return {
        ...base, devices: a["gpus"]!, part: a["gpu"]!, layout: `${a["replicas"]} × tp${a["tp"]} ${a["precision"]} batch ${number(a["batch"]!)}`, needed: a["weights_bytes"]!, usable: a["weights_bytes"]! + a["cache_pool_bytes"]!,
        time_s: a["tpot_s"]!, low_s: a["tpot_low_s"]!, high_s: a["tpot_high_s"]!, speed: a["goodput_rps"]!, cost: price ? price.usd_h * a["gpus"]! : null, basis: a["basis"]!, binds: a["binds"]!, price,
      };
    }
    const fit = (each["fit"] ?? each) as Record<string, unknown>;
    const hours = each["hours"] as number | null | undefined;
    const speed = (each["tokens_per_s"] as number | undefined) ?? null;
    const scale = (tokens_per_s: unknown): number | null => (hours && speed && typeof tokens_per_s === "number" ? (hours * HOUR_S * speed) / tokens_per_s : null);
    return {
      ...base, devices: fit["gpus"] as number, part: fit["gpu"] as string, layout: `recompute ${String(fit["recompute"])}`, needed: fit["needed_bytes"] as number, usable: fit["usable_bytes"] as number,
      time_s: hours ? hours * HOUR_S : null, low_s: scale(each["tokens_per_s_high"]), high_s: scale(each["tokens_per_s_low"]), speed, cost: (each["cost_usd"] as number | null | undefined) ?? null,
      fits: fit["fits"] as boolean, basis: (each["basis"] as string | undefined) ?? "memory only", binds: (fit["change"] as string | undefined) ?? "", price,
    };
  });
  for (const row of pareto(rows)) row.best = true;
  return rows;
}

/** Those that no other beats in both time and cost. */
export function pareto(rows: Row[]): Row[] {
  const known = rows.filter((row) => row.time_s !== null && row.cost !== null && row.fits);
  return known.filter((row) => !known.some((other) => other !== row && other.time_s! <= row.time_s! && other.cost! <= row.cost! && (other.time_s! < row.time_s! || other.cost! < row.cost!)));
}

type Field = { name: string; label: string; start: string; hint?: string; options?: string[]; flag?: string; isNumber?: boolean; isNeeded?: boolean };

const COMMON: Field[] = [{ name: "gpus", label: "Device types", start: "H100,H200,B200", hint: "H100,H200 or any" }];
const FORMS: Record<string, Field[]> = {
  train: [
    { name: "tokens", label: "Tokens to train on", start: "1T", isNeeded: true },
    { name: "seq", label: "Sequence length", start: "4096" },
    { name: "batch_tokens", label: "Tokens per step", start: "4M", flag: "batch-tokens" },
    { name: "counts", label: "Device counts", start: "8,16,32,64,128,256,512,1024" },
    { name: "precision", label: "Precision", start: "", options: ["", "bf16", "fp8", "mxfp8", "nvfp4"] },
    { name: "deadline", label: "Deadline", start: "", hint: "14d" },
    { name: "budget", label: "Budget, USD", start: "", hint: "500k" },
  ],
  finetune: [
    { name: "method", label: "Method", start: "lora", options: ["lora", "qlora", "full"] },
    { name: "tokens", label: "Tokens to train on", start: "100M", hint: "empty: speed only" },
    { name: "seq", label: "Sequence length", start: "2048" },
    { name: "micro_batch", label: "Sequences per device", start: "1", flag: "micro-batch", isNumber: true },
    { name: "rank", label: "LoRA rank", start: "16", isNumber: true },
  ],
  serve: [
    { name: "rps", label: "Requests per second", start: "20", isNumber: true, isNeeded: true },
    { name: "in_tokens", label: "Prompt tokens", start: "2k", flag: "in" },
    { name: "out_tokens", label: "Output tokens", start: "500", flag: "out" },
    { name: "ttft", label: "Limit to the first token", start: "1s" },
    { name: "tpot", label: "Limit per further token", start: "50ms" },
    { name: "precision", label: "Precision", start: "", options: ["", "bf16", "fp8", "fp4"] },
    { name: "backend", label: "Software", start: "vllm", options: ["vllm", "trtllm", "sglang"] },
  ],
  fit: [
    { name: "method", label: "Method", start: "full", options: ["pretrain", "full", "lora", "qlora", "inference"] },
    { name: "count", label: "Devices", start: "8", isNumber: true },
    { name: "seq", label: "Sequence length", start: "2048" },
    { name: "micro_batch", label: "Sequences per device", start: "1", flag: "micro-batch", isNumber: true },
  ],
};
const VERBS: [string, string][] = [
  ["train", "train from scratch"],
  ["finetune", "fine-tune"],
  ["serve", "serve"],
  ["fit", "does it fit?"],
];
const MODEL: Field = { name: "model", label: "Model", start: "llama-3-70b", isNeeded: true };

function command(verb: string, given: Record<string, string>): string {
  const fields = [MODEL, ...COMMON, ...FORMS[verb]!];
  return `tercio size ${verb}${fields.map((field) => (given[field.name] ? ` --${field.flag ?? field.name} ${quote(given[field.name]!)}` : "")).join("")}`;
}

export function SizingPage(): JSX.Element {
  const verb = FORMS[param("for")] ? param("for") : "train";
  return (
    <>
      <div class="toolbar">
        <Choice name="for" label="To" fallback="train" options={VERBS} />
        <span class="quiet small-text">Predictions with ranges of 80 %; nothing is started.</span>
      </div>
      <Sizing key={verb} verb={verb} />
    </>
  );
}

function Sizing({ verb }: { verb: string }): JSX.Element {
  const catalogue = useAnswer(() => get<Catalogue>("/v1/size"), []);
  const fields = [MODEL, ...COMMON, ...FORMS[verb]!];
  const [given, setGiven] = useState<Record<string, string>>(() => Object.fromEntries(fields.map((field) => [field.name, param(field.name) || field.start])));
  const [found, setFound] = useState<{ answer?: Answer; error?: unknown; isBusy?: boolean }>({});
  const ask = async (): Promise<void> => {
    setParams(Object.fromEntries(fields.map((field) => [field.name, given[field.name] === field.start ? "" : given[field.name]!])));
    setFound((before) => ({ ...before, error: undefined, isBusy: true }));
    const body = Object.fromEntries(fields.filter((field) => given[field.name]?.trim()).map((field) => [field.name, field.isNumber ? Number(given[field.name]) : given[field.name]!.trim()]));
    try {
      setFound({ answer: await post<Answer>(`/v1/size/${verb}`, body) });
    } catch (error) {
      setFound({ error });
    }
  };
  // A link that names a model is a question: it is asked at once.
  useEffect(() => {
    if (param("model") && may("user")) void ask();
  }, []);
  return (
    <>
      <Card title="What is wanted" wide>
        <form class="knobs" onSubmit={(event) => (event.preventDefault(), void ask())}>
          {fields.map((field) => (
            <label class="field" key={field.name}>
              <span>{field.label}</span>
              {field.options ? (
                <select value={given[field.name]} onChange={(event) => setGiven({ ...given, [field.name]: event.currentTarget.value })}>
                  {field.options.map((option) => (
                    <option key={option} value={option}>
                      {option || "the best of each part"}
                    </option>
                  ))}
                </select>
              ) : (
                <input required={field.isNeeded ?? false} list={field.name === "model" ? "models" : undefined} placeholder={field.hint ?? ""} value={given[field.name]} onInput={(event) => setGiven({ ...given, [field.name]: event.currentTarget.value })} />
              )}
            </label>
          ))}
          <datalist id="models">
            {catalogue.value?.models.map((each) => <option key={each} value={each} />)}
          </datalist>
          <div class="buttons">
            {may("user") ? null : <span class="quiet">A viewer may look, not ask.</span>}
            <button type="submit" class="primary" disabled={found.isBusy || !may("user")}>
              {found.isBusy ? "Working…" : "Size it"}
            </button>
          </div>
        </form>
        <Command text={command(verb, given)} />
      </Card>
      {found.error ? <Refusal error={found.error} /> : null}
      {found.isBusy && !found.answer ? <Loading what="the tables, and trying layouts" /> : null}
      {found.answer ? <Found answer={found.answer} verb={verb} /> : found.isBusy || found.error ? null : <Parts of={catalogue.value} />}
    </>
  );
}

function span(row: Row, isServing: boolean): string {
  if (row.time_s === null) return "–";
  return isServing ? `${number(row.time_s * 1000)} ms` : duration(row.time_s);
}

function Found({ answer, verb }: { answer: Answer; verb: string }): JSX.Element {
  const rows = rowsOf(answer);
  const isServing = answer.kind === "SizingServe";
  const columns: Column<Row>[] = [
    { key: "rank", title: "#", value: (row) => Number(row.id) + 1, cell: (row) => <>{Number(row.id) + 1}{row.best ? <span title="no other is both faster and cheaper"> ★</span> : ""}</> },
    { key: "devices", title: "Devices", value: (row) => `${row.devices} x ${row.part}`, cell: (row) => <b>{row.devices} × {row.part}</b> },
    ...(verb === "fit" ? [{ key: "fits", title: "Fits", value: (row) => String(row.fits), cell: (row) => <span class={`state ${row.fits ? "state-ready" : "state-down"}`}>{row.fits ? "✓ yes" : "✕ no"}</span> } as Column<Row>] : []),
    { key: "layout", title: "Layout", hide: 1, value: (row) => row.layout, cell: (row) => <span class="mono quiet">{row.layout}</span> },
    { key: "memory", title: "Memory a device", hide: 2, align: "end", file: "memory_bytes", value: (row) => row.needed, cell: (row) => `${bytes(row.needed)} of ${bytes(row.usable)}` },
    { key: "time", title: isServing ? "Per token" : "Time", align: "end", file: "time_s", value: (row) => row.time_s ?? "", cell: (row) => span(row, isServing) },
    { key: "range", title: "80 %", hide: 2, align: "end", value: (row) => (row.low_s === null ? "" : `${row.low_s}..${row.high_s}`), cell: (row) => <span class="quiet">{row.low_s === null ? "–" : `${span({ ...row, time_s: row.low_s }, isServing)} to ${span({ ...row, time_s: row.high_s }, isServing)}`}</span> },
    { key: "speed", title: isServing ? "Requests/s" : "Tokens/s", hide: 2, align: "end", value: (row) => row.speed ?? "", cell: (row) => (row.speed === null ? "–" : row.speed >= 1000 ? `${Math.round(row.speed).toLocaleString("en")}` : number(row.speed)) },
    { key: "cost", title: isServing ? "Cost an hour" : "Cost", align: "end", file: "cost_usd", value: (row) => row.cost ?? "", cell: (row) => (row.cost === null ? "–" : usd(row.cost)) },
    { key: "basis", title: "Basis", hide: 2, value: (row) => row.basis, cell: (row) => <span class="quiet">{row.basis}</span> },
  ];
  const first = rows[0];
  const sources = [...new Map(rows.flatMap((row) => (row.price ? [[row.part, row.price] as const] : []))).entries()];
  return (
    <>
      <Table
        name={`sizing-${verb}`}
        rows={rows}
        columns={verb === "fit" ? columns.filter((column) => !["time", "range", "speed", "cost"].includes(column.key)) : columns}
        id={(row) => row.id}
        empty={<Empty title="Nothing fits" />}
      />
      <div class="grid">
        {rows.filter((row) => row.time_s !== null && row.cost !== null).length > 1 ? (
          <Card title="Cost against time" wide>
            <Chart rows={rows} isServing={isServing} />
          </Card>
        ) : null}
        <Card title="Why, and what would change it">
          <Facts
            rows={[
              ["Model", answer.model],
              ...(first?.binds ? [["First choice", first.binds] as [string, string]] : []),
              ...(first ? [["Memory", `${percent(first.needed / first.usable)} of ${bytes(first.usable)} a device`] as [string, string]] : []),
              ...(answer.note ? [["Tried", answer.note] as [string, string]] : []),
            ]}
          />
        </Card>
        <Card title="Assumed, and from where">
          <ul class="lines">
            {answer.assumed.map((text) => <li key={text}>{text}</li>)}
            {sources.map(([part, price]) => (
              <li key={part}>
                <span>
                  <b>{part}</b> {usd(price.usd_h)}{price.high_usd_h > price.usd_h ? ` to ${usd(price.high_usd_h)}` : ""} a device-hour: {price.provider} {price.instance_type}, {price.date}{price.is_recalled ? " (recalled: verify)" : ""} <span class="quiet">{price.source}</span>
                </span>
              </li>
            ))}
            <li class="quiet">catalogue {answer.catalogue_date}{answer.calibration_date ? `, calibration ${answer.calibration_date}` : ""}; ranges hold in 80 of 100 cases</li>
          </ul>
        </Card>
      </div>
    </>
  );
}

const TONES = ["#2f6fd6", "#c2571a", "#2f9e62", "#7b3fe4", "#b8860b", "#c13584", "#0f8b8d", "#7a6a5a"];
const MARGIN = { left: 74, right: 16, top: 12, bottom: 38 };

/** Ticks of 1, 2 and 5 on a logarithmic scale; even ones where that gives too few. */
export function ticks(low: number, high: number): number[] {
  const found: number[] = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += 1) {
    for (const step of [1, 2, 5]) {
      const value = step * 10 ** power;
      if (value >= low && value <= high) found.push(value);
    }
  }
  if (found.length < 3) {
    const rough = (high - low) / 4;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].find((each) => each * power >= rough)! * power;
    return Array.from({ length: Math.floor(high / step) - Math.ceil(low / step) + 1 }, (_, index) => (Math.ceil(low / step) + index) * step);
  }
  return found.length > 7 ? found.filter((value) => Math.log10(value) % 1 < 1e-9 || Math.log10(value) % 1 > 1 - 1e-9 || found.length < 10) : found;
}

function Chart({ rows, isServing }: { rows: Row[]; isServing: boolean }): JSX.Element {
  const box = useRef<HTMLDivElement>(null);
  const canvas = useRef<HTMLCanvasElement>(null);
  const known = rows.filter((row) => row.time_s !== null && row.cost !== null);
  const parts = [...new Set(known.map((row) => row.part))];
  const best = pareto(rows).sort((a, b) => a.time_s! - b.time_s!);
  useEffect(() => {
    const draw = (): void => {
      const element = canvas.current!;
      const [width, height] = [box.current!.clientWidth, 280];
      const ratio = window.devicePixelRatio || 1;
      element.width = width * ratio;
      element.height = height * ratio;
      element.style.width = `${width}px`;
      element.style.height = `${height}px`;
      const pen = element.getContext("2d")!;
      pen.scale(ratio, ratio);
      const style = getComputedStyle(document.documentElement);
      const tone = (name: string): string => style.getPropertyValue(name).trim();
      const times = known.map((row) => row.time_s!);
      const costs = known.map((row) => row.cost!);
      const [x0, x1] = [Math.min(...times) / 1.2, Math.max(...times) * 1.2];
      const [y0, y1] = [Math.min(...costs) / 1.2, Math.max(...costs) * 1.2];
      const x = (value: number): number => MARGIN.left + ((width - MARGIN.left - MARGIN.right) * Math.log(value / x0)) / Math.log(x1 / x0);
      const y = (value: number): number => height - MARGIN.bottom - ((height - MARGIN.top - MARGIN.bottom) * Math.log(value / y0)) / Math.log(y1 / y0);
      pen.font = "12px system-ui, sans-serif";
      pen.fillStyle = tone("--quiet");
      pen.strokeStyle = tone("--line");
      const say = (value: number): string => (isServing ? `${number(value * 1000)} ms` : duration(value));
      const unit = isServing ? 0.001 : x1 > 3 * DAY_S ? DAY_S : x1 > 3 * HOUR_S ? HOUR_S : 60;
      for (const tick of ticks(x0 / unit, x1 / unit)) {
        const at = x(tick * unit);
        line(pen, at, MARGIN.top, at, height - MARGIN.bottom);
        pen.textAlign = "center";
        pen.fillText(say(tick * unit), at, height - MARGIN.bottom + 16);
      }
      pen.fillText(isServing ? "time per token" : "time to the end", (MARGIN.left + width) / 2, height - 4);
      for (const tick of ticks(y0, y1)) {
        line(pen, MARGIN.left, y(tick), width - MARGIN.right, y(tick));
        pen.textAlign = "end";
        pen.fillText(usd(tick), MARGIN.left - 8, y(tick) + 4);
      }
      pen.strokeStyle = tone("--text");
      pen.lineWidth = 1.5;
      pen.beginPath();
      best.forEach((row, index) => (index ? pen.lineTo(x(row.time_s!), y(row.cost!)) : pen.moveTo(x(row.time_s!), y(row.cost!))));
      pen.stroke();
      for (const row of known) {
        pen.fillStyle = TONES[parts.indexOf(row.part) % TONES.length]!;
        pen.beginPath();
        pen.arc(x(row.time_s!), y(row.cost!), row.best ? 6 : 4, 0, 2 * Math.PI);
        pen.fill();
        if (row.best) {
          pen.stroke();
          pen.fillStyle = tone("--text");
          pen.textAlign = "start";
          pen.fillText(String(row.devices), x(row.time_s!) + 9, y(row.cost!) - 6);
        }
      }
    };
    draw();
    const watch = new ResizeObserver(draw);
    watch.observe(box.current!);
    return () => watch.disconnect();
  }, [rows, theme.value]);
  return (
    <div ref={box}>
      <canvas ref={canvas} role="img" aria-label={`cost against time of ${known.length} choices; those marked with a star in the table are beaten by none`} />
      <p class="legend">
        {parts.map((part, index) => (
          <span key={part}>
            <i style={{ background: TONES[index % TONES.length] }} /> {part}
          </span>
        ))}
        <span class="quiet">on the line: no other is both faster and cheaper; the number is of devices</span>
      </p>
    </div>
  );
}

function line(pen: CanvasRenderingContext2D, x0: number, y0: number, x1: number, y1: number): void {
  pen.lineWidth = 1;
  pen.beginPath();
  pen.moveTo(Math.round(x0) + 0.5, Math.round(y0) + 0.5);
  pen.lineTo(Math.round(x1) + 0.5, Math.round(y1) + 0.5);
  pen.stroke();
}

function Parts({ of }: { of: Catalogue | undefined }): JSX.Element | null {
  if (!of) return null;
  return (
    <Card title="Parts that can be sized" wide csv="parts" more={<span class="quiet">catalogue {of.catalogue_date}</span>}>
      <div class="scroll tall" tabIndex={0} role="region" aria-label="table of parts">
        <table class="plain">
          <thead>
            <tr>
              <th>Part</th>
              <th class="end">Usable memory</th>
              <th class="end">A device-hour</th>
              <th>Price of</th>
              <th class="hide-2">Source</th>
            </tr>
          </thead>
          <tbody>
            {of.parts.map((part) => (
              <tr key={part.name}>
                <td class="nowrap">{part.name}</td>
                <td class="end">{bytes(part.memory_bytes)}</td>
                <td class="end">{part.usd_h === null ? "–" : usd(part.usd_h)}</td>
                <td class="quiet">{part.price_source || "no published price"}</td>
                <td class="quiet hide-2">{part.source}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </Card>
  );
}
