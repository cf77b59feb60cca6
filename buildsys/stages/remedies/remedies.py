"""The rungs that apply to an operator that an exporter cannot translate or a backend cannot take, in order.

Pure: what the registries, schemas and parsers of this installation say comes in as facts. A rung is only named where
these say that it holds, except for those on which the user writes something, which always do.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from buildsys.stages.remedies.shipped_plugins import SHIPPED

NEWEST_TORCHSCRIPT_OPSET = 23  # it raises from 24 on
_OWN_DOMAINS = ("", "ai.onnx", "ai.onnx.ml")


@dataclass(frozen=True)
class Rung:
    """One thing to do: in a few words, and the lines of YAML to add to the manifest."""

    name: str  # opset, exporter, shipped, registration, local function, surgery, library, plugin
    text: str
    yaml: tuple[str, ...] = ()


@dataclass(frozen=True)
class TorchOperator:
    """An operator of torch that an exporter could not translate."""

    name: str  # aten::asinh
    schemas: tuple[str, ...] = ()
    torchscript_from: int | None = (
        None  # the lowest opset to which TorchScript translates it; None: to none
    )
    dynamo_from: int | None = None
    dynamo_note: str = (
        ""  # what is to be known about dynamo's translation, e.g. which backends lack its operator
    )


@dataclass(frozen=True)
class OnnxOperator:
    """An operator of a graph that a backend does not take."""

    domain: str
    name: str
    taken_from: int | None = (
        None  # the later opset from which the backend takes it; None: not known of any
    )
    wrong_types: tuple[str, ...] = ()  # it is known, but has no kernel for these

    @property
    def is_custom(self) -> bool:
        """Tell whether it is not ONNX's own."""
        return self.domain not in _OWN_DOMAINS

    @property
    def qualified(self) -> str:
        """Return its name as manifests have it: ``Gelu``, ``custom_domain::customOp2``."""
        return f"{self.domain}::{self.name}" if self.is_custom else self.name


def translation_rungs(
    operator: TorchOperator,
    exporter: str,
    opset: int,
    *,
    files: Collection[str] = (),
    declared: Collection[str] = (),
) -> list[Rung]:
    """Return what to do about an operator that ``exporter`` cannot translate to ``opset``.

    ``files`` are the project's plugin files, of which those that are shipped may be named; ``declared`` the sections
    that its manifest has already.
    """
    return [
        *_higher_opset(operator, exporter, opset),
        *_other_exporter(operator, exporter, opset),
        *_registration(operator, exporter, opset, files, declared),
    ]


def refusal_rungs(
    operator: OnnxOperator,
    backend: str,
    opset: int,
    *,
    files: Collection[str] = (),
    declared: Collection[str] = (),
) -> list[Rung]:
    """Return what to do about an operator of the graph that ``backend`` does not take."""
    rungs = []
    if operator.taken_from and operator.taken_from > opset:
        text = f"export to opset {operator.taken_from}, from which on it is taken"
        rungs.append(Rung("opset", text, (f"export: {{opset: {operator.taken_from}}}",)))
    for shipped in SHIPPED:
        if (
            shipped.operator == operator.qualified
            and backend in shipped.backends
            and shipped.files <= set(files)
        ):
            export = f"export: {{exporter: {shipped.exporter}, opset: {max(opset, shipped.opset)}}}"
            rungs.append(Rung("shipped", shipped.text, (export, *_entry(shipped.yaml, declared))))
    return [*rungs, *_implementations(operator, backend, declared)]


def opset_rungs(operator: str, exporter: str, opset: int, versions: Sequence[int]) -> list[Rung]:
    """Return what to do about an ONNX operator that the opset of the file does not have."""
    later = [version for version in versions if version > opset]
    if not later:
        return []
    text = f"export to opset {min(later)}, the first that has {operator}"
    if exporter == "torchscript" and min(later) > NEWEST_TORCHSCRIPT_OPSET:
        return [Rung("opset", text, (f"export: {{exporter: dynamo, opset: {min(later)}}}",))]
    return [Rung("opset", text, (f"export: {{opset: {min(later)}}}",))]


def written_rungs(written: int, asked: int) -> list[Rung]:
    """Return what to do where dynamo wrote a higher opset than was asked, because it cannot convert down."""
    rungs = [
        Rung(
            "opset",
            f"take opset {written}, in which dynamo writes it",
            (f"export: {{opset: {written}}}",),
        )
    ]
    if asked <= NEWEST_TORCHSCRIPT_OPSET:
        yaml = (f"export: {{exporter: torchscript, opset: {asked}}}",)
        rungs.append(Rung("exporter", f"take torchscript, which writes {asked} itself", yaml))
    return rungs


