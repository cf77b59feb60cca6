"""Search for the inaccurate nodes of a converted graph."""
