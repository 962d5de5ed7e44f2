"""Protocols of published evaluations, run through the live scheduler in virtual time."""
