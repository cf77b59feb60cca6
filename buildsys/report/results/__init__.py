"""Types of the result files, one module per stage, and their reader."""
