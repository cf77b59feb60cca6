"""YAML manifests to resolved, checked models."""
