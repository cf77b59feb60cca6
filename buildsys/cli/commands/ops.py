"""buildsys ops: operator support of the installed libraries.

Their registries are read once per set of versions, by a process that loads torch.
"""

from __future__ import annotations

import hashlib
import json
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from buildsys.cli.command import add_json, add_names, print_answer
from buildsys.cli.console.rows import format_table
from buildsys.cli.graph_files import require_graph
from buildsys.cli.session import BuildSession
from buildsys.errors import StageError, UsageError
from buildsys.project.load import STATE_FOLDER, Project, load_project
from buildsys.report.result_files import read_result
from buildsys.stages.export.result import ExportResult
from buildsys.stages.simplify.result import SimplifyResult
from buildsys.stages.table import EXPORT, SIMPLIFY
from buildsys.system.files import MAX_RESULT_BYTES, read_limited, replace_file
from buildsys.system.printable import nearest
from buildsys.system.processes import run_python
from buildsys.system.versions import python_version, tool_versions

SCHEMA = "buildsys/ops/1"
TABLE_SCHEMA = "buildsys/operators/2"  # the reader's table
_LIBRARIES = ("torch", "torchvision", "onnx", "onnxscript", "onnxruntime", "tensorrt_rtx")
# libraries print to stdout, too
_READER = (
    "import os; table = os.dup(1); os.dup2(2, 1);"
    " from buildsys.backends.operator_support import write_table; write_table(table)"
)
_REGISTERING = ("symbolics", "translations", "ops")
_TORCH_TITLES = ("PyTorch operator", "TorchScript", "dynamo", "registered here")
_SUPPORT_TITLES = ("ONNX Runtime (CPU)", "TensorRT-RTX", "implemented here")
_ONNX_TITLES = ("ONNX operator", "opsets", *_SUPPORT_TITLES)
_MODEL_TITLES = ("operator", "nodes>", "since", *_SUPPORT_TITLES)
_NO, _UNKNOWN = "no", "not installed"
Row = Mapping[str, Any]
Rows = Mapping[str, Row]


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options of ``buildsys ops``."""
    add_names(parser, "OPERATOR ... | --all | --model MODEL")
    add_json(parser)
    parser.add_argument("--all", action="store_true", help="show all operators")
    parser.add_argument("--model", default="", help="show the operators in a built model's graph")


def run(options: Namespace) -> int:
    """Print the named operators, those of a model, or all."""
    model = options.model
    if sum(map(bool, (options.names, model, options.all))) != 1:
        hint = "for example `buildsys ops asinh DeformConv`"
        raise UsageError("ops takes names of operators, --model MODEL or --all", hint)
    project = load_project(options.root, remember=False, leave_out=True)
    users = _registrations(project)
    places = {name: ", ".join(models) for name, models in users.items()}
    fields: dict[str, Any] = {"schema": SCHEMA, "versions": library_versions()}
    if model:
        model = BuildSession(project).one_model("ops --model", [model])
        opset, counts = _operators_of(project, model)
        operators = operator_table(project.root / STATE_FOLDER)["onnx"]
        onnx: Mapping[str, Any] = {name: operators.get(name) for name in counts}
        fields |= {"model": model, "opset": opset, "operators": counts}
        cells = (
            (name, str(counts[name]), *_at_opset(row, opset), places.get(name, ""))
            for name, row in onnx.items()
        )
        lines = [f"{model}: simplified graph, opset {opset}", *_table(_MODEL_TITLES, cells)]
    else:
        table = operator_table(project.root / STATE_FOLDER)
        torch, onnx = chosen_rows(table, options.names)
        fields["torch"] = torch
        exported = ((name, *_exported(row), places.get(name, "")) for name, row in torch.items())
        lines = [*_table(_TORCH_TITLES, exported), ""] if torch else []
        supported = (
            (name, _opsets(row), _runs(row["onnxruntime"]), _parsed(row), places.get(name, ""))
            for name, row in onnx.items()
        )
        lines += _table(_ONNX_TITLES, supported) if onnx else []
    print_answer(options, {**fields, "onnx": onnx, "registered": users}, lines)
    return 0


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


def _registrations(project: Project) -> dict[str, list[str]]:
    """Map an operator to ``MODEL (section)`` of its registrations and implementations."""
    users: dict[str, list[str]] = {}
    for name, model in project.models.items():
        for section in _REGISTERING:
            for op in dict.fromkeys(entry.get("op") for entry in model.data.get(section) or ()):
                if op:
                    users.setdefault(op, []).append(f"{name} ({section})")
    return dict(sorted(users.items()))


def chosen_rows(table: Mapping[str, Rows], names: Sequence[str]) -> tuple[Rows, Rows]:
    """Return the PyTorch and the ONNX rows of named operators, or all.

    Names match in any case, and without their namespace.
    Raises: UsageError: there is no such operator.
    """
    if not names:
        return table["torch"], table["onnx"]
    chosen: tuple[dict[str, Row], dict[str, Row]] = {}, {}
    for name in names:
        lowered = name.removesuffix("_").lower().replace(".", "::")
        matching = [
            {
                operator: row
                for operator, row in table[library].items()
                if lowered in (operator.lower(), operator.lower().rpartition("::")[2])
            }
            for library in ("torch", "onnx")
        ]
        for rows, more in zip(chosen, matching, strict=True):
            rows.update(more)
        if not any(matching):
            plain = {op.rpartition("::")[2].lower(): op for part in table.values() for op in part}
            near = [plain[word] for word in nearest(lowered.rpartition("::")[2], plain)]
            listed = "`buildsys ops --all` lists all operators"
            problem = f"there is no operator {name!r} in torch, ONNX or ONNX Runtime here"
            raise UsageError(problem, f"nearest: {', '.join(near)}" if near else listed)
    return chosen


def _operators_of(project: Project, model: str) -> tuple[int, dict[str, int]]:
    """Return opset and operators of a model's simplified or exported graph."""
    exported, simplified = (
        read_result(f"{stage}:{model}", project.build / model / file, file, kind).content
        for stage, file, kind in (
            (EXPORT, "export/export.json", ExportResult),
            (SIMPLIFY, "simplify/graph.json", SimplifyResult),
        )
    )
    if not exported:
        require_graph(project, model)
        hint = f"`buildsys build simplify:{model}` builds it"
        raise UsageError(f"{model} has no graph yet", hint)
    counts = (simplified.get("after") or exported).get("operators") or {}
    return exported.get("opset", 0), counts


