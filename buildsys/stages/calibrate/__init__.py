"""The calibrate stage: value ranges of all tensors."""
