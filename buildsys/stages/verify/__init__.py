"""The verify stage: an engine against the golden outputs."""
