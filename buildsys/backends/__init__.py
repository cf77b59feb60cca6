"""The engine interface and its implementations, one package per backend."""
