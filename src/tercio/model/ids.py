"""Identifiers: short, prefixed, sortable; one type per kind of object.

Ids come from counters, so a replayed journal gives the same ids.

>>> job_id(1), job_id(1_000_000)
('job-00001', 'job-0ygj0')
>>> element_id(job_id(1), 7)
'job-00001.7'
"""

from __future__ import annotations

from typing import Final, NewType

JobId = NewType("JobId", str)
NodeName = NewType("NodeName", str)
QueuePath = NewType("QueuePath", str)
SiteName = NewType("SiteName", str)
EffectId = NewType("EffectId", str)
ReservationId = NewType("ReservationId", str)

# Crockford's base 32 without i, l, o, u: no two letters look alike, none spell words.
_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_WIDTH = 5


def _base32(number: int) -> str:
    digits = ""
    while number:
        number, digit = divmod(number, 32)
        digits = _ALPHABET[digit] + digits
    return digits.rjust(_WIDTH, "0")


def job_id(sequence: int) -> JobId:
    """Return the id of the job with this sequence number (1 for the first)."""
    return JobId("job-" + _base32(sequence))


def job_sequence(job: JobId) -> int:
    """Return the sequence number of a job's id.

    >>> job_sequence(job_id(1_000_000))
    1000000
    """
    number = 0
    for digit in job.removeprefix("job-"):
        number = number * 32 + _ALPHABET.index(digit)
    return number


ELEMENT_NUMBERS: Final = 1_000_000
"""More than an array has elements: element 7 of job 3 is number 3000007."""


def job_number(job: JobId) -> int:
    """Return the number that stands for a job where tools want one, as in `SLURM_JOB_ID`.

    >>> job_number(JobId("job-0000z")), job_number(JobId("job-00010.3"))
    (31, 32000003)
    """
    parent = array_parent(job)
    if parent is None:
        return job_sequence(job)
    return job_sequence(parent) * ELEMENT_NUMBERS + int(job.rpartition(".")[2])


def numbered_job(text: str) -> JobId:
    """Return the job that a number means: `31`, `32_3`, or an element's own `32000003`.

    >>> numbered_job("31"), numbered_job("32_3"), numbered_job("32000003")
    ('job-0000z', 'job-00010.3', 'job-00010.3')
    """
    number, _, index = text.partition("_")
    sequence = int(number)
    if index:
        return element_id(job_id(sequence), int(index))
    if sequence >= ELEMENT_NUMBERS:
        parent, at = divmod(sequence, ELEMENT_NUMBERS)
        return element_id(job_id(parent), at)
    return job_id(sequence)


def reservation_id(sequence: int) -> ReservationId:
    """Return the id of the reservation with this sequence number."""
    return ReservationId("res-" + _base32(sequence))


def element_id(parent: JobId, index: int) -> JobId:
    """Return the id of one element of an array job."""
    return JobId(f"{parent}.{index}")


def array_parent(job: JobId) -> JobId | None:
    """Return the array job that this element belongs to, or None for any other job."""
    head, dot, _ = job.partition(".")
    return JobId(head) if dot else None


def task_key(job: JobId, attempt: int, task: int) -> str:
    """Return the key of one task of one attempt, unique for ever: `job-00001/2/0`."""
    return f"{job}/{attempt}/{task}"
