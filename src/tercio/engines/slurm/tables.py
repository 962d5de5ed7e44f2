"""Slurm's state words, each mapped by one total table; a word of a later version reads as closed.

Sources: the manual pages of scontrol, sinfo and squeue (NODE STATE CODES, JOB STATE CODES, JOB
REASON CODES) of Slurm 22.05 to 25.05, and `slurm.h` for the flag words that JSON answers use.
"""

from __future__ import annotations

from enum import StrEnum
from types import MappingProxyType
from typing import Final


class Openness(StrEnum):
    """Whether a node takes new work, in order of severity."""

    OPEN = "open"
    CLOSED = "closed"
    DOWN = "down"
    ABSENT = "absent"


class Phase(StrEnum):
    """Where a Slurm job is in its life."""

    WAITING = "waiting"
    STARTING = "starting"
    RUNNING = "running"
    ENDING = "ending"
    ENDED = "ended"


_OPEN_WORDS: Final = (
    "IDLE ALLOCATED ALLOC MIXED MIX COMPLETING COMP PLANNED PLND CLOUD DYNAMIC_NORM PERFCTRS NPC"
    " POWERED_DOWN POWERING_UP POWER_UP RESUME UNDRAIN REBOOT_CANCELED CANCEL_REBOOT EXTERNAL"
)
_CLOSED_WORDS: Final = (
    "DRAIN DRAINED DRAINING DRAINED* DRNG DRNG* FAIL FAILG FAILING ERROR MAINT RESERVED RESV RES"
    " POWERING_DOWN POWER_DOWN POWER_DRAIN REBOOT REBOOT_REQUESTED BLOCKED INVAL INVALID"
    " INVALID_REG UNKNOWN UNK"
)
_DOWN_WORDS: Final = "DOWN NOT_RESPONDING NO_RESPOND REBOOT_ISSUED"
_ABSENT_WORDS: Final = "FUTURE FUTR DYNAMIC_FUTURE END"

NODE_WORDS: Final = MappingProxyType(
    dict.fromkeys(_OPEN_WORDS.split(), Openness.OPEN)
    | dict.fromkeys(_CLOSED_WORDS.split(), Openness.CLOSED)
    | dict.fromkeys(_DOWN_WORDS.split(), Openness.DOWN)
    | dict.fromkeys(_ABSENT_WORDS.split(), Openness.ABSENT)
)
"""Every word of a node's state. One that is not here closes the node."""

NODE_MARKS: Final = MappingProxyType(
    {
        "*": Openness.DOWN,  # does not respond
        "~": Openness.OPEN,  # powered off to save energy; Slurm wakes it
        "#": Openness.OPEN,  # being powered up or configured
        "!": Openness.CLOSED,  # pending power down
        "%": Openness.CLOSED,  # being powered down
        "$": Openness.CLOSED,  # in a maintenance reservation
        "@": Openness.CLOSED,  # pending reboot
        "^": Openness.DOWN,  # rebooting
        "-": Openness.OPEN,  # planned by backfill for a larger job
        "+": Openness.OPEN,  # more flags follow
    }
)
"""Marks behind a state word, as `sinfo` and `scontrol` print them."""

_SEVERITY: Final = tuple(Openness)

JOB_PHASES: Final = MappingProxyType(
    {
        "PENDING": Phase.WAITING,
        "REQUEUED": Phase.WAITING,
        "REQUEUE_FED": Phase.WAITING,
        "REQUEUE_HOLD": Phase.WAITING,
        "RESV_DEL_HOLD": Phase.WAITING,
        "SPECIAL_EXIT": Phase.WAITING,
        "UPDATE_DB": Phase.WAITING,
        "CONFIGURING": Phase.STARTING,
        "POWER_UP_NODE": Phase.STARTING,
        "RUNNING": Phase.RUNNING,
        "SUSPENDED": Phase.RUNNING,
        "STOPPED": Phase.RUNNING,
        "SIGNALING": Phase.RUNNING,
        "RESIZING": Phase.RUNNING,
        "EXPEDITING": Phase.WAITING,
        "STAGE_OUT": Phase.ENDING,
        "COMPLETING": Phase.ENDING,
        "COMPLETED": Phase.ENDED,
        "CANCELLED": Phase.ENDED,
        "FAILED": Phase.ENDED,
        "TIMEOUT": Phase.ENDED,
        "NODE_FAIL": Phase.ENDED,
        "PREEMPTED": Phase.ENDED,
        "BOOT_FAIL": Phase.ENDED,
        "DEADLINE": Phase.ENDED,
        "OUT_OF_MEMORY": Phase.ENDED,
        "REVOKED": Phase.ENDED,
        "LAUNCH_FAILED": Phase.ENDED,
        "RECONFIG_FAIL": Phase.ENDED,
    }
)
"""Every job state. One that is not here reads as running: it is there, and nothing is decided."""

