"""Errors in the section ops, with their positions."""

from __future__ import annotations

import pytest

NET = "configs/models/net.yaml"
FUNCTION = "function: plugins/ops/swish.py:swish"


@pytest.mark.parametrize(
    ("ops", "expected"),
    [
        (
            f"[{{op: customOp2, {FUNCTION}}}]",
            '6:12: ops.0.op: expected an operator with its domain such as '
            'custom_domain::customOp, found "customOp2"',
        ),
        (
            f'[{{op: "onnx::Swish", {FUNCTION}}}]',
            "6:12: ops.0.op: onnx::Swish is in a domain of ONNX, which cannot be extended; "
            "choose a domain of your own, such as custom_domain::",
        ),
        (f'[{{op: "ai.onnx::Swish", {FUNCTION}}}]',
         "6:12: ops.0.op: ai.onnx::Swish is in a domain of ONNX"),
        (
            f'[{{op: "a::b", {FUNCTION}}}, {{op: "a::b", {FUNCTION}}}]',
            "6:64: ops.1.op: operator a::b is already declared in ops.0; put all",
        ),
        ('[{op: "a::b"}]',
         "6:7: ops.0: operator a::b has no implementation; add function, library (ONNX "
         "Runtime) or plugin"),
        (
            f'[{{op: "a::b", {FUNCTION}, use: {{onnxruntime: library}}}}]',
            '6:77: ops.0.use.onnxruntime: onnxruntime has no implementation of the kind '
            'library; given: function',
        ),
        (
            '[{op: "a::b", function: {onnxruntime: plugins/ops/swish.py:swish}, use: '
            '{tensorrt_rtx: function}}]',
            '6:93: ops.0.use.tensorrt_rtx: tensorrt_rtx has no implementation of the kind '
            'function; add function: …',
        ),
        (
            f'[{{op: "a::b", {FUNCTION}, use: {{onnxruntime: plugin}}}}]',
            '6:77: ops.0.use.onnxruntime: unknown value "plugin"; expected one of: function, '
            'library',
        ),
        (
            '[{op: "a::b", function: plugins/ops/swish.py:swihs}]',
            "6:30: ops.0.function: plugins/ops/swish.py does not define swihs; did you mean swish?",
        ),
        (
            '[{op: "a::b", function: plugins/ops/swihs.py:swish}]',
            "6:30: ops.0.function: file plugins/ops/swihs.py does not exist; did you mean "
            "swish.py?",
        ),
        (
            '[{op: "a::b", function: {onnxruntime: "plugins/ops/swish.py:other"}}]',
            "6:44: ops.0.function.onnxruntime: plugins/ops/swish.py does not define other; "
            "defined: swish",
        ),
        (
            '[{op: "a::b", library: {sources: [plugins/ops/swih.c]}}]',
            "6:40: ops.0.library.sources.0: file plugins/ops/swih.c does not exist; did you "
            "mean swish.c?",
        ),
        (
            '[{op: "a::b", library: {sources: [plugins/ops/swish.py]}}]',
            '6:40: ops.0.library.sources.0: expected a C or C++ file (.c, .cc, .cpp, .cxx), found',
        ),
        ('[{op: "a::b", library: {source: x.c}}]',
         "6:29: ops.0.library: expected one of the fields"),
        ('[{op: "a::b", plugin: x.py}]', '6:28: ops.0.plugin: expected a map, found "x.py"'),
        (
            '[{op: "a::b", plugin: {python: plugins/ops/none.py}}]',
            "6:37: ops.0.plugin.python: file plugins/ops/none.py does not exist",
        ),
        ('[{op: "a::b", plugin: {bundled: false}}]',
         "6:38: ops.0.plugin.bundled: expected true, found false"),
        ('[{op: "a::b", plugin: {bundle: true}}]',
         "6:28: ops.0.plugin: expected one of the fields python, library, bundled; did you mean "
         "bundled?"),
        ('[{op: "a::b", plugin: {bundled: true, library: x.so}}]',
         "6:29: ops.0.plugin.bundled: unknown field; known fields: library"),
        (
            '[{op: "a::b", library: {file: ../libx.so}}]',
            '6:36: ops.0.library.file: path "../libx.so" leaves the project',
        ),
    ],
)  # fmt: skip
def test_an_invalid_operator(project, ops, expected):
    project.write("plugins/ops/swish.py", "def swish(): ...\n")
    project.write("plugins/ops/swish.c", "int swish;\n")
    project.model(f"ops: {ops}\n")
    errors = project.errors()
    assert any(error.startswith(f"{NET}:{expected}") for error in errors), errors
