"""Checks between fields."""
