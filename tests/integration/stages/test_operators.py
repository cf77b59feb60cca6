"""Custom operators through the stages: functions, libraries, their choice and their errors."""

import shutil
import struct
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from operator_project import NEGATIVE, OP, SWISH, OperatorProject

from buildsys.errors import StageError
from buildsys.stages.operators.local_functions import operator_of

FUNCTION = {"op": OP, "function": "plugins/ops/swish.py:swish"}
LIBRARY = {"op": OP, "library": {"sources": ["plugins/ops/clamp_swish.c"], "flags": ["-lm"]}}
BOTH = {**FUNCTION, **LIBRARY, "use": {"onnxruntime": "library"}}
GRAPHS = ("operators:m", "export:m", "simplify:m", "validate:m")


@pytest.fixture
def project(tmp_path: Path) -> OperatorProject:
    made = OperatorProject(tmp_path)
    made.write("plugins/ops/swish.py", SWISH)
    made.take("plugins/ops/clamp_swish.c", "plugins/ops/ort_custom_op.h")
    made.save_graph()
    made.save_golden()
    return made


def refused(
    project: OperatorProject, *ops: dict[str, Any], targets: tuple[str, ...] = ("operators:m",)
) -> str:
    with pytest.raises(StageError) as caught:
        for target in targets:
            project.run(target, ops)
    return str(caught.value)


@pytest.mark.parametrize("op", [FUNCTION, LIBRARY, BOTH], ids=["function", "library", "both"])
def test_every_stage_runs_the_operator_as_the_manifest_says(
    project: OperatorProject, op: dict[str, Any]
) -> None:
    result = project.run_all((*GRAPHS, "engine:m:ort", "verify:m:ort"), [op])
    assert result.figures["failures"] == []
    with_library = "library" in op
    assert project.built("engine/ort/clamp_swish.so").is_file() is with_library
    nodes = [
        operator_of(node) for node in onnx.load(project.built("engine/ort/engine.onnx")).graph.node
    ]
    assert (OP in nodes) is with_library


@pytest.mark.parametrize(
    ("op", "status"), [(FUNCTION, "failed"), (BOTH, "passed")], ids=["function", "library"]
)
def test_a_wrong_function_counts_where_it_is_used_and_only_there(
    project: OperatorProject, op: dict[str, Any], status: str
) -> None:
    project.write("plugins/ops/swish.py", NEGATIVE)
    project.run_all(GRAPHS[:-1], [op])
    assert project.run("validate:m", [op]).status == status


def test_each_backend_gets_its_own_function(project: OperatorProject) -> None:
    project.write(
        "plugins/ops/other.py",
        SWISH.replace('("Relu"', '("Abs", ["x"], ["a"]), ("Relu"').replace("swish", "f"),
    )
    op = {
        "op": OP,
        "function": {"onnxruntime": FUNCTION["function"], "tensorrt_rtx": "plugins/ops/other.py:f"},
    }
    result = project.run_all((*GRAPHS, "engine:m:rtx"), [op])
    assert "unary" in result.figures["layers"]  # TensorRT's Abs
    assert "Abs" not in {
        node.op_type for node in onnx.load(project.built("simplify/model.onnx")).functions[0].node
    }


def test_a_ready_graph_is_its_own_reference_with_the_operator(project: OperatorProject) -> None:
    shutil.rmtree(project.built("reference"))
    project.run_all(
        ("operators:m", "reference:m", "export:m", "simplify:m", "validate:m"), [LIBRARY]
    )


@pytest.mark.parametrize("op", [LIBRARY, FUNCTION], ids=["library", "function"])
def test_surgery_runs_a_graph_with_its_operator(
    project: OperatorProject, op: dict[str, Any]
) -> None:
    steps = [{"rename": {"y": "z"}}, {"cast": {"x": "float16"}, "when": "after_simplify"}]
    chain = (
        "operators:m",
        "export:m",
        "surgery:m:after_export",
        "simplify:m",
        "surgery:m:after_simplify",
    )
    last = project.run_all(
        (*chain, "validate:m", "engine:m:ort", "verify:m:ort"), [op], surgery=steps
    )
    assert last.figures["cases"]["opt"]["z"]["passed"]


