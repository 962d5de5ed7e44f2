// One site of several: the choice, and what belongs to it. The URL holds it, and links keep it.

import { computed } from "@preact/signals";
import type { JSX } from "preact";
import { all } from "./api";
import { param } from "./router";
import { nodes, state } from "./store";
import type { Job, Queue } from "./types";
import { Choice, usePolled } from "./widgets";

const QUEUES_MS = 15_000;

export const sites = computed(() => [...new Set(nodes.value.map((node) => node.site))].sort());

export function SiteChoice(): JSX.Element | null {
  if (sites.value.length < 2 && !param("site")) return null;
  return <Choice name="site" label="Site" options={[["", "all"], ...sites.value.map((each): [string, string] => [each, each])]} />;
}

/** Whether a job runs or ran at a site, or may start there; every job is somewhere. */
export function isAt(job: Job, site: string): boolean {
  return !site || !job.sites.length || job.sites.includes(site);
}

const SITED = new Set(["/", "/jobs", "/queues", "/nodes", "/topology", "/reservations", "/usage"]);

/** The address of a page, with the site that is looked at where the page knows sites. */
export function sited(to: string): string {
  const site = param("site");
  if (!site || !SITED.has(to.split("?")[0]!)) return to;
  return `${to}${to.includes("?") ? "&" : "?"}site=${encodeURIComponent(site)}`;
}

/** All queues; of one site, with what runs there and what may start there. */
export function useQueues(): { value?: readonly Queue[]; error?: unknown; again: () => void } {
  const site = param("site");
  const asked = usePolled(async () => (site ? all<Queue>("/v1/queues", { site }) : []), [site], QUEUES_MS);
  return site ? asked : { value: state.value.queues, again: asked.again };
}
