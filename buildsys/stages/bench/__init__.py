"""The bench stage: latency of an engine and its baselines."""
