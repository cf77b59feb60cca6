"""Compatibility of built engines with this machine."""
