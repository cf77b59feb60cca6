"""Faster dynamo exports: each one parses the 500 functions of torchlib again."""

from __future__ import annotations

from functools import cache

import pytest


def parse_torchlib_once(patch: pytest.MonkeyPatch) -> None:
    """Parse torchlib at the first export only."""
    from onnxscript._framework_apis import torch_2_5

    patch.setattr(torch_2_5, "get_torchlib_ops", cache(torch_2_5.get_torchlib_ops))
