"""Executors: systems for jobs on other machines."""
