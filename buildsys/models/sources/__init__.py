"""Kinds of ``source`` in a manifest; modules are named like fields."""
