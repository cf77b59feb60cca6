"""Reduction of a failing engine to the smallest graph with the same failure."""
