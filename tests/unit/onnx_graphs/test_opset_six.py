"""Opset 6 in opset 7, compared with broadcasting written out in numpy."""

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser
from onnx.reference import ReferenceEvaluator

from buildsys.errors import StageError
from buildsys.onnx_graphs.opset_six import broadcasts_along_an_axis, raise_to_seven

X = np.random.default_rng(0).standard_normal((2, 3, 4, 3)).astype(np.float32)
V, M = np.float32([1, -2, 3]), np.arange(12, dtype=np.float32).reshape(3, 4)


def model_of(node: str, w: np.ndarray, out: str = "float[n,3,4,3]") -> onnx.ModelProto:
    header = '<ir_version: 4, opset_import: ["": 6]>'
    model: onnx.ModelProto = parser.parse_model(
        f"{header} g (float[n,3,4,3] x) => ({out} y) {{ h = Relu (x) y = {node} }}"
    )
    model.graph.initializer.append(numpy_helper.from_array(w, "w"))
    return model


@pytest.mark.parametrize(
    ("node", "w", "expected"),
    [
        ("Add <broadcast=1, axis=1> (h, w)", V, lambda h: h + V[:, None, None]),
        ("Mul <broadcast=1, axis=-1> (h, w)", V, lambda h: h * V),
        ("Sub <broadcast=1, axis=1> (h, w)", M, lambda h: h - M[:, :, None]),
        ("Div <broadcast=1> (h, w)", V, lambda h: h / V),
        ("Pow <broadcast=1, axis=3> (h, w)", np.abs(V), lambda h: h ** np.abs(V)),
        ("Add (h, h)", V, lambda h: h + h),
        ("PRelu (x, w)", V, lambda _: np.where(X > 0, X, X * V[:, None, None])),
        ("Dropout <is_test=1> (h)", V, lambda h: h),
    ],
)
def test_broadcasting_along_an_axis(
    node: str, w: np.ndarray, expected: Callable[[np.ndarray], np.ndarray]
) -> None:
    model = model_of(node, w)
    assert broadcasts_along_an_axis(model) is ("axis" in node or "PRelu" in node)
    raise_to_seven(model)
    onnx.checker.check_model(model, full_check=True)
    assert model.opset_import[0].version == 7
    (actual,) = ReferenceEvaluator(model).run(None, {"x": X})
    np.testing.assert_allclose(actual, expected(np.maximum(X, 0)), rtol=1e-6)


def test_what_changed_otherwise_is_named() -> None:
    node = 'Upsample <mode="nearest", width_scale=2.0, height_scale=2.0> (x)'
    with pytest.raises(StageError, match=r"Upsample \(node y\) of opset 6 changed"):
        raise_to_seven(model_of(node, V, "float[n,3,8,6]"))
