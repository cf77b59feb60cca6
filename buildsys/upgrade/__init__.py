"""Upgrades of libraries, judged by builds with the old and the new versions side by side."""
