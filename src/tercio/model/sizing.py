"""What a job says of its model, and what sizing answered.

Both are kept with the job, so that the answer can be compared with what happened.
"""

from __future__ import annotations

import msgspec

AUTO_METHODS = ("pretrain", "full", "lora", "qlora")


class ModelSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The `model:` block of a job file: what is trained and how much of it.

    Attributes:
        name: name in the catalogue; empty where `config` describes the model.
        config: a model's own configuration (config.json and its kin) as JSON text, or None.
        method: one of `AUTO_METHODS`.
        tokens: tokens to train on, or None where the end is not known.
        seq: tokens of one sequence.
        batch_tokens: tokens of a global batch, for pre-training.
        micro_batch: sequences of one device at a time.
        devices_max: most devices that the job may take, or None for all there are.
    """

    name: str = ""
    config: str | None = None
    method: str = "lora"
    tokens: float | None = None
    seq: int = 4096
    batch_tokens: float = 4_194_304.0
    micro_batch: float = 1.0
    devices_max: int | None = None


class SizedChoice(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One alternative that sizing found; times are an 80 % range around `expected_s`.

    `devices` is in the words of the job file, `part` the catalogue's name of the device type.
    `expected_s` and its range are None where the job states no tokens, `cost_usd` where no
    price is published.
    """

    devices: str
    part: str
    type: str
    per_task: int
    tasks: int
    expected_s: float | None = None
    low_s: float | None = None
    high_s: float | None = None
    cost_usd: float | None = None
    why: str = ""


class Sized(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The answer of sizing for one job, in order of preference, and what it was made from.

    Attributes:
        catalogue: version of the catalogue.
        calibration: version of the calibration.
        site_ratio: run time of this cluster's finished jobs over their prediction, which the
            times already contain; 1 where none has finished yet.
        site_jobs: how many finished jobs that ratio was learnt from.
    """

    choices: tuple[SizedChoice, ...]
    catalogue: str
    calibration: str
    site_ratio: float = 1.0
    site_jobs: int = 0
