"""The simplify stage: a smaller graph with equal outputs."""
