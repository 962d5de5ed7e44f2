// Lines over time. It brings uPlot along: import it from parts that are read when first shown.

import type { JSX } from "preact";
import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import { instant, reach, zone } from "./format";
import { theme } from "./theme";

export interface Line {
  label: string;
  values: (number | null)[];
}

interface Props {
  at_s: number[];
  lines: Line[];
  say: (value: number) => string;
  /** What is drawn, for who cannot see it. */
  word: string;
  /** From 0 to 1, whatever the values. */
  isShare?: boolean;
}

const STROKES = ["#2f6fd6", "#c2571a", "#2f9e62", "#9060ee", "#b8860b", "#d94a9a", "#0f8b8d", "#94806c"];
/** Lines differ in their dashes as well: colour alone says nothing to some. */
const DASHES = [[], [8, 4], [2, 3], [10, 3, 2, 3], [5, 2], [1, 4], [12, 6], [4, 4, 1, 4]];
const LABEL_PX = 72;
const DAY_S = 86_400;

/** Ticks of an axis of time: no longer than the span needs. */
export function tickText(at_s: number, span_s: number): string {
  const text = instant(at_s);
  if (span_s > 2 * DAY_S) return `${text.slice(5, 10)} ${text.slice(11, 16)}`;
  return text.slice(11, span_s < 1200 ? 19 : 16);
}

export function Plot({ at_s, lines, say, word, isShare }: Props): JSX.Element {
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const span_s = (at_s.at(-1) ?? 0) - (at_s[0] ?? 0);
  const spacing = span_s > 2 * DAY_S ? LABEL_PX * 1.4 : LABEL_PX;
  const key = `${word} ${lines.map((line) => line.label).join()} ${theme.value} ${zone.value} ${spacing} ${span_s < 1200}`;
  const values = [at_s, ...lines.map((line) => line.values)] as uPlot.AlignedData;
  useEffect(() => {
    // Kept here: the box is gone from the reference before the observer is told to stop.
    const element = box.current!;
    const style = getComputedStyle(document.documentElement);
    const tone = (variable: string): string => style.getPropertyValue(variable).trim();
    const axis = { stroke: tone("--quiet"), grid: { stroke: tone("--line"), width: 1 }, ticks: { stroke: tone("--line"), width: 1 }, font: "12px system-ui, sans-serif" };
    plot.current = new uPlot(
      {
        width: element.clientWidth,
        height: 220,
        padding: [12, 28, 0, 0],
        // Seconds in, seconds out: the axis shows the chosen time zone.
        tzDate: (at) => (zone.value === "utc" ? uPlot.tzDate(new Date(at * 1000), "Etc/UTC") : new Date(at * 1000)),
        legend: { show: false },
        cursor: { points: { size: 6 } },
        scales: { x: { range: (_, low, high) => reach(low, high) }, y: isShare ? { range: [0, 1] } : { range: (_, low, high) => [Math.min(0, low), (high || 1) * 1.1] } },
        axes: [
          { ...axis, size: 34, space: spacing, values: (_, ticks) => ticks.map((at) => tickText(at, span_s)) },
          { ...axis, size: 76, values: (_, ticks) => ticks.map(say) },
        ],
        series: [
          {},
          ...lines.map((line, index) => ({
            label: line.label,
            stroke: STROKES[index % STROKES.length]!,
            dash: DASHES[index % DASHES.length]!,
            width: 1.6,
            spanGaps: false,
            points: { show: at_s.length < 3 },
          })),
        ],
      },
      values,
      element,
    );
    const watch = new ResizeObserver(() => plot.current?.setSize({ width: element.clientWidth, height: 220 }));
    watch.observe(element);
    return () => {
      watch.disconnect();
      plot.current?.destroy();
      plot.current = null;
    };
  }, [key]);
  useEffect(() => plot.current?.setData(values), [at_s]);
  const last = (row: (number | null)[]): string => {
    const found = row.findLast((value) => value !== null);
    return found === undefined || found === null ? "–" : say(found);
  };
  return (
    <>
      <div ref={box} class="plot" role="img" aria-label={`${word} over time, ${lines.length} lines; the values now are below`} />
      <p class="legend">
        {lines.map((line, index) => (
          <span key={line.label}>
            <svg width="22" height="8" aria-hidden="true">
              <line x1="0" y1="4" x2="22" y2="4" stroke={STROKES[index % STROKES.length]} stroke-width="2.4" stroke-dasharray={DASHES[index % DASHES.length]!.join(" ") || undefined} />
            </svg>{" "}
            {line.label} <b>{last(line.values)}</b>
          </span>
        ))}
      </p>
    </>
  );
}
