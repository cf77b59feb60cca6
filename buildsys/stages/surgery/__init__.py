"""Change a graph step by step, and show after each that it is valid and computes what it should."""
