"""Errors in symbolics and translations, with their positions."""

from __future__ import annotations

import pytest

NET = "configs/models/net.yaml"
GOOD = '{op: "aten::asinh", function: "plugins/s.py:f", opset: 9}'
DYNAMO = "export: {exporter: dynamo, opset: 18}\n"


@pytest.fixture
def errors(project):
    project.write("plugins/s.py", "def f(g, x): ...\n")

    def found(extra: str) -> list[str]:
        project.model(extra)
        return project.errors()

    return found


@pytest.mark.parametrize(
    ("entry", "column", "expected"),
    [
        ('{op: asinh, function: "plugins/s.py:f"}', 18,
         'op: expected an operator with its namespace, found "asinh"; write NAMESPACE'),
        ('{op: torch.ops.aten.asinh, function: "plugins/s.py:f"}', 18, "such as aten::asinh"),
        ('{op: "onnx::Asinh", function: "plugins/s.py:f"}', 18,
         "op: nothing can be registered in the namespace onnx, which ho"),
        ('{op: "aten::a-b", function: "plugins/s.py:f"}', 18,
         'op: expected an operator name such as aten::asinh'),
        ('{op: "aten::add.Tensor", function: "plugins/s.py:f"}', 18,
         "write aten::add; the function gets the inputs"),
        ('{op: "aten::asinh", function: "plugins/s.py:g"}', 43,
         "function: plugins/s.py does not define g; defined: f"),
        ('{op: "aten::asinh", function: "plugins/t.py:f"}', 43,
         "function: file plugins/t.py does not exist; paths are"),
        ('{op: "aten::asinh", function: "plugins/s.py"}', 43,
         'function: expected a file and a callable'),
        ("{module: plugins/t.py}", 22, "module: file plugins/t.py does not exist; paths are"),
        ("{module: plugins/s}", 22,
         'module: expected a Python file such as plugins/symbolics/asinh.py, found "plugins/s"'),
        ('{module: plugins/s.py, op: "aten::asinh"}', 36,
         "op: cannot be combined with module, which registers its own"),
        ('{module: plugins/s.py, function: "plugins/s.py:f"}', 36,
         "function: cannot be combined with module"),
        ("{module: plugins/s.py, opset: 9}", 36,
         "opset: cannot be combined with module, which registers its own"),
        ('{op: "aten::asinh"}', 13,
         "symbolics.0: required field is missing: function; write {op: …, function: …, opset: "),
        ("{}", 13, "symbolics.0: required field is missing: op and function; write"),
        ("asinh", 13, 'symbolics.0: expected a map, found "asinh"'),
        ('{op: "aten::asinh", function: "plugins/s.py:f", opset: 99}', 68,
         "opset 99 is not supported by the torchscript"),
        ('{op: "aten::asinh", function: "plugins/s.py:f", opset: 18}', 68,
         "an export to opset 17 cannot use a symbolic"),
        ('{op: "aten::asinh", function: "plugins/s.py:f", opset: "9"}', 68,
         'expected an integer, found "9"'),
        ('{op: "aten::asinh", fucntion: "plugins/s.py:f"}', 33,
         "fucntion: unknown field; did you mean function?"),
    ],
)  # fmt: skip
def test_an_invalid_symbolic(errors, entry, column, expected):
    [error] = errors(f"symbolics: [{entry}]\n")
    assert error.startswith(f"{NET}:6:{column}: symbolics.0")
    assert expected in error


def test_an_export_below_opset_9_uses_higher_symbolics(errors, project):
    [error] = errors(f"export: {{opset: 8}}\nsymbolics: [{GOOD.replace('9', '7')}]\n")
    assert "an export to opset 8 cannot use a symbolic of opset 7" in error
    project.model(f"export: {{opset: 8}}\nsymbolics: [{GOOD}]\n")
    assert project.load().models["net"].data["symbolics"][0]["opset"] == 9


def test_an_operator_registered_twice(errors, project):
    [error] = errors(f"symbolics: [{GOOD}, {GOOD}]\n")
    assert error.endswith(
        "symbolics.1.op: aten::asinh is registered twice for opset 9; remove one of the two"
    )
    project.model(f"symbolics: [{GOOD}, {GOOD.replace('9', '12')}]\n")
    assert len(project.load().models["net"].data["symbolics"]) == 2
    function = 'function: "plugins/s.py:f"'
    entry = f'{{op: "aten::a", {function}}}, {{op: "aten::a.default", {function}}}'
    [error] = errors(f"{DYNAMO}translations: [{entry}]\n")
    assert error.startswith(f"{NET}:7:")
    assert "translations.1.op: aten::a is registered twice" in error


@pytest.mark.parametrize(
    ("extra", "where", "expected"),
    [
        (f"{DYNAMO}symbolics: [{GOOD}]\n", "7:1: symbolics",
         "ignored by exporter dynamo, only torchscript uses it; use translations for dynamo, "
         "or set"),
        ('translations: [{op: "aten::a", function: "plugins/s.py:f"}]\n', "6:1: translations",
         "ignored by exporter torchscript, only dynamo uses it; use symbolics for torchscript, "
         "or set"),
    ],
)  # fmt: skip
def test_a_section_for_the_other_exporter(errors, extra, where, expected):
    [error] = errors(extra)
    assert error.startswith(f"{NET}:{where}: {expected}")


def test_an_onnx_source_is_not_exported(project):
    project.write("plugins/s.py", "def f(g, x): ...\n")
    project.write("net.onnx", b"x")
    project.write(
        NET,
        f"model: net\nsource: {{onnx: net.onnx}}\ninputs: {{x: {{shape: [1]}}}}\nsymbolics: "
        f"[{GOOD}]\n",
    )
    [error] = project.errors()
    assert (
        error
        == f"{NET}:4:1: symbolics: ignored for an ONNX source, which is not exported; remove it"
    )


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ('{op: "aten.asinh", function: "plugins/s.py:f"}',
         'op: expected an operator with its namespace, found "aten.asinh"'),
        ('{op: "onnx::Asinh", function: "plugins/s.py:f"}',
         "translations.0.op: nothing can be registered in the namespace onnx"),
        ('{op: "aten::asinh"}', "translations.0.function: required field is missing"),
        ('{op: "aten::asinh", function: "plugins/s.py:g"}',
         "translations.0.function: plugins/s.py does not define g"),
        ('{op: "aten::asinh", function: "plugins/s.py:f", opset: 9}',
         "translations.0.opset: unknown field"),
    ],
)  # fmt: skip
def test_an_invalid_translation(errors, entry, expected):
    [error] = errors(f"{DYNAMO}translations: [{entry}]\n")
    assert error.startswith(f"{NET}:7:")
    assert expected in error


def test_all_errors_of_an_entry_are_reported(errors):
    found = errors(
        'symbolics: [{op: asinh, function: "plugins/t.py:f", opset: 99}, {module: plugins/t.py}]\n'
    )
    assert [error.split(": ")[1] for error in found] == [
        "symbolics.0.op", "symbolics.0.function", "symbolics.0.opset", "symbolics.1.module"
    ]  # fmt: skip
