"""doit ops: operator support of the installed libraries.

Their registries are read once per set of versions, by a process that loads torch.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from buildsys.cli.command import (
    JSON,
    Options,
    ProjectCommand,
    option,
    print_json,
    print_lines,
)
from buildsys.cli.console.rows import format_table
from buildsys.cli.graph_files import require_graph
from buildsys.cli.session import Session
from buildsys.errors import ManifestErrors, StageError, UsageError
from buildsys.manifest.project import STATE_FOLDER, Project, empty_project, load_project
from buildsys.report.formatting import duration
from buildsys.report.results.reader import read_result
from buildsys.system.files import MAX_RESULT_BYTES, read_limited, replace_file
from buildsys.system.processes import run_python
from buildsys.system.suggestions import nearest
from buildsys.system.versions import python_version, tool_versions

SCHEMA = "buildsys/ops/1"
_LIBRARIES = ("torch", "torchvision", "onnx", "onnxscript", "onnxruntime", "tensorrt_rtx")
_READER = "buildsys.backends.operator_support"
_READER_CODE = ("backends/operator_support/*.py", "backends/onnxruntime/kernels.py")
_KEPT_TABLES = 4  # of other versions: users switch between environments
_REGISTERING = ("symbolics", "translations", "ops")
_TORCH_TITLES = ("PyTorch operator", "TorchScript", "dynamo", "registered here")
_ONNX_TITLES = (
    "ONNX operator", "opsets", "ONNX Runtime (CPU)", "TensorRT-RTX", "implemented here",
)  # fmt: skip
_MODEL_TITLES = ("operator", "nodes>", "since", *_ONNX_TITLES[2:])
_PROGRESS_S = {True: 1.0, False: 10.0}  # between two lines, on a terminal and elsewhere
_NO, _UNKNOWN = "no", "not installed"
Row = Mapping[str, Any]
Rows = Mapping[str, Row]


class Ops(ProjectCommand):
    """Show operator support."""

    doc_purpose = "show which operators the installed exporters, ONNX and runtimes support"
    doc_usage = "[OPERATOR ...]"
    options = (
        JSON,
        option("all", "show all operators", flag=True),
        option("model", "show the operators in a built model's graph"),
    )

    def run(self, root: Path, names: Sequence[str], options: Options) -> int:
        """Print the named operators, those of a model, all, or a summary."""
        model = options["model"]
        if model and names:
            raise UsageError(
                "ops takes the names of operators or --model, not both", "leave one of them out"
            )
        try:
            project = load_project(root, remember=False)
        except ManifestErrors:  # operators need no manifest
            if model:
                raise
            project = empty_project(root)
        registered = _registrations(project)
        if model:
            model = Session(project).one_model("ops --model", [model])
            _print_model(project, model, root / STATE_FOLDER, registered, options)
            return 0
        known = operator_table(root / STATE_FOLDER)
        torch, onnx = known["torch"], known["onnx"]
        if names:
            torch, onnx = _chosen(known, names, registered)
        if options["json"]:
            _print_json(torch=torch, onnx=onnx, registered=registered)
        elif names or options["all"]:
            users = {name: ", ".join(found) for name, found in registered.items()}
            torch_rows = [
                (
                    name,
                    f"from opset {row['torchscript']}" if row["torchscript"] else _NO,
                    _captured(row),
                    users.get(name, ""),
                )
                for name, row in torch.items()
            ]
            onnx_rows = [
                (
                    name,
                    _opsets(row),
                    _runs(row["onnxruntime"]),
                    _parsed(row["tensorrt_rtx"]),
                    users.get(name, ""),
                )
                for name, row in onnx.items()
            ]
            tables = [*_table(_TORCH_TITLES, torch_rows), "", *_table(_ONNX_TITLES, onnx_rows)]
            print_lines(tables if torch and onnx else filter(None, tables))
        else:
            print_lines(_summary(known))
        return 0


def library_versions() -> dict[str, str]:
    """Return the versions of the libraries."""
    return {"python": python_version(), **tool_versions(_LIBRARIES)}


def operator_table(state: Path) -> dict[str, Any]:
    """Return the operator table of the installed libraries, cached in ``state``.

    Raises: StageError: torch or onnx cannot be loaded.
    """
    package = Path(__file__).parents[2]
    code = [path.read_bytes() for part in _READER_CODE for path in sorted(package.glob(part))]
    digests = [hashlib.sha256(content).hexdigest() for content in code]
    key = json.dumps([sorted(library_versions().items()), digests])
    file = state / "operators" / f"{hashlib.sha256(key.encode()).hexdigest()[:16]}.json"
    with suppress(OSError, ValueError):  # missing, or damaged
        checksum, _, body = read_limited(file, MAX_RESULT_BYTES).partition(b"\n")
        if int(checksum, 16) == zlib.crc32(body):
            known: dict[str, Any] = json.loads(body)
            return known
    table = _read_registries()
    try:
        body = json.dumps(table).encode()
        replace_file(file, b"%08x\n" % zlib.crc32(body) + body)
        tables = sorted(file.parent.glob("*.json"), key=lambda path: path.stat().st_mtime)
        for old in tables[:-_KEPT_TABLES]:
            old.unlink(missing_ok=True)
    except OSError as error:
        sys.stderr.write(f"the table cannot be cached: {file}: {error.strerror}\n")
    return table


def _read_registries() -> dict[str, Any]:
    sys.stderr.write("reading the registries of the libraries (once for these versions) …\n")
    sys.stderr.flush()
    with tempfile.NamedTemporaryFile(prefix="buildsys-ops-") as step, _progress(Path(step.name)):
        done = run_python(("-m", _READER, step.name))
    if done.problem:
        hint = "`doit ops` needs torch and onnx"
        raise StageError(f"cannot read the registries: {done.problem}", hint)
    table: dict[str, Any] = done.json()
    return table


@contextmanager
def _progress(step: Path) -> Iterator[None]:
    """Show the elapsed time and the reader's current step from its file."""
    begun, ended, out = time.monotonic(), threading.Event(), sys.stderr
    begin, end = ("\r\033[K", "") if out.isatty() else ("", "\n")

    def show() -> None:
        while not ended.wait(_PROGRESS_S[out.isatty()]):
            text = step.read_text(encoding="utf-8") or "loading torch"
            out.write(f"{begin}{duration(time.monotonic() - begun)}: {text}{end}")
            out.flush()

    thread = threading.Thread(target=show)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        out.write(begin)


