"""Readers of recorded workloads: text in, `Trace` out. Each takes `(text, source)`."""

from tercio.twin.trace import Trace, TraceJob

__all__ = ["Trace", "TraceJob"]