def test_a_library_does_not_depend_on_where_the_project_lies(
    project: OperatorProject, tmp_path: Path
) -> None:
    project.run("operators:m", [LIBRARY])
    other = OperatorProject(tmp_path / "elsewhere")
    shutil.copytree(project.root / "plugins", other.root / "plugins")
    other.run("operators:m", [LIBRARY])
    assert (
        other.built("operators/clamp_swish.so").read_bytes()
        == project.built("operators/clamp_swish.so").read_bytes()
    )


TWO = """

first = swish


def swish():
    made = first()
    made.node[0].op_type = "Neg"
    return [first(), made]
"""
FUNCTIONS = {
    "raises": (
        "def swish():\n    raise ValueError('no')\n",
        "plugins/ops/swish.py:swish failed: ValueError: no (plugins/ops/swish.py:2)",
    ),
    "returns a number": (
        "def swish():\n    return 3\n",
        "gives int; name an onnxscript function, a FunctionProto",
    ),
    "wants arguments": (
        "def swish(x):\n    return x\n",
        "swish failed: TypeError: swish() missing 1 required",
    ),
    "unknown operator": (
        SWISH.replace('("Relu"', '("Rleu"'),
        f"the local function {OP} (plugins/ops/swish.py:swish) is invalid: No Op registered for",
    ),
    "two of one name": (SWISH + TWO, f"and plugins/ops/swish.py:swish define {OP} differently"),
}


@pytest.mark.parametrize(("source", "expected"), FUNCTIONS.values(), ids=FUNCTIONS)
def test_an_invalid_function(project: OperatorProject, source: str, expected: str) -> None:
    project.write("plugins/ops/swish.py", source)
    assert expected in refused(project, FUNCTION)


def test_a_function_of_an_opset_that_does_not_fit(project: OperatorProject) -> None:
    project.write(
        "plugins/ops/swish.py",
        SWISH.replace('NODES = [("Relu"', 'NODES = [("Gelu"').replace('"", 17', '"", 20'),
    )
    said = refused(project, FUNCTION, targets=("operators:m", "export:m"))
    assert (
        f"the local function {OP} (plugins/ops/swish.py:swish) is of opset 20, the model of opset"
        " 17, with other versions of its operators; write the function for opset 17" in said
    )


def test_a_function_that_does_not_fit_its_node(project: OperatorProject) -> None:
    project.save_graph(alpha=1.0)
    said = refused(project, FUNCTION, targets=("operators:m", "export:m"))
    assert "does not fit the node swish: the function lacks the attribute alpha" in said


def test_an_unused_function_is_a_warning(project: OperatorProject) -> None:
    other = {"op": "custom_domain::other", "function": "plugins/ops/swish.py:swish"}
    result = project.run_all(("operators:m", "export:m"), [FUNCTION, other])
    assert result.figures["warnings"] == [
        "the local function plugins/ops/swish.py:swish is unused: no node of the graph is"
        " custom_domain::other"
    ]


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("float *y = to;", "float *y = too;",
         "plugins/ops/clamp_swish.c does not compile: plugins/ops/clamp_swish.c:"),
        ("expf(-z)", "no_such_function(-z)", "undefined reference to `no_such_function'"),
        ('"ort_custom_op.h"', '"none.h"',
         "plugins/ops/clamp_swish.c:2:10: fatal error: none.h: No such file or directory"),
    ],
)  # fmt: skip
def test_c_that_does_not_compile(
    project: OperatorProject, old: str, new: str, expected: str
) -> None:
    text = (project.root / "plugins/ops/clamp_swish.c").read_text()
    project.write("plugins/ops/clamp_swish.c", text.replace(old, new))
    assert expected in refused(project, LIBRARY)


