"""Which rung of the ladder to take when an operator is not translated or not taken: docs/rungs has a page for each."""