def hint(groups: Iterable[tuple[str, Sequence[Rung]]]) -> str:
    """Return the lines of a hint: for each operator what is known of it, and its rungs by number."""
    lines: list[str] = []
    for about, rungs in groups:
        lines += [about] if about else []
        for number, rung in enumerate(rungs, 1):
            lines.append(f"{number}. {rung.name}: {rung.text}")
            lines += [f"     {line}" for line in rung.yaml]
    return "\n".join(lines)


def _higher_opset(operator: TorchOperator, exporter: str, opset: int) -> Iterator[Rung]:
    lowest = operator.torchscript_from if exporter == "torchscript" else operator.dynamo_from
    if lowest and lowest > opset:
        yield Rung(
            "opset",
            f"{exporter} translates it from opset {lowest} on",
            (f"export: {{opset: {lowest}}}",),
        )


def _other_exporter(operator: TorchOperator, exporter: str, opset: int) -> Iterator[Rung]:
    if exporter == "torchscript" and operator.dynamo_from:
        needed = max(opset, operator.dynamo_from)
        note = f" ({operator.dynamo_note})" if operator.dynamo_note else ""
        text = f"dynamo translates it to opset {operator.dynamo_from} and later{note}"
        yield Rung("exporter", text, (f"export: {{exporter: dynamo, opset: {needed}}}",))
    if exporter == "dynamo" and operator.torchscript_from and opset <= NEWEST_TORCHSCRIPT_OPSET:
        needed = max(opset, operator.torchscript_from)
        text = f"torchscript translates it from opset {operator.torchscript_from} on"
        yield Rung("exporter", text, (f"export: {{exporter: torchscript, opset: {needed}}}",))


def _registration(
    operator: TorchOperator,
    exporter: str,
    opset: int,
    files: Collection[str],
    declared: Collection[str],
) -> Iterator[Rung]:
    found = [
        shipped
        for shipped in SHIPPED
        if (shipped.operator, shipped.exporter) == (operator.name, exporter)
        and shipped.files <= set(files)
    ]
    for shipped in found:
        export = (f"export: {{opset: {shipped.opset}}}",) if shipped.opset > opset else ()
        yield Rung("shipped", shipped.text, (*export, *_entry(shipped.yaml, declared)))
    if found:
        return
    name = _file_name(operator.name)
    if exporter == "torchscript":
        entry = f'symbolics: [{{op: "{operator.name}", function: "plugins/symbolics/{name}.py:{name}", opset: {opset}}}]'
        text = f"write a symbolic function for it and register it, for opset {opset} and later"
    else:
        entry = f'translations: [{{op: "{operator.name}", function: "plugins/symbolics/{name}.py:{name}"}}]'
        text = "write an onnxscript function for it and register it"
    yield Rung("registration", text, _entry((entry,), declared))


def _implementations(
    operator: OnnxOperator, backend: str, declared: Collection[str]
) -> Iterator[Rung]:
    name = _file_name(operator.name)
    if operator.is_custom:
        entry = f'ops: [{{op: "{operator.qualified}", function: "plugins/ops/{name}.py:{name}"}}]'
        yield Rung(
            "local function",
            "give it a body of operators that are taken",
            _entry((entry,), declared),
        )
    else:
        entry = (
            f'surgery: [{{replace: {{op: {operator.name}, function: "plugins/ops/{name}.py:{name}"}},'
            " when: after_export}]"
        )
        yield Rung(
            "surgery",
            "replace it by a local function of operators that are taken",
            _entry((entry,), declared),
        )
    if operator.is_custom and backend == "onnxruntime":
        entry = (
            f'ops: [{{op: "{operator.qualified}", library: {{sources: ["plugins/ops/{name}.c"]}}}}]'
        )
        yield Rung(
            "library", "implement it in C or C++ for ONNX Runtime", _entry((entry,), declared)
        )
    if operator.is_custom and backend in ("tensorrt", "tensorrt_rtx"):
        entry = f'ops: [{{op: "{operator.qualified}", plugin: {{python: "plugins/ops/{name}_plugin.py"}}}}]'
        yield Rung("plugin", "implement it for TensorRT", _entry((entry,), declared))


def _entry(yaml: Sequence[str], declared: Collection[str]) -> tuple[str, ...]:
    """Return YAML to add; where the manifest has the section already, as one more entry of its list."""
    lines: list[str] = []
    for line in yaml:
        section, _, value = line.partition(": ")
        further = section in declared and value.startswith("[")
        lines += (
            [f"{section}:  # beside what is there", f"  - {value[1:-1]}"] if further else [line]
        )
    return tuple(lines)


def _file_name(operator: str) -> str:
    """Return a Python name for an operator: ``custom_op2`` for customOp2."""
    word = re.sub(r"\W", "_", operator.rpartition("::")[2].strip("_"))
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", word).lower() or "operator"