def test_a_missing_compiler(project: OperatorProject, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    said = refused(project, LIBRARY)
    assert (
        "no compiler for plugins/ops/clamp_swish.c: neither $CC nor cc, gcc, clang is installed"
        in said
    )


def test_an_untracked_file_is_refused(project: OperatorProject) -> None:
    text = (project.root / "plugins/ops/clamp_swish.c").read_text()
    shutil.move(project.root / "plugins/ops/ort_custom_op.h", project.root / "plugins/hidden.h")
    for include, flag, used in (
        ("hidden.h", "-Iplugins", "plugins/hidden.h"),
        ("../hidden.h", "-Lplugins/ops", "plugins/ops"),
    ):
        source = text.replace('"ort_custom_op.h"', f'"{include}"')
        project.write("plugins/ops/clamp_swish.c", source)
        library = {"sources": ["plugins/ops/clamp_swish.c"], "flags": ["-lm", flag]}
        message = refused(project, {"op": OP, "library": library})
        assert f"uses {used} through a flag or a macro" in message


def given(project: OperatorProject, change: Any = None) -> dict[str, Any]:
    """Compile the library, change its bytes, and declare it as given."""
    project.run("operators:m", [LIBRARY])
    content = bytearray(project.built("operators/clamp_swish.so").read_bytes())
    if change:
        change(content)
    project.write("plugins/ops/libswish.so", bytes(content))
    return {"op": OP, "library": {"file": "plugins/ops/libswish.so"}}


def test_a_given_library_is_copied(project: OperatorProject) -> None:
    op = given(project)
    project.run_all((*GRAPHS, "engine:m:ort", "verify:m:ort"), [op])
    assert project.built("engine/ort/libswish.so").is_file()


def for_another_machine(content: bytearray) -> None:
    struct.pack_into("<H", content, 18, 183)


def no_elf(content: bytearray) -> None:
    content[:] = b"MZ, and nothing of use"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (for_another_machine, "cannot take the operator library libswish.so: "),
        (no_elf, "plugins/ops/libswish.so is not a shared library for Linux (ELF)"),
    ],
)
def test_a_given_library_that_does_not_fit(
    project: OperatorProject, change: Any, expected: str
) -> None:
    targets = ("operators:m", "export:m", "simplify:m", "engine:m:ort")
    assert expected in refused(project, given(project, change), targets=targets)


def test_an_unimplemented_operator(project: OperatorProject) -> None:
    project.run_all(("export:m",), [])
    said = refused(project, targets=("simplify:m",))
    first, *remedies = said.splitlines()
    assert first == f"nothing implements {OP} for ONNX Runtime (node swish)"
    assert [line.partition(":")[0] for line in remedies if line[0].isdigit()] == [
        "1. local function",
        "2. library",
        "3. bundled plugin",
    ]
    assert (
        f'     ops: [{{op: "{OP}", library: {{sources: ["plugins/ops/custom_op2.c"]}}}}]'
        in remedies
    )


def test_an_operator_without_an_implementation_for_one_backend(project: OperatorProject) -> None:
    op = {"op": OP, "function": {"tensorrt_rtx": "plugins/ops/swish.py:swish"}}
    made = project.run_all(("operators:m", "export:m", "simplify:m"), [op])
    assert made.figures["warnings"] == [
        "the graphs were not compared: ONNX Runtime has no implementation of an operator"
    ]
    said = refused(project, op, targets=("engine:m:ort",))
    assert (
        said
        == f"nothing implements {OP} for ONNX Runtime; add function or library to its entry in ops"
    )
    validated = project.run("validate:m", [op])
    assert validated.status == "unavailable"
    assert validated.reason == (
        f"nothing implements {OP} for ONNX Runtime: only the engines are compared with"
        " the original model"
    )
    assert project.run("engine:m:rtx", [op]).status == "passed"


def test_a_conversion_that_cannot_run_is_not_checked_and_says_so(project: OperatorProject) -> None:
    op = {"op": OP, "plugin": {"python": "plugins/ops/swish_plugin.py"}}
    engine = {"backend": "tensorrt_rtx", "name": "half", "precision": "fp16"}
    model = onnx.load(project.root / "m.onnx")
    product = onnx.helper.make_node("MatMul", ["x", "w"], ["h"])
    model.graph.node.insert(0, product)
    model.graph.node[1].input[0] = "h"
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.eye(4, dtype=np.float32), "w"))
    onnx.save(model, project.root / "m.onnx")
    stages = ("export:m", "simplify:m", "convert:m:fp16")
    made = project.run_all(stages, [op], engines=[engine])
    assert made.figures["warnings"][-1] == (
        f"nothing implements {OP} for ONNX Runtime: the numbers of the graph are not checked"
    )
