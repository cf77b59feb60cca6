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
from buildsys.cli.session import Session
from buildsys.errors import ManifestErrors, StageError, UsageError
from buildsys.project.load import STATE_FOLDER, Project, empty_project, load_project
from buildsys.report.results.reader import read_result
from buildsys.stages.export.result import ExportResult
from buildsys.stages.simplify.result import SimplifyResult
from buildsys.stages.table import EXPORT, SIMPLIFY
from buildsys.system.files import MAX_RESULT_BYTES, read_limited, replace_file
from buildsys.system.processes import run_python
from buildsys.system.suggestions import nearest
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
_ONNX_TITLES = (
    "ONNX operator", "opsets", "ONNX Runtime (CPU)", "TensorRT-RTX", "implemented here",
)  # fmt: skip
_MODEL_TITLES = ("operator", "nodes>", "since", *_ONNX_TITLES[2:])
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
    model, state = options.model, options.root / STATE_FOLDER
    if sum(map(bool, (options.names, model, options.all))) != 1:
        hint = "for example `buildsys ops asinh DeformConv`"
        raise UsageError("ops takes names of operators, --model MODEL or --all", hint)
    try:
        project = load_project(options.root, remember=False)
    except ManifestErrors:  # operators need no manifest
        if model:
            raise
        project = empty_project(options.root)
    users = _registrations(project)
    fields: dict[str, Any] = {"schema": SCHEMA, "versions": library_versions()}
    if model:
        model = Session(project).one_model("ops --model", [model])
        opset, counts = _operators_of(project, model)
        operators = operator_table(state)["onnx"]
        onnx: Mapping[str, Any] = {name: operators.get(name) for name in counts}
        fields |= {"model": model, "opset": opset, "operators": counts}
        title = f"{model}: simplified graph, opset {opset}"
        lines = [title, *_table(_MODEL_TITLES, _model_rows(onnx, counts, opset, users))]
    else:
        table = operator_table(state)
        torch, onnx = chosen_rows(table, options.names, users)
        fields["torch"] = torch
        lines = [*_table(_TORCH_TITLES, _torch_rows(torch, users)), ""] if torch else []
        lines += _table(_ONNX_TITLES, _onnx_rows(onnx, users)) if onnx else []
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
    try:
        replace_file(file, json.dumps(table).encode())
    except OSError as error:
        sys.stderr.write(f"the table cannot be cached: {file}: {error.strerror}\n")
    return table


def _registrations(project: Project) -> dict[str, list[str]]:
    """Map an operator to ``MODEL (section)`` of its registrations and implementations."""
    users: dict[str, dict[str, None]] = {}
    for name, model in project.models.items():
        for section in _REGISTERING:
            for entry in model.data.get(section) or ():
                if isinstance(entry, dict) and entry.get("op"):
                    users.setdefault(str(entry["op"]), {})[f"{name} ({section})"] = None
    return {op: list(places) for op, places in sorted(users.items())}


def chosen_rows(
    table: Mapping[str, Any], names: Sequence[str], own: Iterable[str]
) -> tuple[Rows, Rows]:
    """Return the PyTorch and the ONNX rows of named operators or all.

    ``own`` are those registered here.

    Raises: UsageError: there is no such operator.
    """
    unsupported: Row = {
        "torchscript": None, "dynamo": None, "by_parts": False, "writes": [], "schemas": [],
    }  # fmt: skip
    tables: tuple[Rows, Rows] = table["torch"], table["onnx"]
    tables = ({**dict.fromkeys(set(own) - tables[1].keys(), unsupported), **tables[0]}, tables[1])
    if not names:
        return table["torch"], table["onnx"]
    chosen: list[dict[str, Row]] = [{}, {}]
    for name in names:
        rows = [{name: part[name]} if name in part else {} for part in tables]
        if not any(rows):
            rows = [_matching(name, part) for part in tables]
        if not any(rows):
            plain = {
                operator.rpartition("::")[2].lower(): operator
                for part in tables
                for operator in part
            }
            near = [plain[word] for word in nearest(name.rpartition("::")[2].lower(), plain)]
            hint = (
                f"nearest: {', '.join(near)}"
                if near
                else "`buildsys ops --all` lists all operators"
            )
            problem = f"there is no operator {name!r} in torch, ONNX or ONNX Runtime here"
            raise UsageError(problem, hint)
        for part, more in zip(chosen, rows, strict=True):
            part |= more
    return chosen[0], chosen[1]


def _matching(name: str, rows: Rows) -> dict[str, Row]:
    """List the rows of a name, ignoring case and a missing namespace."""
    lowered = name.removesuffix("_").lower().replace(".", "::")
    return {
        operator: row
        for operator, row in rows.items()
        if operator.lower() == lowered
        or ("::" not in lowered and operator.lower().rpartition("::")[2] == lowered)
    }


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
        raise UsageError(
            f"{model} has no graph yet", f"`buildsys build simplify:{model}` builds it"
        )
    counts = (simplified.get("after") or exported).get("operators") or {}
    return exported.get("opset", 0), counts


Users = Mapping[str, Sequence[str]]
Cells = Iterator[tuple[str, ...]]


def _torch_rows(torch: Rows, users: Users) -> Cells:
    for name, row in torch.items():
        traced = f"from opset {row['torchscript']}" if row["torchscript"] else _NO
        yield name, traced, _captured(row), ", ".join(users.get(name, ()))


def _onnx_rows(onnx: Rows, users: Users) -> Cells:
    for name, row in onnx.items():
        support = _runs(row["onnxruntime"]), _parsed(row["tensorrt_rtx"])
        yield name, _opsets(row), *support, ", ".join(users.get(name, ()))


def _model_rows(
    onnx: Mapping[str, Row | None], counts: Mapping[str, int], opset: int, users: Users
) -> Cells:
    """Yield the support of operators at the graph's opset."""
    for name, row in onnx.items():
        since, runs, parsed = "", _NO, _NO
        if row is not None:
            first = max(
                (version for version in row["opsets"] if 0 < version <= opset), default=None
            )
            kernels, since = row["onnxruntime"], str(first or "")
            now = [
                version for version in kernels or () if first is None or version["opset"] == first
            ]
            runs = _UNKNOWN if kernels is None else _runs(now)
            parsed = _parsed(row["tensorrt_rtx"])
        yield name, str(counts[name]), since, runs, parsed, ", ".join(users.get(name, ()))


def _table(titles: Sequence[str], cells: Iterable[Sequence[str]]) -> list[str]:
    """Format a table, without its last column if empty."""
    rows = list(cells)
    if not any(row[-1] for row in rows):
        titles, rows = titles[:-1], [row[:-1] for row in rows]
    return format_table(titles, rows)


def _captured(row: Row) -> str:
    parts = "decomposed" if row["by_parts"] else ""
    if not row["dynamo"]:
        return parts or _NO
    writes = f" ({', '.join(row['writes'])})" if row["writes"] else ""
    return f"from opset {row['dynamo']}{writes}" + (f", else {parts}" if parts else "")


def _opsets(row: Row) -> str:
    """Return for example ``from 9, changed in 22, removed in 25``."""
    since = [opset for opset in row["opsets"] if opset > 0]
    removed = next((-opset for opset in row["opsets"] if opset < 0), None)
    if not since:
        return "not in ONNX"
    changed = f", changed in {', '.join(map(str, since[1:]))}" if len(since) > 1 else ""
    return f"from {since[0]}{changed}" + (f", removed in {removed}" if removed else "")


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


def _parsed(supported: bool | None) -> str:
    return _UNKNOWN if supported is None else "yes" if supported else _NO
