"""TensorRT timing caches: measured tactic times, reused by later builds."""
