"""Plan of each stage: its actions and all their dependencies."""
