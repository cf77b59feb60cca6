"""Accuracy of engines on data: samples, metrics and their statistics."""
