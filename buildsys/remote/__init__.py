"""Builds on other machines: Ray, Slurm, Kubernetes, ssh."""
