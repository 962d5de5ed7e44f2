"""`tercio release`."""

from tercio.cli.actions import job_verb

command = job_verb(
    summary="Let held jobs start again.",
    done="released",
    examples="tercio release job-00004",
    call=lambda client, job_id: client.release(job_id),
)
