"""`tercio suspend`."""

from tercio.cli.actions import job_verb

command = job_verb(
    summary="Pause running jobs. They keep the devices they hold.",
    done="suspended",
    examples="tercio suspend job-00004",
    call=lambda client, job_id: client.suspend(job_id),
)
