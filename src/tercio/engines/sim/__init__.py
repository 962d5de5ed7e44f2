"""Simulated nodes: tasks that run by a script instead of processes, on a virtual or real clock."""
