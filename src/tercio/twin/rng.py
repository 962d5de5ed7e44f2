"""Named streams of random numbers: same seed and name, same numbers, on every machine.

Each part of the world draws from a stream of its own, so that a part which draws more does not
change what the others see. The generator is SplitMix64 (Steele, Lea and Flood, Fast Splittable
Pseudorandom Number Generators, OOPSLA 2014).

>>> Stream(1, "faults").whole(100) == Stream(1, "faults").whole(100)
True
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import Final, TypeVar

Choice = TypeVar("Choice")

_MASK: Final = (1 << 64) - 1
_STEP: Final = 0x9E3779B97F4A7C15


class Stream:
    """One stream."""

    __slots__ = ("_state",)

    def __init__(self, seed: int, name: str) -> None:
        digest = hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=8).digest()
        self._state = int.from_bytes(digest, "little")

    def bits(self) -> int:
        """64 random bits."""
        self._state = (self._state + _STEP) & _MASK
        z = self._state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
        return z ^ (z >> 31)

    def unit(self) -> float:
        """Uniform in [0, 1)."""
        return (self.bits() >> 11) * (1.0 / (1 << 53))

    def uniform(self, low: float, high: float) -> float:
        """Uniform in [low, high)."""
        return low + (high - low) * self.unit()

    def whole(self, count: int) -> int:
        """Uniform in 0 .. count - 1."""
        return self.bits() % count

    def chance(self, probability: float) -> bool:
        """Whether something of this probability happens; draws even when it is 0."""
        return self.unit() < probability

    def choice(self, among: Sequence[Choice]) -> Choice:
        """One of them."""
        return among[self.whole(len(among))]

    def exponential(self, mean: float) -> float:
        """Time to the next event of a memoryless process."""
        return -mean * math.log(1.0 - self.unit())

    def weibull(self, shape: float, scale: float) -> float:
        """Time to failure; a shape below 1 stands for early failures, above 1 for wear."""
        return float(scale * (-math.log(1.0 - self.unit())) ** (1.0 / shape))

    def lognormal(self, median: float, sigma: float) -> float:
        """Log-normal by its median and the deviation of its logarithm."""
        radius = math.sqrt(-2.0 * math.log(1.0 - self.unit()))
        return median * math.exp(sigma * radius * math.cos(2.0 * math.pi * self.unit()))
