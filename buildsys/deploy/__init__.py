"""Running built engines: ``load_engine``, the public API next to ``can_run``."""
