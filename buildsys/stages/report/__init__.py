"""The report stage: all results of a model on one page."""