def _at_opset(row: Row | None, opset: int) -> Iterator[str]:
    """Yield an operator's version at an opset, and its support."""
    if row is None:
        yield from ("", _NO, _NO)
        return
    first = max((version for version in row["opsets"] if 0 < version <= opset), default=None)
    kernels = row["onnxruntime"]
    if kernels is not None and first is not None:
        kernels = [kernel for kernel in kernels if kernel["opset"] == first]
    yield from (str(first or ""), _runs(kernels), _parsed(row))


def _table(titles: Sequence[str], cells: Iterable[Sequence[str]]) -> list[str]:
    """Format a table, without its last column if empty."""
    rows = list(cells)
    if not any(row[-1] for row in rows):
        titles, rows = titles[:-1], [row[:-1] for row in rows]
    return format_table(titles, rows)


def _exported(row: Row) -> tuple[str, str]:
    """Describe the support of both exporters."""
    traced = f"from opset {row['torchscript']}" if row["torchscript"] else _NO
    parts = "decomposed" if row["by_parts"] else ""
    if not row["dynamo"]:
        return traced, parts or _NO
    writes = f" ({', '.join(row['writes'])})" if row["writes"] else ""
    return traced, f"from opset {row['dynamo']}{writes}" + (f", else {parts}" if parts else "")


def _opsets(row: Row) -> str:
    """Return for example ``from 9, changed in 22, removed in 25``."""
    since = [str(opset) for opset in row["opsets"] if opset > 0]
    removed = [str(-opset) for opset in row["opsets"] if opset < 0]
    if not since:
        return "not in ONNX"
    changed = f", changed in {', '.join(since[1:])}" if len(since) > 1 else ""
    return f"from {since[0]}{changed}" + (f", removed in {removed[0]}" if removed else "")


def _runs(support: Sequence[Row] | None) -> str:
    """Return the supported types by opset, without repetitions."""
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


def _parsed(row: Row) -> str:
    supported = row["tensorrt_rtx"]
    return _UNKNOWN if supported is None else "yes" if supported else _NO
