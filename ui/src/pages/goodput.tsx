// Where the device time of one job went.

import type { JSX } from "preact";
import { get } from "../api";
import type { Job, JobUse } from "../types";
import { UseFacts, Waterfall } from "../waterfall";
import { Card, Command, Empty, Loading, Refusal, usePolled } from "../widgets";

export function Goodput({ job }: { job: Job }): JSX.Element {
  const asked = usePolled(() => get<JobUse>(`/v1/jobs/${job.id}/use`), [job.id, job.state, job.attempt], 30_000);
  if (asked.error && !asked.value) return <Refusal error={asked.error} retry={asked.again} />;
  if (!asked.value) return <Loading what="its use" />;
  const { use, step_count } = asked.value;
  if (!use.allocated_ms) return <Empty title="It has held no device yet">Time is counted from the moment it holds devices.</Empty>;
  return (
    <div class="grid">
      <Card title="Where its device time went">
        <Waterfall use={use} label={job.id} />
      </Card>
      <Card title="Sums">
        <UseFacts use={use} more={[["Steps", step_count ? String(step_count) : "none counted"], ["Attempts", String(job.attempt)]]} />
        <Command text={`tercio show ${job.id}`} />
      </Card>
    </div>
  );
}
