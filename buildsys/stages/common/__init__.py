"""Checks shared by several stages."""
