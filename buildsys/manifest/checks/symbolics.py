"""What must hold in the sections `symbolics` and `translations`, as far as a manifest tells it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeGuard

from buildsys.manifest.problem import Problem, show_value

if TYPE_CHECKING:
    from buildsys.manifest.checks.model import View

SYMBOLIC_OPSETS = range(6, 24)  # those that the torchscript exporter can write
_BASE_OPSET = 9  # below it, torch looks for a symbolic upwards from the export's opset to this one
_OPERATOR = re.compile(r"\w+::\w+(\.\w+)?")
_SECTIONS = {"symbolics": ("torchscript", "translations"), "translations": ("dynamo", "symbolics")}


def check_registrations(view: View) -> Iterator[Problem]:
    """Yield what is wrong with both sections, and with having one for the wrong exporter."""
    for section, (exporter, other) in _SECTIONS.items():
        if view.list(section):
            yield from _exporter_problems(view, section, exporter, other)
    for index, entry in enumerate(view.list("symbolics")):
        if isinstance(entry, dict):
            yield from _form_problems(view, index, entry)
            yield from _operator_problems(view, "symbolics", index, entry)
            yield from _opset_problems(view, index, entry)
    for index, entry in enumerate(view.list("translations")):
        if isinstance(entry, dict):
            yield from _operator_problems(view, "translations", index, entry)
    yield from _repeated(view, "symbolics", lambda entry: (entry.get("op"), entry.get("opset")))
    yield from _repeated(
        view, "translations", lambda entry: (str(entry.get("op")).removesuffix(".default"), None)
    )


def _exporter_problems(view: View, section: str, exporter: str, other: str) -> Iterator[Problem]:
    if "onnx" in view.map("source"):
        if view.own(section):
            text = "ignored for an onnx source, which is not exported"
            yield view.problem((section,), text, "remove it", of_key=True)
        return
    asked = view.map("export").get("exporter", "torchscript")
    if asked != exporter and asked in ("torchscript", "dynamo"):
        text = f"only exporter: {exporter} uses {section}, and this model is exported with {asked}"
        yield view.problem(
            (section,), text, f"write {other} for {asked}, or set export.exporter", of_key=True
        )


def _form_problems(view: View, index: int, entry: dict[str, Any]) -> Iterator[Problem]:
    key = ("symbolics", index)
    if entry.get("module") is not None:
        for field in ("op", "function", "opset"):
            if entry.get(field) is not None:
                text = "given beside module: the file itself says what it registers"
                yield view.problem((*key, field), text, "remove one of the two", of_key=True)
        return
    missing = [field for field in ("op", "function") if entry.get(field) is None]
    if missing and not entry.keys() - {"op", "function", "opset", "module"}:
        text = f"the entry has no {' and no '.join(missing)}"
        yield view.problem(
            key, text, "wanted is {op: …, function: …, opset: …} or {module: FILE.py}"
        )


def _operator_problems(
    view: View, section: str, index: int, entry: dict[str, Any]
) -> Iterator[Problem]:
    op = entry.get("op")
    if not isinstance(op, str):
        return
    key = (section, index, "op")
    if "::" not in op:
        yield view.problem(
            key,
            f"{show_value(op)} has no ::",
            f"wanted is namespace::name, such as aten::{_word(op)}",
        )
    elif op.startswith("onnx::"):
        text = "the namespace onnx is that of ONNX's own operators, and nothing can be registered in it"
        yield view.problem(key, text, "name the operator of PyTorch, such as aten::asinh")
    elif not _OPERATOR.fullmatch(op):
        yield view.problem(key, f"{show_value(op)} is not an operator's name such as aten::asinh")
    elif section == "symbolics" and "." in op:
        text = "the torchscript exporter looks symbolics up without the overload"
        yield view.problem(
            key,
            text,
            f"write {op.partition('.')[0]}: the function gets the inputs of each overload",
        )


def _word(op: str) -> str:
    return re.sub(r"\W", "", op.rpartition(".")[2].rpartition(":")[2]) or "asinh"


def _opset_problems(view: View, index: int, entry: dict[str, Any]) -> Iterator[Problem]:
    opset, asked = entry.get("opset"), view.map("export").get("opset", 17)
    if not _is_number(opset):
        return
    key = ("symbolics", index, "opset")
    if opset not in SYMBOLIC_OPSETS:
        span = f"{SYMBOLIC_OPSETS[0]} to {SYMBOLIC_OPSETS[-1]}"
        yield view.problem(
            key, f"{opset} is not an opset that the torchscript exporter can write ({span})"
        )
    elif _is_number(asked) and not reaches(asked, opset):
        text = f"an export to opset {asked} does not reach a symbolic registered at {opset}"
        yield view.problem(
            key, text, f"set it to {asked} or lower, or leave it out, or raise export.opset"
        )


def reaches(asked: int, registered: int) -> bool:
    """Say whether an export to opset ``asked`` may use a symbolic of opset ``registered``.

    Source: torch.onnx._internal.torchscript_exporter.registration._dispatch_opset_version.
    """
    return registered <= asked if asked >= _BASE_OPSET else asked <= registered <= _BASE_OPSET


def _repeated(
    view: View, section: str, identity: Callable[[dict[str, Any]], tuple[Any, Any]]
) -> Iterator[Problem]:
    seen: list[tuple[Any, Any]] = []
    for index, entry in enumerate(view.list(section)):
        if not isinstance(entry, dict) or not isinstance(entry.get("op"), str):
            continue
        name, opset = identity(entry)
        if (name, opset) in seen:
            text = f"{name} is registered twice" + (
                f" for opset {opset}" if opset is not None else ""
            )
            yield view.problem((section, index, "op"), text, "remove one of the two")
        seen.append((name, opset))


def _is_number(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)
