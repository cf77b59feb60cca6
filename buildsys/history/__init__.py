"""History of builds and benchmarks, comparison and gates."""
