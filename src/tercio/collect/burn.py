"""The active checks of `tercio check --load`: work on the GPUs, in a child process.

Needs PyTorch, which is imported here only. One JSON line for each measurement:

    {"name": "gemm", "device": 0, "value": 612.0, "is_right": true}
    {"name": "skipped", "text": "PyTorch sees no GPU"}

A matrix product of whole numbers has one right answer, so a device that computes wrongly is told
from one that is slow. Run as a module; `cpu` as argument measures the processor, for tests.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import Any, Final

import msgspec

_MODULE: Final = "tercio.collect.burn"
_WARM_UPS: Final = 2
_ROUNDS: Final = 10
_ROWS_CHECKED: Final = 64
_TERA: Final = 1e12
_GIGA: Final = 1e9


class Measurement(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One measurement; `name` is `skipped` where `text` says why nothing was measured.

    Attributes:
        device: index, None for all together.
        value: TFLOP/s of `gemm`, GB/s of `memory` and `all_reduce` (bus bandwidth).
        is_right: whether the result was the one there is.
    """

    name: str
    device: int | None = None
    value: float = 0.0
    is_right: bool = True
    text: str = ""


def measure(*, timeout_s: float, kind: str = "cuda") -> tuple[tuple[Measurement, ...], str]:
    """Run the child and return what it measured, and why it did not end well (empty if it did).

    Blocks until the child has ended, or its deadline: it is killed then.
    """
    # No current directory on the module path: it may belong to anybody.
    command = [sys.executable, "-P", "-m", _MODULE, kind]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired as late:
        return _read(_text(late.stdout)), f"no end within {timeout_s:g}s"
    last = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
    return _read(done.stdout), "" if done.returncode == 0 else last[0]


def _text(raw: bytes | str | None) -> str:
    return raw.decode(errors="replace") if isinstance(raw, bytes) else raw or ""


def _read(output: str) -> tuple[Measurement, ...]:
    lines = [line for line in output.splitlines() if line.startswith("{") and line.endswith("}")]
    return tuple(msgspec.json.decode(line, type=Measurement) for line in lines)


def main(kind: str) -> None:
    """Measure every device, then all together: the child's whole life."""
    try:
        import torch
    except ImportError:
        _tell(name="skipped", text="PyTorch is not installed for this Python")
        return
    if kind == "cuda" and not torch.cuda.is_available():
        _tell(name="skipped", text="PyTorch sees no GPU")
        return
    count = torch.cuda.device_count() if kind == "cuda" else 1
    for index in range(count):
        device = torch.device(kind, index) if kind == "cuda" else torch.device(kind)
        _gemm(torch, device, index)
        _memory(torch, device, index)
    if count > 1:
        _all_reduce(torch, count)


def _gemm(torch: Any, device: Any, index: int) -> None:
    is_gpu = device.type == "cuda"
    side, kind = (8192, torch.bfloat16) if is_gpu else (256, torch.float32)
    draw = torch.Generator().manual_seed(index)
    left = torch.randint(-1, 2, (side, side), generator=draw, dtype=torch.int8)
    right = torch.randint(-1, 2, (side, side), generator=draw, dtype=torch.int8)
    a, b = left.to(device, kind), right.to(device, kind)
    spent_s = _timed(torch, device, lambda: a @ b)
    # Sums of so few ones are whole numbers that every format here holds almost exactly.
    wanted = left[:_ROWS_CHECKED].double() @ right.double()
    found = (a @ b)[:_ROWS_CHECKED].double().cpu()
    is_right = bool(((found - wanted).abs() <= 2.0).all())
    _tell(name="gemm", device=index, value=2.0 * side**3 / spent_s / _TERA, is_right=is_right)


def _memory(torch: Any, device: Any, index: int) -> None:
    size = 2**30 if device.type == "cuda" else 2**22
    source = torch.arange(size // 4, dtype=torch.int32, device=device)
    target = torch.empty_like(source)
    spent_s = _timed(torch, device, lambda: target.copy_(source))
    is_right = bool(torch.equal(source, target))
    _tell(name="memory", device=index, value=2.0 * size / spent_s / _GIGA, is_right=is_right)


def _all_reduce(torch: Any, count: int) -> None:
    size = 2**28
    devices = [torch.device("cuda", index) for index in range(count)]
    ones = [torch.ones(size // 4, device=device) for device in devices]

    def reduce() -> None:
        torch.cuda.nccl.all_reduce(ones)

    reduce()
    is_right = all(bool((each == float(count)).all()) for each in ones)
    for each in ones:
        each.zero_()
    spent_s = _timed(torch, devices[0], reduce)
    # Bus bandwidth as nccl-tests count it: 2 (n - 1) / n times the bytes, over the time.
    value = size / spent_s * 2 * (count - 1) / count / _GIGA
    _tell(name="all_reduce", value=value, is_right=is_right)


def _timed(torch: Any, device: Any, work: Any) -> float:
    """Return the seconds of one run of the work, the best of several."""
    best_s = float("inf")
    for number in range(_WARM_UPS + _ROUNDS):
        _wait(torch, device)
        begun_s = time.perf_counter()
        work()
        _wait(torch, device)
        if number >= _WARM_UPS:
            best_s = min(best_s, time.perf_counter() - begun_s)
    return best_s


def _wait(torch: Any, device: Any) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _tell(**fields: object) -> None:
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "cuda")
