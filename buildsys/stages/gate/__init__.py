"""The gate stage: figures of an engine against limits and its baseline."""
