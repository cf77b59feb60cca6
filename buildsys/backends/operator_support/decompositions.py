"""Repeated work that torch does before it decomposes a program: a third of a small dynamo export.

Results are the same. If torch does not have these functions, nothing is changed.
"""

from __future__ import annotations

import collections.abc
import typing
from functools import cache
from typing import Any
from unittest.mock import patch

import torch
from torch._export import utils
from torch.export import decomp_utils, exported_program

_LIST, _LOAD = "_collect_all_valid_cia_ops", "_materialize_cpp_cia_ops"


@cache
def avoid_repetitions() -> None:
    """Let torch load composite operators once per list of them, and make no types."""
    users = (decomp_utils, exported_program)
    if hasattr(utils, _LOAD) and all(hasattr(module, _LIST) for module in users):
        for module in users:
            setattr(module, _LIST, _list_composite_operators)
    if getattr(torch._ops, "Callable", None) is collections.abc.Callable:
        # torch makes 11,000 such types per export, in annotations; those of `typing` are cached
        vars(torch._ops)["Callable"] = typing.Callable


def _list_composite_operators() -> set[Any]:
    """Return what torch does, which would load all operators for each of 30 namespaces."""
    utils._materialize_cpp_cia_ops()
    with patch.object(utils, _LOAD, lambda: None):
        return utils._collect_all_valid_cia_ops()
