from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import pytest


@pytest.fixture(scope="session", autouse=True)
def _torchlib_parsed_once() -> Iterator[None]:
    """Cache torchlib's functions: every dynamo export parses 500 of them again."""
    from onnxscript._framework_apis import torch_2_5

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch_2_5, "get_torchlib_ops", cache(torch_2_5.get_torchlib_ops))
        yield
