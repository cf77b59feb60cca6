"""Kinds of ``source`` in a manifest, one module each, named like the manifest's field."""
