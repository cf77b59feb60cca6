"""buildsys ops: operator support of the installed libraries.

Their registries are read once per set of versions, by a process that loads torch.
"""

import hashlib
import json
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from buildsys.cli.command import add_json, add_names, print_answer, unknown_name
from buildsys.cli.console.rows import format_table
from buildsys.errors import StageError
from buildsys.project.load import STATE_FOLDER, Project, load_project
from buildsys.report.result_files import read_result
from buildsys.stages.export.result import ExportResult
from buildsys.stages.table import EXPORT
from buildsys.system.files import MAX_RESULT_BYTES, read_limited, replace_file
from buildsys.system.processes import run_python
from buildsys.system.versions import python_version, tool_versions

SCHEMA = "buildsys/ops/1"
TABLE_SCHEMA = "buildsys/operators/4"  # the reader's table
_TENSORRTS = {"tensorrt": "TensorRT", "tensorrt_rtx": "TensorRT-RTX"}
_LIBRARIES = ("torch", "torchvision", "onnx", "onnxscript", "onnxruntime", *_TENSORRTS)
# libraries print to stdout, too
_READER = (
    "import os; table = os.dup(1); os.dup2(2, 1);"
    " from buildsys.backends.operator_support import write_table; write_table(table)"
)
_TORCH_TITLES = ("PyTorch operator", "TorchScript", "dynamo")
_ONNX_TITLES = ("ONNX operator", "opsets", "ONNX Runtime (CPU)", *_TENSORRTS.values())
_NO, _UNKNOWN = "no", "not here"
Row = Mapping[str, Any]
Rows = dict[str, Row]
_CUSTOM_ROW: Row = {"opsets": [], "onnxruntime": [], **dict.fromkeys(_TENSORRTS, False)}


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options of ``buildsys ops``."""
    add_names(parser, "[OPERATOR | MODEL ...]")
    parser.epilog = "a MODEL stands for the operators of its exported graph"
    add_json(parser)


def run(options: Namespace) -> int:
    """Print the named operators, the operators of models, or all."""
    project = load_project(options.root, remember=False)
    models = [name for name in options.names if name in project.models]
    operators = [operator for model in models for operator in graph_operators(project, model)]
    table = operator_table(project.root / STATE_FOLDER)
    if options.names:
        torch, onnx = chosen_rows(table, [name for name in options.names if name not in models])
    else:
        torch, onnx = table["torch"], table["onnx"]
    onnx |= {name: table["onnx"].get(name, _CUSTOM_ROW) for name in operators}
    traced = ((name, *_exported(row)) for name, row in torch.items())
    lines = [*format_table(_TORCH_TITLES, traced), ""] if torch else []
    supported = (
        (name, _opsets(row), _runs(row["onnxruntime"]), *_parsed(row)) for name, row in onnx.items()
    )
    lines += format_table(_ONNX_TITLES, supported) if onnx else []
    document = {"schema": SCHEMA, "versions": library_versions(), "torch": torch, "onnx": onnx}
    print_answer(options, document, lines)
    return 0


def graph_operators(project: Project, model: str) -> list[str]:
    """List the operators of a model's exported graph.

    Raises: StageError: it has not been exported.
    """
    file = "export/export.json"
    path = project.build / model / file
    result = read_result(f"{EXPORT}:{model}", path, file, ExportResult).content
    if not result:
        raise StageError(f"{model} has no graph yet", f"`buildsys build {EXPORT}:{model}` makes it")
    return list(result.get("operators") or ())


def library_versions() -> dict[str, str]:
    """List the versions of the libraries."""
    return {"python": python_version(), **tool_versions(_LIBRARIES)}


def operator_table(state: Path) -> dict[str, Any]:
    """Read the operator table of the installed libraries, cached in ``state``.

    Raises: StageError: torch or onnx cannot be loaded.
    """
    versions = [TABLE_SCHEMA, sorted(library_versions().items())]
    digest = hashlib.sha256(json.dumps(versions).encode()).hexdigest()
    file = state / "operators" / f"{digest[:16]}.json"
    with suppress(OSError, ValueError, RecursionError):  # missing, or damaged
        cached = json.loads(read_limited(file, MAX_RESULT_BYTES))
        if isinstance(cached, dict) and [*cached] == ["torch", "onnx"]:
            return cached
    sys.stderr.write("reading the registries of the libraries, about 10 s …\n")
    sys.stderr.flush()
    done = run_python(("-W", "ignore", "-c", _READER))
    if done.problem:
        hint = "`buildsys ops` needs torch and onnx"
        raise StageError(f"cannot read the registries: {done.problem}", hint)
    table: dict[str, Any] = done.json()
    with suppress(OSError):  # it is read again the next time
        replace_file(file, json.dumps(table).encode())
    return table


def chosen_rows(table: Mapping[str, Rows], names: Sequence[str]) -> tuple[Rows, Rows]:
    """Select the PyTorch and the ONNX rows of named operators.

    Names match in any case, and without their namespace.
    Raises: UsageError: there is no such operator.
    """
    chosen: tuple[Rows, Rows] = {}, {}
    for name in names:
        lowered = name.removesuffix("_").lower().replace(".", "::")
        matches = [
            {
                operator: row
                for operator, row in table[library].items()
                if lowered in (operator.lower(), operator.lower().rpartition("::")[2])
            }
            for library in ("torch", "onnx")
        ]
        if not any(matches):
            operators = [operator for rows in table.values() for operator in rows]
            plain = [operator.rpartition("::")[2] for operator in operators]
            hint = "`buildsys ops` lists all operators"
            raise unknown_name("operator", name, [*operators, *plain], hint)
        for rows, matching in zip(chosen, matches, strict=True):
            rows.update(matching)
    return chosen


def _exported(row: Row) -> tuple[str, str]:
    """Describe the support of both exporters."""
    traced = f"from opset {row['torchscript']}" if row["torchscript"] else _NO
    if row["dynamo"] is None:
        return traced, _NO
    return traced, f"from opset {row['dynamo']}" if row["dynamo"] else "decomposed"


def _opsets(row: Row) -> str:
    """Format for example ``from 9, changed in 22, removed in 25``."""
    since = [str(opset) for opset in row["opsets"] if opset > 0]
    removed = [str(-opset) for opset in row["opsets"] if opset < 0]
    if not since:
        return "not in ONNX"
    changed = f", changed in {', '.join(since[1:])}" if len(since) > 1 else ""
    return f"from {since[0]}{changed}" + (f", removed in {removed[0]}" if removed else "")


def _runs(support: Sequence[Row] | None) -> str:
    """List the supported types by opset, without repetitions."""
    if support is None:
        return _UNKNOWN
    by_opset: dict[int, str] = {}
    for row in support:
        types = ", ".join(row["types"]) or ("as a function" if row["body"] else _NO)
        if types != next(reversed(by_opset.values()), ""):
            by_opset[row["opset"]] = types
    if len(by_opset) == 1:
        return next(iter(by_opset.values()))
    return "; ".join(f"{opset}: {types}" for opset, types in by_opset.items()) or _NO


def _parsed(row: Row) -> list[str]:
    return [{None: _UNKNOWN, True: "yes", False: _NO}[row[module]] for module in _TENSORRTS]
