"""OpenVINO as a backend."""
