"""Tests on a real Ray cluster of four nodes on loopback, one cluster for them all."""
