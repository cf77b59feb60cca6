"""From a float32 graph to one in 16-bit types, and what such a graph computes on any processor."""
