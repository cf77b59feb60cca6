"""Remedies for operators without a translation or an implementation.

Pure functions: callers pass in facts from the registries, schemas and parsers of this installation.
An opset, an exporter or a shipped plugin is named only if the facts say that it helps; code that
the user can write always does.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from buildsys.system.backend_registry import describe_backend

NEWEST_TORCHSCRIPT_OPSET = 23  # the exporter raises from 24 on
OLDEST_DYNAMO_OPSET = 18  # it writes no lower one, and converts only some graphs down
_EXPORT_OPTIONS = re.compile(r"export: \{([\w: ,]+)\}")
_ONNX_DOMAINS = ("", "ai.onnx", "ai.onnx.ml")
_ASINH = (
    'symbolics: [{op: "aten::asinh", function: "plugins/symbolics/asinh.py:asinh", opset: 9}]',
)
_DEFORM_CONV = (
    'symbolics: [{op: "torchvision::deform_conv2d",'
    ' function: "plugins/symbolics/deform_conv2d.py:deform_conv2d", opset: 19}]',
    'ops: [{op: "custom_domain::deformConv2d",'
    ' function: {onnxruntime: "plugins/ops/deform_conv2d.py:deform_conv",'
    ' tensorrt: "plugins/ops/deform_conv2d.py:grid_sample_conv",'
    ' tensorrt_rtx: "plugins/ops/deform_conv2d.py:grid_sample_conv"}}]',
)


@dataclass(frozen=True)
class Remedy:
    """One thing to try, with the YAML to add to the manifest."""

    name: str  # such as opset, exporter, shipped, registration, local function or plugin
    text: str
    yaml: tuple[str, ...] = ()


@dataclass(frozen=True)
class TorchOperator:
    """Facts on a torch operator without a translation."""

    name: str  # aten::asinh
    torchscript_from: int | None = None  # lowest opset; None: no translation
    dynamo_from: int | None = None
    dynamo_by_parts: bool = False  # torch decomposes it; dynamo may translate the parts
    dynamo_note: str = ""  # a caveat, e.g. backends without the operator that dynamo writes


@dataclass(frozen=True)
class OnnxOperator:
    """Facts on an operator rejected by a backend."""

    domain: str
    name: str
    supported_from: int | None = None  # a later opset with support in the backend, if known
    supported_until: int | None = None  # the newest opset that the backend knows, if not all

    @property
    def is_custom(self) -> bool:
        """Check for a domain outside ONNX."""
        return self.domain not in _ONNX_DOMAINS

    @property
    def qualified(self) -> str:
        """The name used in manifests: ``Gelu``, ``custom_domain::customOp2``."""
        return f"{self.domain}::{self.name}" if self.is_custom else self.name


def translation_remedies(
    operator: TorchOperator,
    exporter: str,
    opset: int,
    *,
    files: Collection[str] = (),
    declared: Collection[str] = (),
) -> list[Remedy]:
    """List remedies for an operator without a translation.

    ``files`` are the project's shipped plugin files, ``declared`` the sections of its manifest.
    """
    torchscript, dynamo = operator.torchscript_from, operator.dynamo_from
    remedies = []
    if operator.name.startswith("quantized::"):
        text = "return the network before its quantization; engines of precision int8 quantize it"
        remedies.append(Remedy("float network", text))
    lowest = torchscript if exporter == "torchscript" else dynamo
    if lowest and lowest > opset:
        text = f"{exporter} translates it from opset {lowest} on"
        remedies.append(Remedy("opset", text, (f"export: {{opset: {lowest}}}",)))
    if exporter == "torchscript" and (dynamo or operator.dynamo_by_parts):
        note = f" ({operator.dynamo_note})" if operator.dynamo_note else ""
        text = f"dynamo translates {'it' if dynamo else 'its parts'}"
        text += f" from opset {dynamo or OLDEST_DYNAMO_OPSET} on{note}"
        since = max(opset, dynamo or OLDEST_DYNAMO_OPSET)
        yaml = f"export: {{exporter: dynamo, opset: {since}}}"
        remedies.append(Remedy("exporter", text, (yaml,)))
    if exporter == "dynamo" and torchscript and opset <= NEWEST_TORCHSCRIPT_OPSET:
        text = f"torchscript translates it from opset {torchscript} on"
        yaml = f"export: {{exporter: torchscript, opset: {max(opset, torchscript)}}}"
        remedies.append(Remedy("exporter", text, (yaml,)))
    for plugin in SHIPPED:
        matches = (plugin.operator, plugin.exporter) == (operator.name, exporter)
        if matches and plugin.files <= set(files):
            export = (f"export: {{opset: {plugin.opset}}}",) if plugin.opset > opset else ()
            yaml_lines = (*export, *_as_entries(plugin.yaml, declared))
            return [*remedies, Remedy("shipped", plugin.text, yaml_lines)]
    name = _file_name(operator.name)
    entry = f'op: "{operator.name}", function: "plugins/symbolics/{name}.py:{name}"'
    if exporter == "torchscript":
        yaml = f"symbolics: [{{{entry}, opset: {opset}}}]"
        text = f"write a symbolic function for opset {opset} and later and register it"
    else:
        yaml = f"translations: [{{{entry}}}]"
        text = "write an onnxscript function and register it"
    return [*remedies, Remedy("registration", text, _as_entries((yaml,), declared))]


def refusal_remedies(
    operator: OnnxOperator,
    backend: str,
    opset: int,
    *,
    files: Collection[str] = (),
    declared: Collection[str] = (),
) -> list[Remedy]:
    """List remedies for an operator of the graph rejected by ``backend``."""
    remedies = []
    if operator.supported_from and operator.supported_from > opset:
        text = f"export to opset {operator.supported_from}; the backend supports it from there on"
        yaml = f"export: {{opset: {operator.supported_from}}}"
        remedies.append(Remedy("opset", text, (yaml,)))
    newest = operator.supported_until
    if newest and newest < opset and not operator.is_custom:
        text = f"export to opset {newest}, the newest that the backend knows"
        yaml = f"export: {{exporter: torchscript, opset: {newest}}}"
        remedies.append(Remedy("opset", text, (yaml,)))
    for plugin in SHIPPED:
        matches = plugin.operator == operator.qualified and backend in plugin.backends
        if matches and plugin.files <= set(files):
            yaml = f"export: {{exporter: {plugin.exporter}, opset: {max(opset, plugin.opset)}}}"
            yaml_lines = (yaml, *_as_entries(plugin.yaml, declared))
            remedies.append(Remedy("shipped", plugin.text, yaml_lines))
    for name, text, yaml in _implementations(operator, backend):
        remedies.append(Remedy(name, text, _as_entries((yaml,), declared)))
    return remedies


def opset_remedies(
    operator: str, exporter: str, opset: int, versions: Sequence[int]
) -> list[Remedy]:
    """List remedies for an ONNX operator outside the file's opset."""
    later = [version for version in versions if version > opset]
    if not later:
        return []
    first = min(later)
    needs_dynamo = exporter == "torchscript" and first > NEWEST_TORCHSCRIPT_OPSET
    yaml = f"export: {{{'exporter: dynamo, ' * needs_dynamo}opset: {first}}}"
    return [Remedy("opset", f"export to opset {first}, the first with {operator}", (yaml,))]


