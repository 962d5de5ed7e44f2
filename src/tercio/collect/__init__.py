"""Reads facts of this machine: accelerators through their vendors' libraries, and /proc."""