def _registrations(project: Project) -> dict[str, list[str]]:
    """Return operator -> ``MODEL (section)`` of its registrations and implementations."""
    found: dict[str, dict[str, None]] = {}
    for name, model in project.models.items():
        for section in _REGISTERING:
            for entry in model.data.get(section) or ():
                if isinstance(entry, dict) and entry.get("op"):
                    found.setdefault(str(entry["op"]), {})[f"{name} ({section})"] = None
    return {op: list(users) for op, users in sorted(found.items())}


def _chosen(
    known: Mapping[str, Any], names: Sequence[str], registered: Mapping[str, list[str]]
) -> tuple[Rows, Rows]:
    """Return the PyTorch and the ONNX rows of the named operators."""
    torch: dict[str, Row] = {}
    onnx: dict[str, Row] = {}
    unsupported: Row = {
        "torchscript": None, "dynamo": None, "by_parts": False, "writes": [], "schemas": [],
    }  # fmt: skip
    own = {n: unsupported for n in registered if n not in known["torch"] and n not in known["onnx"]}
    for name in names:
        tables: tuple[Rows, Rows] = ({**known["torch"], **own}, known["onnx"])
        found = [{name: rows[name]} if name in rows else {} for rows in tables]
        if not any(found):
            found = [_matching(name, rows) for rows in tables]
        if not any(found):
            everything = [*known["torch"], *known["onnx"], *own]
            near = nearest(name, everything)
            if "::" not in name:
                plain: dict[str, str] = {}
                for one in everything:
                    plain.setdefault(one.rpartition("::")[2].lower(), one)
                near = [*(plain[word] for word in nearest(name.lower(), plain)), *near]
            shown = ", ".join(list(dict.fromkeys(near))[:3])
            raise UsageError(
                f"there is no operator {name!r} in torch, ONNX or ONNX Runtime here",
                f"nearest: {shown}" if near else "`doit ops --all` lists all operators",
            )
        torch |= found[0]
        onnx |= found[1]
    return torch, onnx


