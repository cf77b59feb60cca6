"""A project as a whole: the plan of its models."""
