"""Checks across fields that a schema cannot express."""
