"""`tercio resume`."""

from tercio.cli.actions import job_verb

command = job_verb(
    summary="Let paused jobs go on.",
    done="resumed",
    examples="tercio resume job-00004",
    call=lambda client, job_id: client.resume(job_id),
)
