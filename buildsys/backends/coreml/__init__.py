"""Core ML as a backend."""
