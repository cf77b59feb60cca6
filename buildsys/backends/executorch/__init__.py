"""ExecuTorch as a backend."""
