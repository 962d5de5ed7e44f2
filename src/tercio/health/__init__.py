"""Faults: from log lines and readings to findings, incidents, and a policy that acts on them."""
