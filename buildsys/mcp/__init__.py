"""Answers of commands for assistants, over the Model Context Protocol."""
