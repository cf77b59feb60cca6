"""Console output of a run."""
