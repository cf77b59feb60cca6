"""Executors: systems that run jobs on other machines."""
