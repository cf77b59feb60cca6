"""doit explain and doit plan."""
