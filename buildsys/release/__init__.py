"""Releases: signed indexes of published engines, channels, and the choice of an engine."""
