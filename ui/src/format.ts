// Numbers, times and states in words.

import { signal } from "@preact/signals";
import type { Amounts } from "./types";

export const SYMBOLS: Record<string, string> = {
  held: "‖",
  queued: "○",
  starting: "◔",
  running: "●",
  suspended: "◫",
  stopping: "◕",
  succeeded: "✓",
  failed: "✕",
  cancelled: "⊘",
  ready: "✓",
  cordoned: "‖",
  draining: "◕",
  down: "✕",
  unknown: "?",
  ok: "✓",
  suspect: "!",
  quarantined: "✕",
  repairing: "◔",
  probation: "◌",
  retired: "⊘",
};

export function number(value: number): string {
  return Number.isInteger(value) ? String(value) : String(Number(value.toFixed(value < 10 ? 2 : 1)));
}

export function amounts(found: Amounts | undefined): string {
  const rows = Object.entries(found ?? {});
  return rows.length ? rows.map(([kind, n]) => `${kind}:${number(n)}`).join(" ") : "none";
}

/** Device time; unknown is not zero. */
export function hours(ms: number | null): string {
  if (ms === null) return "unknown";
  return ms >= 3_600_000 || !ms ? `${number(ms / 3_600_000)} h` : `${number(ms / 60_000)} min`;
}

export function percent(ratio: number | null | undefined): string {
  return ratio === null || ratio === undefined ? "–" : `${Math.round(ratio * 100)}%`;
}

export function watts(value: number): string {
  if (value >= 1e6) return `${number(value / 1e6)} MW`;
  return value >= 10_000 ? `${number(value / 1000)} kW` : `${Math.round(value)} W`;
}

export function usd(value: number): string {
  if (value >= 1e6) return `$${number(value / 1e6)}M`;
  if (value >= 10_000) return `$${number(value / 1000)}k`;
  return value >= 1000 ? `$${Math.round(value).toLocaleString("en")}` : `$${value.toFixed(2)}`;
}

export function duration(seconds: number): string {
  const s = Math.max(0, Math.round(seconds));
  if (s < 60) return `${s}s`;
  if (s < 3600) return `${Math.floor(s / 60)}m${s % 60 && s < 600 ? `${s % 60}s` : ""}`;
  if (s < 86_400) return `${Math.floor(s / 3600)}h${Math.floor((s % 3600) / 60) ? `${Math.floor((s % 3600) / 60)}m` : ""}`;
  if (s < 86_400 * 365) return `${Math.floor(s / 86_400)}d${Math.floor((s % 86_400) / 3600) ? `${Math.floor((s % 86_400) / 3600)}h` : ""}`;
  return `${number(s / 86_400 / 365)}y`;
}

export const zone = signal(localStorage.getItem("zone") ?? "local");

export function zoneName(): string {
  return zone.value === "utc" ? "UTC" : Intl.DateTimeFormat().resolvedOptions().timeZone;
}

export function instant(at_s: number): string {
  const date = new Date(at_s * 1000);
  const utc = zone.value === "utc";
  const two = (n: number): string => String(n).padStart(2, "0");
  const [y, mo, d, h, mi, s] = utc
    ? [date.getUTCFullYear(), date.getUTCMonth(), date.getUTCDate(), date.getUTCHours(), date.getUTCMinutes(), date.getUTCSeconds()]
    : [date.getFullYear(), date.getMonth(), date.getDate(), date.getHours(), date.getMinutes(), date.getSeconds()];
  return `${y}-${two(mo + 1)}-${two(d)} ${two(h)}:${two(mi)}:${two(s)}`;
}

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

export function bytes(value: number): string {
  let unit = 0;
  let rest = value;
  while (rest >= 1024 && unit < UNITS.length - 1) {
    rest /= 1024;
    unit += 1;
  }
  return `${number(Number(rest.toFixed(1)))} ${UNITS[unit]}`;
}

/** Text that a job wrote, with its control characters shown and its colours taken out. */
export function plain(text: string): string {
  return (
    text
      // biome-ignore format: one expression
      .replace(/\u001b\[[0-9;?]*[ -/]*[@-~]|\u001b\][^\u0007\u001b]*(\u0007|\u001b\\)?/g, "")
      .replace(/[\u0000-\u0008\u000b-\u001f\u007f]/g, (c) => (c === "\u007f" ? "␡" : String.fromCharCode(0x2400 + c.charCodeAt(0))))
      .replace(/[\u202a-\u202e\u2066-\u2069\u200e\u200f]/g, "�")
  );
}

/** A word safe to paste into a shell. */
export function quote(word: string): string {
  return /^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", `'\\''`)}'`;
}

export function csv(rows: string[][]): string {
  // A leading formula sign would be run by a spreadsheet.
  const cell = (text: string): string => {
    const safe = /^[=+\-@\t\r]/.test(text) && !/^-?\d/.test(text) ? `'${text}` : text;
    return /[",\n\r]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
  };
  return rows.map((row) => row.map(cell).join(",")).join("\r\n") + "\r\n";
}

/** Let the browser save a text as a file. */
export function save(name: string, text: string): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
  link.download = `${name}.csv`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

/** What an axis of time reaches over: a minute at least, also of one point. */
export function reach(low_s: number, high_s: number): [number, number] {
  const lacking_s = Math.max(0, 60 - (high_s - low_s));
  return [low_s - lacking_s / 2, high_s + lacking_s / 2];
}
