"""The orchestrator's side of worker servers."""