LOST_STATES: Final = MappingProxyType(
    {
        "NODE_FAIL": "its node failed",
        "BOOT_FAIL": "its node did not boot",
        "PREEMPTED": "preempted in Slurm",
        "REVOKED": "revoked: a sibling cluster started it",
        "LAUNCH_FAILED": "Slurm could not launch it",
        "RECONFIG_FAIL": "its node could not be configured",
    }
)
"""Ends that were not the task's own."""

END_MESSAGES: Final = MappingProxyType(
    {
        "CANCELLED": "cancelled in Slurm",
        "TIMEOUT": "reached its time limit in Slurm",
        "DEADLINE": "missed its deadline in Slurm",
        "OUT_OF_MEMORY": "out of memory",
    }
)

NEVER_REASONS: Final = frozenset(
    (
        "BadConstraints", "InvalidAccount", "InvalidQOS", "AccountNotAllowed", "QOSNotAllowed",
        "DependencyNeverSatisfied", "PartitionNodeLimit", "PartitionTimeLimit", "MaxMemPerLimit",
        "QOSMaxWallDurationPerJobLimit", "QOSMaxGRESPerJob", "QOSMaxCpuPerJobLimit",
        "QOSMaxMemoryPerJob", "QOSMaxNodePerJobLimit", "AssocMaxWallDurationPerJobLimit",
        "AssocMaxGRESPerJob", "AssocMaxCpuPerJobLimit", "AssocMaxNodePerJobLimit", "JobHoldAdmin",
    )
)  # fmt: skip
"""Reasons for which a job waits and that waiting does not mend."""

PASSING_FAULTS: Final = (
    "Unable to contact slurm controller",
    "Socket timed out",
    "Zero Bytes were transmitted",
    "Slurm temporarily unable to accept job",
    "Resource temporarily unavailable",
    "Slurm backup controller in standby mode",
    "Slurm controller connect failure",
    "Connection refused",
    "Connection reset",
    "Connection timed out",
    "Transport endpoint is not connected",
    "Protocol authentication error",
    "Munge decode failed",
    "Incompatible versions",
    "Expired credential",
)
"""Texts of errors after which the same order may succeed; any other refusal stays."""


def node_openness(state: str) -> tuple[Openness, tuple[str, ...]]:
    """Return what a state text such as `MIXED+DRAIN*` means, and the words that close the node.

    >>> node_openness("IDLE+DRAIN")
    (<Openness.CLOSED: 'closed'>, ('drain',))
    """
    worst, why = Openness.OPEN, list[str]()
    for part in state.upper().replace(",", "+").split("+"):
        word = part.rstrip("*~#!%$@^-")
        marks = part[len(word) :]
        found = [NODE_WORDS.get(word, Openness.CLOSED)] if word else []
        found += [NODE_MARKS[mark] for mark in marks]
        for each in found:
            worst = max(worst, each, key=_SEVERITY.index)
            if each is not Openness.OPEN and word.lower() not in why:
                why.append(word.lower())
    return worst, tuple(why)


def job_phase(state: str) -> Phase:
    """Return the phase of a state text; of several words the one that is furthest on.

    >>> job_phase("RUNNING,COMPLETING")
    <Phase.ENDING: 'ending'>
    """
    order = tuple(Phase)
    # `CANCELLED by 1000` names who did it.
    words = [word.split(" ")[0] for word in state.upper().replace("+", ",").split(",") if word]
    phases = [JOB_PHASES.get(word, Phase.RUNNING) for word in words]
    return max(phases, key=order.index, default=Phase.RUNNING)


def is_passing(text: str) -> bool:
    """Whether an error of a Slurm command may pass by itself."""
    return any(fault.lower() in text.lower() for fault in PASSING_FAULTS)
