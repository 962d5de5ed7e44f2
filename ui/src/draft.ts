// The job file that the Plan page begins with, and what links to it change in it.

export const SAMPLE = `name: my-job
tasks: 1
per_task:
  devices: "1"
time: {limit: 2h}
run: |
  nvidia-smi
`;

/** Whether a file is the one to begin with, but for what links change in it. */
function isSample(file: string): boolean {
  const bare = file.replace(/^tasks: .*$/m, "tasks: 1").replace(/^ {2}devices: .*$/m, '  devices: "1"');
  return bare.replace(/^time: .*$/m, "time: {limit: 2h}") === SAMPLE;
}

/** A draft with what a link asks for. A file of somebody's own keeps all but its time limit. */
export function wished(file: string, { devices, tasks, limit }: { devices: string; tasks: string; limit: string }): string {
  let text = file;
  if (isSample(file)) {
    text = SAMPLE;
    if (/^[\w.-]+:\d+$/.test(devices)) text = text.replace('devices: "1"', `devices: "${devices}"`);
    if (/^\d+$/.test(tasks)) text = text.replace("tasks: 1", `tasks: ${tasks}`);
  }
  if (!/^[0-9a-z]+$/.test(limit)) return text;
  const line = /^(time:\s*\{[^}\n]*?\blimit:\s*|time:\s*\n(?:[ \t]+.*\n)*?[ \t]+limit:\s*)[^,}\s]+/m;
  if (line.test(text)) return text.replace(line, `$1${limit}`);
  return /^time:/m.test(text) ? text : `${text.replace(/\n?$/, "\n")}time: {limit: ${limit}}\n`;
}
