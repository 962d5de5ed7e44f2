"""How fast a job advances: measured throughput by device type and gang, and goodput."""
