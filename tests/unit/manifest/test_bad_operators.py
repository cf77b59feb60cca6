"""What can be wrong with the section ops: found when manifests are loaded, with line and column."""

from __future__ import annotations

import pytest

NET = "configs/models/net.yaml"
FUNCTION = "function: plugins/ops/swish.py:swish"


@pytest.mark.parametrize(
    ("ops", "expected"),
    [
        (
            f"[{{op: customOp2, {FUNCTION}}}]",
            '6:12: ops.0.op: "customOp2" is not an operator with its domain such as custom_domain::customOp',
        ),
        (
            f'[{{op: "onnx::Swish", {FUNCTION}}}]',
            "6:12: ops.0.op: onnx::Swish is in a domain of ONNX itself, where nothing can be added; "
            "choose a domain of your own such as custom_domain::",
        ),
        (f'[{{op: "ai.onnx::Swish", {FUNCTION}}}]', "6:12: ops.0.op: ai.onnx::Swish is in a domain of ONNX itself"),
        (
            f'[{{op: "a::b", {FUNCTION}}}, {{op: "a::b", {FUNCTION}}}]',
            "6:64: ops.1.op: the operator a::b is declared already, as ops.0; put all its",
        ),
        ('[{op: "a::b"}]', "6:7: ops.0: nothing implements a::b; add function, library (ONNX Runtime) or plugin"),
        (
            f'[{{op: "a::b", {FUNCTION}, use: {{onnxruntime: library}}}}]',
            '6:77: ops.0.use.onnxruntime: "library" is not given for onnxruntime; given: function',
        ),
        (
            '[{op: "a::b", function: {onnxruntime: plugins/ops/swish.py:swish}, use: {tensorrt_rtx: function}}]',
            '6:93: ops.0.use.tensorrt_rtx: "function" is not given for tensorrt_rtx; add function: …',
        ),
        (
            f'[{{op: "a::b", {FUNCTION}, use: {{onnxruntime: plugin}}}}]',
            '6:77: ops.0.use.onnxruntime: "plugin" is not allowed here; one of: function, library',
        ),
        (
            '[{op: "a::b", function: plugins/ops/swish.py:swihs}]',
            "6:30: ops.0.function: plugins/ops/swish.py defines no swihs; did you mean swish?",
        ),
        (
            '[{op: "a::b", function: plugins/ops/swihs.py:swish}]',
            "6:30: ops.0.function: no file plugins/ops/swihs.py; did you mean swish.py?",
        ),
        (
            '[{op: "a::b", function: {onnxruntime: "plugins/ops/swish.py:other"}}]',
            "6:44: ops.0.function.onnxruntime: plugins/ops/swish.py defines no other; it defines: swish",
        ),
        (
            '[{op: "a::b", library: {sources: [plugins/ops/swih.c]}}]',
            "6:40: ops.0.library.sources.0: no file plugins/ops/swih.c; did you mean swish.c?",
        ),
        (
            '[{op: "a::b", library: {sources: [plugins/ops/swish.py]}}]',
            '6:40: ops.0.library.sources.0: "plugins/ops/swish.py" is not a C or C++ file',
        ),
        ('[{op: "a::b", library: {source: x.c}}]', "6:29: ops.0.library: the library has none of the fields"),
        ('[{op: "a::b", plugin: x.py}]', '6:28: ops.0.plugin: found "x.py"; a map is wanted'),
        (
            '[{op: "a::b", plugin: {python: plugins/ops/none.py}}]',
            "6:37: ops.0.plugin.python: no file plugins/ops/none.py",
        ),
        (
            '[{op: "a::b", library: {file: ../libx.so}}]',
            '6:36: ops.0.library.file: "../libx.so" leaves the project',
        ),
    ],
)  # fmt: skip
def test_an_operator_that_cannot_be(project, ops, expected):
    project.write("plugins/ops/swish.py", "def swish(): ...\n")
    project.write("plugins/ops/swish.c", "int swish;\n")
    project.model(f"ops: {ops}\n")
    errors = project.errors()
    assert any(error.startswith(f"{NET}:{expected}") for error in errors), errors
