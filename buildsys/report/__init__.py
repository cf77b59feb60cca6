"""The report on one model."""
