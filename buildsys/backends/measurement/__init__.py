"""Timing loops for engines and baselines."""
