"""Predictions from what was seen: how long jobs run, and what start estimates are worth."""
