// Colours of measured values.

import { number, percent, watts } from "./format";

/** From dark violet over blue and green to yellow: ordered in lightness too. */
export function shade(ratio: number): string {
  const stops = [[68, 30, 100], [49, 84, 150], [33, 144, 141], [94, 201, 98], [253, 231, 60]] as const;
  const place = Math.max(0, Math.min(0.9999, ratio)) * (stops.length - 1);
  const [low, high] = [stops[Math.floor(place)]!, stops[Math.floor(place) + 1]!];
  const part = place - Math.floor(place);
  return `rgb(${low.map((value, index) => Math.round(value + (high[index]! - value) * part)).join(" ")})`;
}

interface Range {
  least: number;
  most: number;
  say: (value: number) => string;
}

/** What the map can show, and the fixed ends of each scale: colours stay comparable over time. */
export const MEASURED: Record<string, Range> = {
  utilization_ratio: { least: 0, most: 1, say: percent },
  temperature_c: { least: 25, most: 90, say: (value) => `${number(value)} °C` },
  power_w: { least: 0, most: 1000, say: watts },
};

export function heat({ least, most }: Range, value: number): number {
  return (value - least) / (most - least);
}
