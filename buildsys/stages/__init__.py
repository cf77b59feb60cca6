"""One folder per step from a model to a report."""
