"""The evaluate stage: the accuracy of an engine on data."""