def raised_opset_remedies(exporter: str, wanted: int) -> list[Remedy]:
    """List the remedy for a torch message about opset ``wanted``."""
    needs_dynamo = exporter == "torchscript" and wanted > NEWEST_TORCHSCRIPT_OPSET
    yaml = f"export: {{{'exporter: dynamo, ' * needs_dynamo}opset: {wanted}}}"
    return [Remedy("opset", f"export to opset {wanted}, as torch asks", (yaml,))]


def function_remedies(name: str, opset: int, *, inlines: bool) -> list[Remedy]:
    """List remedies for an autograd function without a symbolic.

    ``inlines``: the exporter already tries the operators of its forward.
    """
    text = f"give {name} a static method that writes ONNX nodes"
    node = f'return g.op("custom_domain::{name}", x).setType(x.type())'
    lines = ("@staticmethod", "def symbolic(g, x):", f"    {node}")
    yaml = f"export: {{exporter: dynamo, opset: {max(opset, OLDEST_DYNAMO_OPSET)}}}"
    remedies = [
        Remedy("symbolic", text, lines),
        Remedy("exporter", "dynamo exports the operators of its forward", (yaml,)),
    ]
    if not inlines:
        text = "let torchscript export the operators of its forward"
        remedies.insert(0, Remedy("inlining", text, ("export: {autograd_inlining: true}",)))
    return remedies


def higher_opset_remedies(written: int, requested: int) -> list[Remedy]:
    """List remedies if dynamo wrote a higher opset."""
    text = f"request opset {written}, the one dynamo wrote"
    remedies = [Remedy("opset", text, (f"export: {{opset: {written}}}",))]
    if requested <= NEWEST_TORCHSCRIPT_OPSET:
        yaml = f"export: {{exporter: torchscript, opset: {requested}}}"
        text = f"use torchscript, which writes opset {requested} directly"
        remedies.append(Remedy("exporter", text, (yaml,)))
    return remedies


def tried_remedies(
    remedies: Sequence[Remedy], attempt: Callable[[Mapping[str, Any]], str | None]
) -> list[Remedy]:
    """Keep the successful remedies; the last one names the others.

    ``attempt`` exports with changed options and returns the problem, "" or None if unknown. Only
    remedies that change nothing else are tried.
    """
    successful, failed = [], []
    for remedy in remedies:
        changes = _export_changes(remedy)
        problem = attempt(changes) if changes else None
        if problem:
            failed.append(f"{remedy.yaml[0]} ({problem})")
        else:
            successful.append(remedy)
    if failed:
        successful.append(
            Remedy("tried", "these changes do not help", tuple(f"# {f}" for f in failed))
        )
    return successful


