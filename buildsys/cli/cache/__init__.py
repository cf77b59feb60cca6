"""doit cache: contents, verification and garbage collection of the store."""