def _matching(name: str, rows: Rows) -> dict[str, Row]:
    """Return the rows of a name, ignoring case and a missing namespace."""
    wanted = name.removesuffix("_").lower().replace(".", "::")
    return {
        known: row
        for known, row in rows.items()
        if known.lower() == wanted
        or ("::" not in wanted and known.lower().rpartition("::")[2] == wanted)
    }


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a table, without its last column if empty."""
    if not any(row[-1] for row in rows):
        titles, rows = titles[:-1], [row[:-1] for row in rows]
    return format_table(titles, rows) if rows else []


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


def _summary(known: Mapping[str, Any]) -> list[str]:
    torch, onnx, versions = known["torch"].values(), known["onnx"], library_versions()
    own = {name: row for name, row in onnx.items() if row["opsets"]}
    newest = max(opset for row in own.values() for opset in row["opsets"])
    traced = sum(row["torchscript"] is not None for row in torch)
    captured = sum(row["dynamo"] is not None for row in torch)
    parts = sum(row["by_parts"] and row["dynamo"] is None for row in torch)
    run = sum(
        any(one["types"] or one["body"] for one in row["onnxruntime"] or ()) for row in own.values()
    )
    parsed = sum(bool(row["tensorrt_rtx"]) for row in own.values())
    return [
        f"torch {versions['torch']}: {len(torch)} operators",
        f"  TorchScript translates {traced}, dynamo {captured} directly and {parts} decomposed",
        f"onnx {versions['onnx']}: {len(own)} operators up to opset {newest}",
        f"  ONNX Runtime {versions['onnxruntime']} runs {run} on a CPU, "
        f"TensorRT-RTX {versions['tensorrt_rtx']} parses {parsed}",
        "`doit ops NAME ...` shows single operators (asinh, DeformConv, aten::roll),",
        "`doit ops --model MODEL` those of a graph, `doit ops --all` all; --json prints JSON",
    ]


def _print_model(
    project: Project,
    model: str,
    state: Path,
    registered: Mapping[str, list[str]],
    options: Options,
) -> None:
    """Print the operators of a model's simplified or exported graph."""
    exported, simplified = (
        read_result(f"{stage}:{model}", project.build / model / file, file).content
        for stage, file in (("export", "export/export.json"), ("simplify", "simplify/graph.json"))
    )
    if not exported:
        require_graph(project, model)
        raise UsageError(f"{model} has no graph yet", f"`doit simplify:{model}` builds it")
    opset: int = exported.get("opset", 0)
    counts: dict[str, int] = (simplified.get("after") or exported).get("operators") or {}
    known = operator_table(state)
    onnx = {name: known["onnx"].get(name) for name in counts}
    if options["json"]:
        _print_json(model=model, opset=opset, operators=counts, onnx=onnx, registered=registered)
        return
    rows = []
    for name, row in onnx.items():
        since, runs, parsed = "", _NO, _NO
        if row is not None:  # the support at the graph's opset
            first = max((one for one in row["opsets"] if 0 < one <= opset), default=None)
            kernels, since = row["onnxruntime"], str(first or "")
            now = [one for one in kernels or () if first is None or one["opset"] == first]
            runs = _UNKNOWN if kernels is None else _runs(now)
            parsed = _parsed(row["tensorrt_rtx"])
        users = ", ".join(registered.get(name, ()))
        rows.append((name, str(counts[name]), since, runs, parsed, users))
    print_lines([f"{model}: simplified graph, opset {opset}", *_table(_MODEL_TITLES, rows)])


def _print_json(**fields: Any) -> None:
    print_json({"schema": SCHEMA, "versions": library_versions(), **fields})
