"""All throughput profiles at hand: goodput profiles by model, and rates by model and type."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec

from tercio.twin.progress.application import Application
from tercio.twin.progress.course import Course, steady


class Rates(msgspec.Struct, frozen=True, kw_only=True):
    """Steps per second of one model on one device type.

    Attributes:
        together: by number of devices, all on as few nodes as possible.
        apart: by number of devices, spread over nodes.
    """

    together: Mapping[int, float]
    apart: Mapping[int, float] = {}

    def at(self, devices: int, *, is_apart: bool = False) -> float | None:
        """Return the rate, between measured numbers of devices interpolated in logarithms."""
        rates = self.apart if is_apart and self.apart else self.together
        if devices in rates:
            return rates[devices]
        below = [count for count in rates if count < devices]
        above = [count for count in rates if count > devices]
        if not below or not above:
            return None
        low, high = max(below), min(above)
        if rates[low] <= 0 or rates[high] <= 0:
            return None
        part = math.log(devices / low) / math.log(high / low)
        return float(rates[low] * (rates[high] / rates[low]) ** part)


class ProfileBook(msgspec.Struct, frozen=True, kw_only=True):
    """Profiles by name of the model (`TraceJob.model`).

    Attributes:
        applications: with goodput: the batch may change with the gang.
        rates: measured rates by model, then by device type in our vocabulary.
    """

    applications: Mapping[str, Application] = {}
    rates: Mapping[str, Mapping[str, Rates]] = {}

    def device_types(self, model: str) -> tuple[str, ...]:
        """Return the types on which a model was measured."""
        if model in self.applications:
            return tuple(self.applications[model].steps_by_type)
        return tuple(self.rates.get(model, {}))

    def units_per_s(
        self, model: str, device_type: str, placement: Sequence[int], batch: float | None = None
    ) -> float | None:
        """Return progress per second of a gang over a whole run, or None where not measured.

        Args:
            model: name of the profile.
            device_type: type of all devices.
            placement: devices on each node.
            batch: samples of one update, for goodput profiles; None takes the best.
        """
        application = self.applications.get(model)
        if application is not None:
            return application.mean_progress_per_s(device_type, placement, batch)
        rates = self.rates.get(model, {}).get(device_type)
        return None if rates is None else rates.at(sum(placement), is_apart=len(placement) > 1)

    def course(
        self, model: str, device_type: str, placement: Sequence[int], work: float | None = None
    ) -> Course | None:
        """Return the course of a job's work at a placement, or None where not measured.

        `work` is in units of the profile (steps), for models with measured rates; one with
        goodput always trains to its end.
        """
        application = self.applications.get(model)
        if application is not None:
            return application.course(device_type, placement)
        rate = self.units_per_s(model, device_type, placement)
        return None if not rate or work is None else steady(work / rate)

    def restart_s(self, model: str) -> float:
        """Return what a restart from a checkpoint costs, in seconds; 0 where none is known."""
        application = self.applications.get(model)
        return 0.0 if application is None else application.restart_s
