"""What a job says of its model, and what sizing answered.

Both are kept with the job, so that the answer can be compared with what happened.
"""

from __future__ import annotations

import msgspec

from tercio.model.node import DeviceSpec
from tercio.model.resources import DeviceRequest

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


class Layout(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a training step lies on the devices of a job; a task finds it in its environment.

    Attributes:
        tp, pp, cp, ep, dp: sizes of tensor, pipeline, context, expert and data parallelism.
        sharding: `none`, or how far the states are split: `zero1`, `zero2`, `zero3` (FSDP).
        shard_group: devices that split the states among them.
        micro_batch: sequences of one device at a time.
        microbatches: micro-batches of a device between two optimizer steps.
        virtual_stages: model chunks of a device in an interleaved pipeline.
        precision: of the matrix products.
        recompute: `none`, `selective` or `full` recomputation of activations.
    """

    tp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1
    dp: int = 1
    sharding: str = "none"
    shard_group: int = 1
    micro_batch: float = 1.0
    microbatches: int = 1
    virtual_stages: int = 1
    precision: str = "bf16"
    recompute: str = "none"

    def words(self) -> str:
        """The layout in a line; sizes of 1 are left out, except all of them.

        >>> Layout(tp=4, dp=2, sharding="zero1", microbatches=16).words()
        'tp 4, dp 2, zero1, micro-batch 1 x 16, bf16, recompute none'
        """
        sizes = [(n, getattr(self, n)) for n in ("tp", "pp", "cp", "ep", "dp")]
        words = [f"{name} {size}" for name, size in sizes if size > 1 or name == "dp"]
        if self.virtual_stages > 1:
            words.append(f"{self.virtual_stages} chunks a stage")
        if self.sharding != "none":
            words.append(self.sharding)
        words.append(f"micro-batch {self.micro_batch:g} x {self.microbatches}")
        return ", ".join([*words, self.precision, f"recompute {self.recompute}"])


class SizedChoice(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One alternative that sizing found; times are an 80 % range around `expected_s`.

    `devices` is in the words of the job file, `part` the catalogue's name of the device type.
    `expected_s` and its range are None where the job states no tokens, `cost_usd` where no
    price is published. `tokens_per_s` is the speed that the times come from, and
    `probe_ratio` what the site's probes put into it.
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
    tokens_per_s: float | None = None
    layout: Layout | None = None
    probe_ratio: float = 1.0


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


def choice_of(
    sized: Sized, requests: tuple[DeviceRequest, ...], device: DeviceSpec, count: int
) -> SizedChoice | None:
    """Return the alternative that a task with `count` devices such as this one runs on, or None.

    `requests` are what the job asks for; where sizing chose them, they stand as its choices do.
    """
    for choice, request in zip(sized.choices, requests, strict=False):
        size = request.card_bytes
        if (choice.type, choice.per_task) == (device.type, count) and (
            size is None or device.card_bytes == size
        ):
            return choice
    return None
