"""Fields of a manifest, one module per section."""
