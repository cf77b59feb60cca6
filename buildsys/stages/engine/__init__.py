"""The engine stage: build one inference engine."""
