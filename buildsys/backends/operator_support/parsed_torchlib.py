"""Torchlib, parsed when this module is imported: by a server, before it forks for exports."""

from buildsys.backends.operator_support.torch_registries import parse_torchlib

parse_torchlib()
