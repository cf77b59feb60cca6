from __future__ import annotations

from typing import Any

import pytest
from planning import plan_of

from buildsys.plan.action import Action

MANIFEST: dict[str, Any] = {
    "model": "net",
    "source": {"python": "plugins/net.py:make", "weights": {"file": "weights/net.pth"}},
    "inputs": {
        "x": {"shape": ["batch", 4], "data": {"npz": "data/x.npz"}},
        "ids": {"shape": ["batch"], "dtype": "int64"},
    },
    "outputs": {"y": {}},
    "dims": {"batch": {"min": 1, "opt": 4, "max": 8}},
    "engines": [
        {"backend": "onnxruntime", "name": "ort"},
        {"backend": "tensorrt_rtx", "name": "rtx16", "precision": "fp16"},
    ],
}


def plan(**changes: Any) -> dict[str, Action]:
    return plan_of({**MANIFEST, **changes})


def changed(**changes: Any) -> set[str]:
    """Return the targets with options or sources unlike the plain manifest's."""
    before, after = plan(), plan(**changes)
    return {
        target
        for target in before.keys() | after.keys()
        if target not in before
        or target not in after
        or (before[target].options, before[target].sources)
        != (after[target].options, after[target].sources)
    } - {"report:net"}


@pytest.mark.parametrize(
    ("changes", "targets"),
    [
        ({"bench": {"duration": "1s"}}, {"bench:net:ort", "bench:net:rtx16"}),
        ({"export": {"opset": 18}}, {"export:net"}),
        ({"simplify": {"tool": "onnxslim"}}, {"simplify:net"}),
        ({"validate": {"rtol": 1e-3}}, {"validate:net"}),
        ({"verify": {"fp16": {"rtol": 0.5}}}, {"convert:net:fp16", "verify:net:rtx16"}),
        ({"verify": {"fp32": {"rtol": 0.5}}}, {"verify:net:ort"}),
        ({"description": "a net"}, set()),
        ({"tags": ("nightly",), "owner": "vision team", "flaky": True}, set()),
        ({"timeout": {"export": "1min"}}, set()),
        (
            {
                "engines": [
                    {**MANIFEST["engines"][0], "intra_op_threads": 1},
                    MANIFEST["engines"][1],
                ]
            },
            {"engine:net:ort", "verify:net:ort", "bench:net:ort"},
        ),
        (
            {
                "engines": [
                    {**MANIFEST["engines"][0], "tolerance": {"rtol": 0.1}},
                    MANIFEST["engines"][1],
                ]
            },
            {"verify:net:ort"},
        ),
        (
            {
                "engines": [
                    MANIFEST["engines"][0],
                    {**MANIFEST["engines"][1], "tolerance": {"rtol": 0.1}},
                ]
            },
            {"verify:net:rtx16"},
        ),
        (
            {"engines": [MANIFEST["engines"][0]]},
            {"convert:net:fp16", "engine:net:rtx16", "verify:net:rtx16", "bench:net:rtx16"},
        ),
    ],
)
def test_a_field_reaches_exactly_the_stages_that_use_it(
    changes: dict[str, Any], targets: set[str]
) -> None:
    assert changed(**changes) == targets


def test_a_wider_range_does_not_touch_the_export() -> None:
    targets = changed(dims={"batch": {"min": 1, "opt": 8, "max": 16}})
    assert "export:net" not in targets
    assert {"reference:net", "validate:net", "engine:net:rtx16"} <= targets
    assert "engine:net:ort" in targets  # its record has the sizes that were verified


def test_a_half_precision_engine_is_built_from_the_converted_model() -> None:
    actions = plan()
    assert actions["engine:net:rtx16"].after == ("convert:net:fp16",)
    assert actions["engine:net:ort"].after == ("simplify:net",)
