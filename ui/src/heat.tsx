// A grid of values as colours: one row for each thing, one column for each instant or step.

import type { JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { shade } from "./shades";
import { theme } from "./theme";

interface Props<Row> {
  rows: Row[];
  count: number;
  /** What it is drawn from: drawn again when another one comes. */
  of: unknown;
  /** From 0 to 1, null where nothing is known. */
  ratio: (row: Row, index: number) => number | null;
  name: (row: Row) => string;
  tell: (row: Row, index: number) => string;
  /** Rows that are named in any case, with a sign beside the colour. */
  isMarked?: (row: Row) => boolean;
  label: string;
  ends: [string, string];
  hint: string;
}

const SCALE_STEPS = 5;
const LABEL_PX = 14;
const GUTTER_PX = 96;

export function HeatMap<Row>({ rows, count, of, ratio, name, tell, isMarked, label, ends, hint }: Props<Row>): JSX.Element {
  const canvas = useRef<HTMLCanvasElement>(null);
  const [tip, setTip] = useState("");
  const cell = rows.length <= 24 ? 18 : rows.length <= 64 ? 8 : 3;
  const height = rows.length * cell;
  const isNamed = cell >= LABEL_PX;
  let free = -1;
  const labels = rows.flatMap((row, line) => {
    const isOut = isMarked?.(row) ?? false;
    // A name for every row where there is room, else for the marked ones that do not overlap.
    if (!(isNamed || isOut) || line * cell < free) return [];
    free = line * cell + (isNamed ? 0 : LABEL_PX);
    return [{ top: line * cell + cell / 2, text: name(row), isOut }];
  });
  useEffect(() => {
    const element = canvas.current!;
    const draw = (): void => {
      const scale = window.devicePixelRatio || 1;
      const width = element.parentElement!.clientWidth;
      element.width = width * scale;
      element.height = height * scale;
      element.style.width = `${width}px`;
      element.style.height = `${height}px`;
      const pen = element.getContext("2d")!;
      pen.scale(scale, scale);
      const wide = width / Math.max(1, count);
      const gap = cell > 6 ? 1 : 0;
      rows.forEach((row, line) => {
        for (let index = 0; index < count; index += 1) {
          const value = ratio(row, index);
          if (value === null) continue;
          pen.fillStyle = shade(value);
          pen.fillRect(index * wide, line * cell, Math.max(1, wide - (wide > 12 ? 1 : 0)), cell - gap);
        }
      });
    };
    draw();
    const watch = new ResizeObserver(draw);
    watch.observe(element.parentElement!);
    return () => watch.disconnect();
  }, [of, theme.value, labels.length > 0]);
  const show = (event: MouseEvent): void => {
    const place = canvas.current!.getBoundingClientRect();
    const row = rows[Math.floor((event.clientY - place.top) / cell)];
    const index = Math.floor(((event.clientX - place.left) / place.width) * count);
    if (row && index >= 0 && index < count) setTip(tell(row, index));
  };
  return (
    <>
      <div class="heat">
        {labels.length ? (
          <div class="heat-names" aria-hidden="true" style={{ width: `${GUTTER_PX}px`, height: `${height}px` }}>
            {labels.map(({ top, text, isOut }) => (
              <span key={top} class={isOut ? "warn" : undefined} style={{ top: `${top}px` }}>
                {isOut ? "! " : ""}
                {text}
              </span>
            ))}
          </div>
        ) : null}
        <div class="heat-cells">
          <canvas ref={canvas} role="img" aria-label={label} onMouseMove={show} onMouseLeave={() => setTip("")} />
        </div>
      </div>
      <p class="legend">
        {ends[0]}
        {Array.from({ length: SCALE_STEPS }, (_, step) => (
          <i key={step} style={{ background: shade(step / (SCALE_STEPS - 1)) }} />
        ))}
        {ends[1]} <span class="quiet">{tip || hint}</span>
      </p>
    </>
  );
}
