"""Latency against throughput of an engine under an open load."""
