"""TensorRT timing caches: tactic times measured by one engine build, reused by later ones."""
