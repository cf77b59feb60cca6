"""The orchestrator's side: find, start and use worker servers."""
