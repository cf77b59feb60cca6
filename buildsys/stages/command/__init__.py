"""Command stage."""
