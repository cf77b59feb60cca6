"""State of the build folder after a failed run."""
