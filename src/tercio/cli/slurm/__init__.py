"""Slurm's programs for people and scripts that know them, on any site: see `tercio shims`."""
