"""`tercio requeue`."""

from tercio.cli.actions import job_verb

command = job_verb(
    summary="Stop jobs and run them again from the queue; also runs an ended job again.",
    done="requeued",
    examples="tercio requeue job-00004",
    call=lambda client, job_id: client.requeue(job_id),
)
