"""The model of a manifest: user code, network, weights and golden inputs."""
