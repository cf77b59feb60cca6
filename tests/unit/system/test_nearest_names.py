from __future__ import annotations

import pytest

from buildsys.system.printable import nearest

NAMES = [
    "build:resnet50",
    "build:resnet18",
    "export:resnet50",
    "engine:resnet50:rtx-fp16",
    "build:vgg11",
]


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("build:resnet5", "build:resnet50"),
        ("exprt:resnet50", "export:resnet50"),
        ("resnet18", "build:resnet18"),
        ("rtx", "engine:resnet50:rtx-fp16"),
    ],
)
def test_the_nearest_name_comes_first(name: str, first: str) -> None:
    assert nearest(name, NAMES)[0] == first


def test_nothing_is_offered_for_something_else() -> None:
    assert nearest("quantum", NAMES) == []
    assert nearest("", NAMES) == []


def test_names_that_differ_only_in_case_are_offered() -> None:
    assert nearest("CUDA", ["cpu", "cuda"], count=1) == ["cuda"]