def _export_changes(remedy: Remedy) -> dict[str, Any]:
    """Return the export options of a remedy, if it has only these."""
    match = _EXPORT_OPTIONS.fullmatch(remedy.yaml[0]) if len(remedy.yaml) == 1 else None
    if not match:
        return {}
    pairs = (pair.split(": ") for pair in match[1].split(", "))
    words: dict[str, Any] = {"true": True, "false": False}
    return {
        name: int(value) if value.isdigit() else words.get(value, value) for name, value in pairs
    }


def format_remedies(groups: Iterable[tuple[str, Sequence[Remedy]]]) -> str:
    """Format a hint: numbered remedies below an optional heading per operator."""
    lines: list[str] = []
    for heading, remedies in groups:
        lines += [heading] if heading else []
        for number, remedy in enumerate(remedies, 1):
            lines.append(f"{number}. {remedy.name}: {remedy.text}")
            lines += [f"     {line}" for line in remedy.yaml]
    return "\n".join(lines)


def _implementations(operator: OnnxOperator, backend: str) -> Iterator[tuple[str, str, str]]:
    """Yield name, text and YAML of implementations in user code."""
    name, op = _file_name(operator.name), operator.qualified
    function = f'function: "plugins/ops/{name}.py:{name}"'
    if not operator.is_custom:
        yield (
            "surgery",
            "replace it by a local function of supported operators",
            f"surgery: [{{replace: {{op: {op}, {function}}}, when: after_export}}]",
        )
        return
    yield (
        "local function",
        "define it with supported operators",
        f'ops: [{{op: "{op}", {function}}}]',
    )
    kinds = describe_backend(backend).operator_kinds
    if "library" in kinds:
        library = f'library: {{sources: ["plugins/ops/{name}.c"]}}'
        yield (
            "library",
            "implement it in C or C++ for ONNX Runtime",
            f'ops: [{{op: "{op}", {library}}}]',
        )
    if "plugin" in kinds:
        plugin = f'plugin: {{python: "plugins/ops/{name}_plugin.py"}}'
        yield "plugin", "implement it for TensorRT", f'ops: [{{op: "{op}", {plugin}}}]'
    if backend == "onnxruntime":
        yield (
            "bundled plugin",
            "leave it to a plugin that TensorRT ships, and compare only the engines",
            f'ops: [{{op: "{op}", plugin: {{bundled: true}}}}]',
        )


def _as_entries(yaml: Sequence[str], declared: Collection[str]) -> tuple[str, ...]:
    """Write YAML to add; existing sections get another entry."""
    lines: list[str] = []
    for line in yaml:
        section, _, value = line.partition(": ")
        if section in declared and value.startswith("["):
            lines += [f"{section}:  # add to the existing entries", f"  - {value[1:-1]}"]
        else:
            lines.append(line)
    return tuple(lines)


def _file_name(operator: str) -> str:
    """Return a Python name for an operator: ``custom_op2`` for customOp2."""
    word = re.sub(r"\W", "_", operator.rpartition("::")[2].strip("_"))
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", word).lower() or "operator"


class ShippedPlugin(NamedTuple):
    """A ready solution for one operator, as YAML."""

    operator: str  # torch's name or the graph's
    exporter: str
    text: str
    yaml: tuple[str, ...]  # one section per line
    opset: int  # the lowest supported one
    backends: tuple[str, ...] = ()  # for an operator of the graph: the backends it helps

    @property
    def files(self) -> frozenset[str]:
        """The plugin files, relative to the project."""
        return frozenset(re.findall(r"plugins/\w+/\w+\.py", " ".join(self.yaml)))


SHIPPED = (
    ShippedPlugin(
        "aten::asinh", "torchscript", "a symbolic function that writes ONNX's own Asinh", _ASINH, 9
    ),
    ShippedPlugin(
        "torchvision::deform_conv2d",
        "torchscript",
        "DeformConv for ONNX Runtime, GridSample and a 1x1 Conv for TensorRT",
        _DEFORM_CONV,
        19,
    ),
    ShippedPlugin(
        "DeformConv",
        "torchscript",
        "torchvision's deform_conv2d as GridSample and a 1x1 Conv for TensorRT,"
        " through TorchScript",
        _DEFORM_CONV,
        19,
        ("tensorrt", "tensorrt_rtx"),
    ),
)


def shipped_files(project: Path) -> frozenset[str]:
    """List the shipped plugin files present in a project."""
    return frozenset(
        name for plugin in SHIPPED for name in plugin.files if (project / name).is_file()
    )
