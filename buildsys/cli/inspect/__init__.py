"""doit inspect, diff and netron."""
