"""Simplification of the exported graph, with equal outputs."""
