"""doit repro: build a model twice and compare the artifacts."""
