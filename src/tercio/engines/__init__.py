"""Adapters that run tasks on machines and clusters that exist."""
