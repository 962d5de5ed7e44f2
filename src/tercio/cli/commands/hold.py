"""`tercio hold`."""

from tercio.cli.actions import job_verb

command = job_verb(
    summary="Keep waiting jobs from starting, until 'tercio release'.",
    done="held",
    examples="tercio hold job-00004 job-00005",
    call=lambda client, job_id: client.hold(job_id),
)
