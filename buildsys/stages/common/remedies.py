"""Remedies for operators without a translation or an implementation.

They are code that the user can write. What only changes the manifest is not described but tried,
see `StageError.changes`.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from buildsys.backends.interface import BuildRequest, GraphRefusedError, UnsupportedNode
from buildsys.errors import StageError
from buildsys.manifest.exports import OTHER_EXPORTS
from buildsys.onnx_graphs.source_origins import origin_of, read_origins
from buildsys.system.backend_registry import describe_backend
from buildsys.workers.job import Job

_ONNX_DOMAINS = ("", "ai.onnx", "ai.onnx.ml")


@dataclass(frozen=True)
class Remedy:
    """One thing to try, with the YAML to add to the manifest."""

    name: str  # such as opset, exporter, registration, local function or plugin
    text: str
    yaml: tuple[str, ...] = ()


class OnnxOperator(NamedTuple):
    """Facts on an operator rejected by a backend."""

    domain: str
    name: str

    @property
    def is_custom(self) -> bool:
        """Check for a domain outside ONNX."""
        return self.domain not in _ONNX_DOMAINS

    @property
    def qualified(self) -> str:
        """The name used in manifests: ``Gelu``, ``custom_domain::customOp2``."""
        return f"{self.domain}::{self.name}" if self.is_custom else self.name


def registration_remedies(operator: str, exporter: str, opset: int) -> list[Remedy]:
    """List remedies in code for a torch operator without a translation."""
    remedies = []
    if operator.startswith("quantized::"):
        text = "return the network before its quantization; engines of precision int8 quantize it"
        remedies.append(Remedy("float network", text))
    name = _file_name(operator)
    entry = f'op: "{operator}", function: "plugins/symbolics/{name}.py:{name}"'
    if exporter == "torchscript":
        yaml = f"symbolics: [{{{entry}, opset: {opset}}}]"
        text = f"write a symbolic function for opset {opset} and later and register it"
    else:
        yaml = f"translations: [{{{entry}}}]"
        text = "write an onnxscript function and register it"
    return [*remedies, Remedy("registration", text, (yaml,))]


_QUANTIZERS = Remedy(
    "quantizers",
    "quantize the network with pairs of QuantizeLinear and DequantizeLinear, zero points of 0 and"
    " biases in float32, as quantize_static of ONNX Runtime does with QuantFormat.QDQ, int8 and"
    " extra_options={'ActivationSymmetric': True, 'QuantizeBias': False}",
)


def refusal_remedies(operator: OnnxOperator, backend: str) -> list[Remedy]:
    """List remedies for an operator of the graph rejected by ``backend``."""
    name, op = _file_name(operator.name), operator.qualified
    if operator.name.startswith(("QLinear", "QGemm", "QuantizeLinear", "DequantizeLinear")):
        return [_QUANTIZERS]
    function = f'function: "plugins/ops/{name}.py:{name}"'
    if not operator.is_custom:
        text = "replace it by supported operators in a hook"
        yaml = f'surgery: [{{function: "plugins/hooks/{name}.py:replace_{name}"}}]'
        return [Remedy("surgery", text, (yaml,))]
    choices = [("local function", "define it with supported operators", function)]
    kinds = describe_backend(backend).operator_kinds
    if "library" in kinds:
        library = f'library: {{sources: ["plugins/ops/{name}.c"]}}'
        choices.append(("library", "implement it in C or C++ for ONNX Runtime", library))
    if "plugin" in kinds:
        plugin = f'plugin: {{python: "plugins/ops/{name}_plugin.py"}}'
        choices.append(("plugin", "implement it for TensorRT", plugin))
    if backend == "onnxruntime":
        text = "leave it to a plugin that TensorRT ships, and compare only the engines"
        choices.append(("bundled plugin", text, "plugin: {bundled: true}"))
    return [
        Remedy(kind, text, (f'ops: [{{op: "{op}", {fields}}}]',)) for kind, text, fields in choices
    ]


def function_remedies(name: str, parameters: Sequence[str] = ("x",)) -> list[Remedy]:
    """List remedies for an autograd function without a symbolic."""
    names, first = ", ".join(parameters), parameters[0]
    node = f'return g.op("custom_domain::{name}", {names}).setType({first}.type())'
    lines = ("@staticmethod", f"def symbolic(g, {names}):", f"    {node}")
    text = f"give {name} a static method that writes ONNX nodes, its own ones with an entry in ops"
    return [Remedy("symbolic", text, lines)]


def format_remedies(groups: Iterable[tuple[str, Sequence[Remedy]]]) -> str:
    """Format a hint: numbered remedies below an optional heading per operator."""
    lines: list[str] = []
    for heading, remedies in groups:
        lines += [heading] if heading else []
        for number, remedy in enumerate(remedies, 1):
            untried = " (not tried)" if remedy.yaml else ""
            lines.append(f"{number}. {remedy.name}: {remedy.text}{untried}")
            lines += [f"     {line}" for line in remedy.yaml]
    return "\n".join(lines)


def _file_name(operator: str) -> str:
    """Return a Python name for an operator: ``custom_op2`` for customOp2."""
    word = re.sub(r"\W", "_", operator.rpartition("::")[2].strip("_"))
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", word).lower() or "operator"


def explain_refusal(refusal: GraphRefusedError, request: BuildRequest, job: Job) -> StageError:
    """Explain the refusal with the source line and remedies of each operator.

    Reads the graph again, at no cost to a successful build. Without onnx the refusal is unchanged.
    """
    origins = read_origins(job.advisory.get("origins"))
    if "program" in job.inputs:
        lines = {n.operator: origins[n.name] for n in refusal.nodes if n.name in origins}
        places = [f"{operator} is called at {line}" for operator, line in lines.items()]
        remedy = "call other operators in forward, or build this engine with another backend"
        return StageError(refusal.problem, "; ".join([*places, remedy]))
    try:
        # an interpreter that builds engines need not have onnx
        from buildsys.onnx_graphs.onnx_file import all_nodes, load_model

        model = load_model(request.onnx, external_data=False)
    except (ImportError, StageError):
        return StageError(refusal.problem, refusal.hint, OTHER_EXPORTS)
    main = list(all_nodes(model.graph))
    nodes = [*main, *(node for function in model.functions for node in function.node)]
    producers = {name: node for node in main for name in node.output if name}
    groups = []
    for name, count in Counter(node.operator for node in refusal.nodes).items():
        first = next(node for node in refusal.nodes if node.operator == name)
        node, caller = (
            _find(nodes, first, kind) for kind in (name, next(iter(first.functions), name))
        )
        domain = "" if node is None or node.domain == "ai.onnx" else str(node.domain)
        operator = OnnxOperator(domain, name)
        heading = f"{operator.qualified}: {count} node{'s' * (count > 1)}"
        if caller is not None and (origin := origin_of(caller, producers, origins)):
            heading += f",{' the first' * (count > 1)} from {origin}"
        groups.append((heading, refusal_remedies(operator, request.options["backend"])))
    return StageError(refusal.problem, format_remedies(groups), OTHER_EXPORTS)


def _find(nodes: Sequence[Any], refused: UnsupportedNode, op_type: str) -> Any:
    """Find a refused node by its output or name, otherwise the first of its type."""
    same = [node for node in nodes if node.op_type == op_type]
    names = {refused.output, refused.name} - {""}
    exact = (node for node in same if names.intersection((node.name, *node.output)))
    return next(exact, same[0] if same else None)
