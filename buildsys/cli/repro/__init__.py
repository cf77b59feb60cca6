"""Whether a model is built to the same bytes again: two clean copies of a project, and what differs between them."""
