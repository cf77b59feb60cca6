"""Executor, action keys, freshness, stale reasons, build cache."""
