"""Scenarios import `play` from this directory."""
