"""What ``doit ops`` answers: which operators are translated, known and run by what is installed here."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from buildsys.cli.name_suggestions import known_model
from buildsys.cli.operators.support_table import library_versions, operator_table
from buildsys.errors import ManifestErrors, UsageError
from buildsys.manifest.project import STATE_FOLDER, Project, load_project
from buildsys.report.markdown.elements import table
from buildsys.system.suggestions import nearest

_REGISTERING = ("symbolics", "translations", "ops")
_TORCH_COLUMNS = ("operator of torch", "TorchScript", "dynamo", "registered here")
_ONNX_COLUMNS = (
    "operator of the graph",
    "opsets",
    "ONNX Runtime (CPU)",
    "TensorRT-RTX",
    "implemented here",
)
_NO, _UNKNOWN = "no", "not installed"
Row = Mapping[str, Any]


class Chosen(NamedTuple):
    """The rows to show."""

    torch: Mapping[str, Row]
    onnx: Mapping[str, Row]


def tell(root: Path, names: Sequence[str], *, model: str, everything: bool, as_json: bool) -> str:
    """Return the rows of the named operators, of those that a model's graph uses, of all, or a summary.

    Raises: UsageError: no such operator or model, or the model has no graph yet.
    StageError: the table cannot be made.
    """
    if model and names:
        raise UsageError("ops takes the names of operators or --model, not both")
    project = _project(root, needed=bool(model))
    known = operator_table(root / STATE_FOLDER)
    registered = _registrations(project)
    if model:
        known_model("ops --model", project.models if project else {}, [model])
        assert project is not None
        return _model_text(project, model, known, registered, as_json=as_json)
    chosen = _chosen(known, names, registered) if names else Chosen(known["torch"], known["onnx"])
    if as_json:
        return _json(torch=chosen.torch, onnx=chosen.onnx, registered=registered)
    return _tables(chosen, registered) if names or everything else _summary(known)


def _project(root: Path, *, needed: bool) -> Project | None:
    """Return the project for what its manifests register; wrong ones are no hindrance to looking operators up."""
    if needed:
        return load_project(root, remember=False)
    with suppress(ManifestErrors):
        return load_project(root, remember=False)
    return None


def _registrations(project: Project | None) -> dict[str, list[str]]:
    """Return operator -> ``MODEL (section)`` of every model that registers or implements it."""
    found: dict[str, list[str]] = {}
    for name, model in (project.models if project else {}).items():
        for section in _REGISTERING:
            for entry in model.data.get(section) or ():
                if isinstance(entry, dict) and entry.get("op"):
                    found.setdefault(str(entry["op"]), []).append(f"{name} ({section})")
    return {op: list(dict.fromkeys(users)) for op, users in sorted(found.items())}


def _chosen(
    known: Mapping[str, Any], names: Sequence[str], registered: Mapping[str, list[str]]
) -> Chosen:
    torch: dict[str, Row] = {}
    onnx: dict[str, Row] = {}
    own = {
        name: _own_row()
        for name in registered
        if name not in known["torch"] and name not in known["onnx"]
    }
    for name in names:
        tables = ({**known["torch"], **own}, known["onnx"])
        exact = [{name: rows[name]} if name in rows else {} for rows in tables]
        in_torch, in_onnx = exact if any(exact) else [_matching(name, rows) for rows in tables]
        if not in_torch and not in_onnx:
            raise _unknown(name, [*known["torch"], *known["onnx"], *own])
        torch.update(in_torch)
        onnx.update(in_onnx)
    return Chosen(torch, onnx)


def _own_row() -> Row:
    return {"torchscript": None, "dynamo": None, "by_parts": False, "writes": [], "schemas": []}


def _matching(name: str, rows: Mapping[str, Row]) -> dict[str, Row]:
    """Return the rows whose name it is, or whose name without namespace, in any case of its letters."""
    wanted = name.removesuffix("_").lower().replace(".", "::")
    return {
        known: row
        for known, row in rows.items()
        if known.lower() == wanted
        or ("::" not in wanted and known.lower().rpartition("::")[2] == wanted)
    }


def _unknown(name: str, known: Sequence[str]) -> UsageError:
    near = nearest(name, known)
    if "::" not in name:
        plain: dict[str, str] = {}
        for one in known:
            plain.setdefault(one.rpartition("::")[2].lower(), one)
        near = list(
            dict.fromkeys([*(plain[word] for word in nearest(name.lower(), plain)), *near])
        )[:3]
    hint = f"nearest: {', '.join(near)}" if near else "`doit ops --all` tells all of them"
    return UsageError(f"there is no operator {name!r} in torch, ONNX or ONNX Runtime here", hint)


def _tables(chosen: Chosen, registered: Mapping[str, list[str]]) -> str:
    lines: list[str] = []
    if chosen.torch:
        lines += [
            *_filled(
                _TORCH_COLUMNS, [_torch_cells(*row, registered) for row in chosen.torch.items()]
            ),
            "",
        ]
    if chosen.onnx:
        lines += [
            *_filled(_ONNX_COLUMNS, [_onnx_cells(*row, registered) for row in chosen.onnx.items()]),
            "",
        ]
    return "\n".join(lines)


def _filled(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a table, without its last column where no row has anything there."""
    if not any(row[-1] for row in rows):
        columns, rows = columns[:-1], [row[:-1] for row in rows]
    return table(columns, rows)


