"""Rounding of tensors to narrow floating-point types."""
