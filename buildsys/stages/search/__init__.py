"""Search for the nodes that make a converted graph inaccurate."""
