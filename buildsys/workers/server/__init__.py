"""The worker server and its children."""
