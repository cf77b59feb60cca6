"""Resolved models to actions."""