def _torch_cells(name: str, row: Row, registered: Mapping[str, list[str]]) -> tuple[str, ...]:
    traced = f"from opset {row['torchscript']}" if row["torchscript"] else _NO
    return name, traced, _captured(row), ", ".join(registered.get(name, ()))


def _captured(row: Row) -> str:
    parts = "by its parts" if row["by_parts"] else ""
    if not row["dynamo"]:
        return parts or _NO
    young = f" ({', '.join(row['writes'])})" if row["writes"] else ""
    return f"from opset {row['dynamo']}{young}" + (f", else {parts}" if parts else "")


def _onnx_cells(name: str, row: Row, registered: Mapping[str, list[str]]) -> tuple[str, ...]:
    implemented = ", ".join(registered.get(name, ()))
    return name, _opsets(row), _runs(row["onnxruntime"]), _taken(row["tensorrt_rtx"]), implemented


def _opsets(row: Row) -> str:
    """Return ``from 9, changed in 22``; an opset that took it out of use ends it."""
    since = [opset for opset in row["opsets"] if opset > 0]
    gone = next((-opset for opset in row["opsets"] if opset < 0), None)
    if not since:
        return "outside ONNX"
    changed = f", changed in {', '.join(map(str, since[1:]))}" if len(since) > 1 else ""
    return f"from {since[0]}{changed}" + (f", gone from {gone}" if gone else "")


def _runs(support: Sequence[Row] | None) -> str:
    """Return the types by opset, without opsets that change nothing in them."""
    if support is None:
        return _UNKNOWN
    told: dict[int, str] = {}
    for row in support:
        types = ", ".join(row["types"]) or ("as its function" if row["body"] else _NO)
        if types != next(reversed(told.values()), ""):
            told[row["opset"]] = types
    if len(told) == 1:
        return next(iter(told.values()))
    return "; ".join(f"{opset}: {types}" for opset, types in told.items()) or _NO


def _taken(takes: bool | None) -> str:
    return _UNKNOWN if takes is None else "yes" if takes else _NO


def _summary(known: Mapping[str, Any]) -> str:
    torch, onnx, versions = known["torch"].values(), known["onnx"], library_versions()
    own = {name: row for name, row in onnx.items() if row["opsets"]}
    newest = max(opset for row in own.values() for opset in row["opsets"])
    traced = sum(row["torchscript"] is not None for row in torch)
    captured = sum(row["dynamo"] is not None for row in torch)
    parts = sum(row["by_parts"] and row["dynamo"] is None for row in torch)
    run = [
        row
        for row in own.values()
        if any(one["types"] or one["body"] for one in row["onnxruntime"] or ())
    ]
    taken = sum(bool(row["tensorrt_rtx"]) for row in own.values())
    return (
        f"torch {versions['torch']}: {len(torch)} operators; TorchScript translates {traced}, dynamo {captured} and"
        f" {parts} more by taking them apart\n"
        f"onnx {versions['onnx']}: {len(own)} operators up to opset {newest}; ONNX Runtime {versions['onnxruntime']}"
        f" runs {len(run)} of them on a CPU, TensorRT-RTX {versions['tensorrt_rtx']} takes {taken}\n"
        "`doit ops NAME …` tells of some (asinh, DeformConv, aten::roll), `doit ops --model MODEL` of a graph's,\n"
        "`doit ops --all` of all; --json prints the same for programs\n"
    )


def _model_text(
    project: Project,
    model: str,
    known: Mapping[str, Any],
    registered: Mapping[str, list[str]],
    *,
    as_json: bool,
) -> str:
    opset, counts = _operators_of(project, model)
    rows = {name: known["onnx"].get(name) for name in counts}
    if as_json:
        return _json(model=model, opset=opset, operators=counts, onnx=rows, registered=registered)
    cells = [
        (name, str(counts[name]), *_cells_at(name, row, opset, registered))
        for name, row in rows.items()
    ]
    columns = (
        "operator",
        "nodes>",
        "since",
        "ONNX Runtime (CPU)",
        "TensorRT-RTX",
        "implemented here",
    )
    return (
        f"{model}: the simplified graph, opset {opset}\n"
        + "\n".join(_filled(columns, cells))
        + "\n"
    )


def _operators_of(project: Project, model: str) -> tuple[int, dict[str, int]]:
    """Return the opset and the operators of a model's simplified graph, else of its exported one."""
    folder = project.build / model
    exported, simplified = (
        _result(folder / "export/export.json"),
        _result(folder / "simplify/graph.json"),
    )
    if not exported:
        raise UsageError(f"{model} has no graph yet", f"`doit simplify:{model}` makes it")
    counts: dict[str, int] = (simplified.get("after") or exported).get("operators") or {}
    return int(exported.get("opset") or 0), counts


def _result(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _cells_at(
    name: str, row: Row | None, opset: int, registered: Mapping[str, list[str]]
) -> Iterator[str]:
    """Yield the cells of an operator as a graph of this opset has it."""
    users = ", ".join(registered.get(name, ()))
    if row is None:
        yield from ("", _NO, _NO, users)
        return
    since = max((one for one in row["opsets"] if 0 < one <= opset), default=None)
    support = row["onnxruntime"]
    now = [one for one in support or () if since is None or one["opset"] == since]
    yield str(since or "")
    yield _UNKNOWN if support is None else _runs(now)
    yield _taken(row["tensorrt_rtx"])
    yield users


def _json(**fields: Any) -> str:
    return (
        json.dumps({"schema": "buildsys/ops/1", "versions": library_versions(), **fields}, indent=2)
        + "\n"
    )
