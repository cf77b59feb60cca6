"""Both exporters of torch.onnx.export, TorchScript (by tracing) and dynamo, and their failures.

An exporter stops at the first operator without a translation and names only that one. The program
it was translating is still in the frames of its exception, so all of them are listed.
"""

import inspect
import io
import re
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from pydoc import locate
from types import FrameType
from typing import Any, NamedTuple

import onnx
import torch

from buildsys.backends.operator_support import operator_schemas, operator_versions
from buildsys.errors import BuildsysError, StageError
from buildsys.manifest.exports import (
    NEWEST_TORCHSCRIPT_OPSET,
    OLDEST_DYNAMO_OPSET,
    OTHER_EXPORTS,
    export_change,
)
from buildsys.models.program_nodes import captured_nodes
from buildsys.models.user_code import (
    describe_exception,
    import_hint,
    innermost_location,
    source_line,
)
from buildsys.onnx_graphs.onnx_file import INLINE_LIMIT, ONE_MESSAGE_LIMIT, first_line, load_model
from buildsys.onnx_graphs.opset_changes import lower_opset
from buildsys.onnx_graphs.tensor_names import rename_tensors
from buildsys.stages.common.remedies import (
    format_remedies,
    function_remedies,
    registration_remedies,
)
from buildsys.stages.export.request import ExportRequest, check_guards, recorded_guards

_TORCHSCRIPT_OPTIONS = (
    "export_params", "keep_initializers_as_inputs", "do_constant_folding", "custom_opsets",
    "autograd_inlining",
)  # fmt: skip
_DYNAMO_OPTIONS = (
    "export_params", "keep_initializers_as_inputs", "optimize", "verify", "report", "profile",
    "dump_exported_program",
)  # fmt: skip
_TIME_STAMP = re.compile(r"_\d{4}-\d{2}-\d{2}_\d{2}-\d{2}-\d{2}-\d+")
_OLDEST_LOWERED = 13  # below, Softmax means something else
_STRIPS_DOC_STRINGS = 5  # position among the arguments of torch._C.Graph._export_onnx
_TRAINING_MODES = {"eval": "EVAL", "preserve": "PRESERVE", "train": "TRAINING"}
_FUNCTIONS = "export_modules_as_functions"
_UNSUPPORTED = re.compile(
    r"operator '(?P<op>[^']+)' to ONNX opset version \d+ is not supported"
    r"|unrecognized namespace (?P<foreign>\w+::\w+)"
    r"|No ONNX function found for <OpOverload\(op='(?P<captured>[^']+)'"
)
_DECIDES_BY_VALUE = re.compile(
    r"[Dd]ata-dependent|[Dd]ynamic control flow|GuardOnDataDependentSymNode"
)
_FIXED_SIZE = re.compile(r"inferred a static shape|Constraints violated|your code specialized")
_NOT_IN_OPSET = re.compile(
    r"No Op registered for (?P<op>\w+) with domain_version of (?P<opset>\d+)"
)


def export(request: ExportRequest) -> onnx.ModelProto:
    """Export by the manifest's exporter.

    Raises: StageError: the exporter or a registered function fails. CheckFailed: the program of
    dynamo is wrong at sizes within ``dims``.
    """
    exporter = request.options["exporter"]
    try:
        model = (_export_dynamo if exporter == "dynamo" else _export_torchscript)(request)
    except Exception as error:  # exporters raise any class
        cause: BaseException | None = error
        while cause is not None:  # an error of a registered function, wrapped by the exporter
            if isinstance(cause, BuildsysError):
                raise cause from cause.__cause__
            cause = cause.__cause__
        traceback.print_exception(error)  # to the log: the message has its last line only
        raise _export_failure(error, exporter, request.options["opset"], request.project) from error
    # by position: an output computed by a local function loses its name
    written = [value.name for value in model.graph.output]
    outputs = dict(zip(written, request.output_names, strict=False))
    rename_tensors(model, {**_neutral("input", request.input_names), **outputs})
    return model


def _neutral(kind: str, names: Sequence[str]) -> dict[str, str]:
    """Map names without a meaning to names.

    Exporters give inner tensors names such as ``linear``, and dynamo takes an input for a
    parameter of the same name.
    """
    return {f"graph {kind} {number}": name for number, name in enumerate(names)}


def _export_torchscript(request: ExportRequest) -> onnx.ModelProto:
    """Export by tracing."""
    if request.weight_bytes < ONE_MESSAGE_LIMIT:
        stream = io.BytesIO()
        _trace(request, stream)
        model = onnx.load_model_from_string(stream.getvalue())
    else:  # above 2 GB the exporter writes one file per tensor next to the model
        with tempfile.TemporaryDirectory(dir=request.path.parent) as folder:
            file = Path(folder) / request.path.name
            _trace(request, str(file))
            model = load_model(file)
    return model


def _trace(request: ExportRequest, file: str | io.BytesIO) -> None:
    inputs = _neutral("input", request.input_names)
    outputs = _neutral("output", request.output_names)
    dynamic = {
        neutral: dict(axes)
        for names, dims in ((inputs, request.dynamic_inputs), (outputs, request.dynamic_outputs))
        for neutral, name in names.items()
        if (axes := dims.get(name))
    }
    options = request.set_options("training", "operator_export_type", _FUNCTIONS)
    if "training" in options:
        options["training"] = getattr(torch.onnx.TrainingMode, _TRAINING_MODES[options["training"]])
    if "operator_export_type" in options:
        name = options["operator_export_type"].upper()
        options["operator_export_type"] = getattr(torch.onnx.OperatorExportTypes, name)
    if isinstance(options.get(_FUNCTIONS), list | tuple):
        options[_FUNCTIONS] = set(map(_module_class, options[_FUNCTIONS]))
    with _graph_checked(request):
        torch.onnx.export(
            request.module,
            request.arguments,
            file,  # type: ignore[arg-type]  # this exporter also takes a stream
            dynamo=False,
            opset_version=request.options["opset"],
            input_names=list(inputs),
            output_names=list(outputs),
            dynamic_axes=dynamic,
            verbose=bool(request.options["verbose"]),
            **options,
            **request.set_options(*_TORCHSCRIPT_OPTIONS),
        )


@contextmanager
def _graph_checked(request: ExportRequest) -> Iterator[None]:
    """Keep the doc strings of nodes, which hold their origins; refuse autograd functions."""
    kind: Any = torch._C.Graph
    original = kind._export_onnx

    def export_onnx(graph: Any, *arguments: Any) -> Any:
        for node in _all_nodes(graph):
            if node.kind() == "prim::PythonOp":
                raise _function_failure(node, request)
        changed = list(arguments)
        changed[_STRIPS_DOC_STRINGS : _STRIPS_DOC_STRINGS + 1] = [False]
        return original(graph, *changed)

    kind._export_onnx = export_onnx
    try:
        yield
    finally:
        kind._export_onnx = original


def _function_failure(node: Any, request: ExportRequest) -> StageError:
    """Explain an autograd function that is neither inlined nor has a symbolic."""
    name, call = node.pyname(), source_line(str(node.sourceRange()), request.project)
    kinds, place, parameters = _subclasses(torch.autograd.Function), "", ["x"]
    if kind := next((kind for kind in kinds if kind.__name__ == name), None):
        line = inspect.getsourcefile(kind) or "", inspect.getsourcelines(kind)[1]
        place = f" ({innermost_location([line], request.project)})"
        parameters = [p for p in inspect.signature(kind.forward).parameters if p != "ctx"]
    problem = f"the torchscript exporter cannot translate the autograd function {name}{place}"
    problem += f", called at {call}" if call else ""
    usual = {"autograd_inlining": "true", "operator_export_type": "onnx"}
    changed = {field: usual[field] for field in request.set_options(*usual)}
    changes = [export_change(**changed)] if changed else []
    hint = format_remedies([("", function_remedies(name, parameters))])
    return StageError(problem, hint, (*changes, *OTHER_EXPORTS))


def _subclasses(kind: Any) -> Iterator[Any]:
    for subclass in kind.__subclasses__():
        yield subclass
        yield from _subclasses(subclass)


def _module_class(path: str) -> type[torch.nn.Module]:
    target = locate(path)
    if isinstance(target, type) and issubclass(target, torch.nn.Module):
        return target
    raise StageError(
        f"export.{_FUNCTIONS}: {path} is not a subclass of torch.nn.Module",
        "write the path of a class, such as torch.nn.ReLU",
    )


def _export_dynamo(request: ExportRequest) -> onnx.ModelProto:
    """Export by torch.export.

    The exporter's reports are moved to the model's folder.
    Raises: CheckFailed: the program is wrong at sizes within ``dims``. StageError: an operator is
    newer than the opset.
    """
    opset = request.options["opset"]
    is_lowered = _OLDEST_LOWERED <= opset < OLDEST_DYNAMO_OPSET
    with tempfile.TemporaryDirectory(dir=request.path.parent) as folder:
        file = Path(folder) / request.path.name
        with recorded_guards() as guards:
            exported = torch.onnx.export(
                request.module,
                request.arguments,
                str(file),
                dynamo=True,
                opset_version=OLDEST_DYNAMO_OPSET if is_lowered else opset,
                input_names=list(_neutral("input", request.input_names)),
                output_names=list(_neutral("output", request.output_names)),
                dynamic_shapes=request.dynamic_shapes(str),
                external_data=request.weight_bytes >= INLINE_LIMIT,  # this file is temporary
                verbose=bool(request.options["verbose"]),
                artifacts_dir=folder,
                custom_translation_table=dict(request.translations) or None,
                **request.set_options(*_DYNAMO_OPTIONS),
            )
        if exported is not None and exported.exported_program is not None:
            check_guards(exported.exported_program, guards, request)
        for report in Path(folder).glob("onnx_export_*"):
            report.rename(request.path.parent / _TIME_STAMP.sub("", report.name))
        model = load_model(file)
    if is_lowered:
        traced = export_change(exporter="torchscript", opset=opset)
        lower_opset(model, opset, model.ir_version, (OTHER_EXPORTS[0], traced, *OTHER_EXPORTS[1:]))
    return model


class _Call(NamedTuple):
    """The first call of an operator; schema and line are "" if unknown."""

    overload: str  # aten::add.Tensor, as in dynamo's registry
    schema: str = ""
    line: str = ""

    @property
    def operator(self) -> str:
        """The operator without its overload, as symbolic functions are registered."""
        return self.overload.partition(".")[0]


def _export_failure(error: Exception, exporter: str, opset: int, project: Path) -> StageError:
    """Turn an exception of torch.onnx.export into a readable error."""
    causes: list[BaseException] = [error]
    while (inner := causes[-1].__cause__) is not None:
        causes.append(inner)
    frames = [frame for cause in causes for frame, _ in traceback.walk_tb(cause.__traceback__)]
    nodes = (frame.f_locals.get("node") for frame in reversed(frames))
    failing = next((n for n in nodes if isinstance(n, torch._C.Node | torch.fx.Node)), None)
    call = _describe_call(failing, project) if failing is not None else None
    for cause in causes:
        if match := _UNSUPPORTED.search(str(cause)):
            calls = [*_untranslated_calls(frames, project), *([call] if call else [])]
            calls = calls or [_Call(next(filter(None, match.groups())))]
            first_calls: dict[str, _Call] = {}
            for untranslated in calls:
                first_calls.setdefault(untranslated.overload, untranslated)
            return _untranslated_failure([*first_calls.values()], exporter, opset)
        if isinstance(cause, ModuleNotFoundError) and cause.name:
            problem = f"the {exporter} exporter needs the package {cause.name}"
            return StageError(problem, import_hint(cause, project))
    problem = f"the {exporter} exporter failed at opset {opset}: "
    # what follows is a dump of the traced graph
    problem += describe_exception(causes[-1], project).partition(" [Caused by ")[0].rstrip()
    if call and call.line and call.line not in problem:
        problem += f", on a node of {call.line}"
    changes: Sequence[str] = OTHER_EXPORTS
    hint = "the log has the complete message"
    if _DECIDES_BY_VALUE.search(f"{error}\n{causes[-1]}"):
        hint = (
            "forward decides by the values of a tensor: use torch.where or torch.cond; tracing with"
            " torchscript would keep only the branch of the example"
        )
        changes = ()
    elif _FIXED_SIZE.search(str(causes[-1])):  # tracing would fix it silently
        hint = (
            "forward fixes that size, such as by a Python loop over it or int(): make it a number"
            f" in inputs, or change the code; {hint}"
        )
    return StageError(problem, hint, changes)


def checker_failure(error: Exception, exporter: str) -> StageError:
    """Turn a rejection by onnx.checker into a readable error."""
    match, is_given = _NOT_IN_OPSET.search(str(error)), exporter == "none"
    file = "the file" if is_given else f"the file of {exporter}"
    if not match:
        problem = f"onnx.checker rejects {file}: {first_line(error)}"
        hint = "correct the functions of ops if it names one"
        if is_given:
            return StageError(problem, f"{hint}, or repair the file")
        return StageError(problem, hint, OTHER_EXPORTS)
    operator, opset = match["op"], int(match["opset"])
    problem = f"opset {opset} does not have the operator {operator} used in {file}"
    versions = operator_versions().get(("", operator), ())
    first = min((version for version in versions if version > opset), default=None)
    if is_given:
        return StageError(problem, f"save it with opset {first} or higher" if first else "")
    needs_dynamo = (first or 0) > NEWEST_TORCHSCRIPT_OPSET
    least = export_change(exporter="dynamo" if needs_dynamo else exporter, opset=first)
    return StageError(problem, "", (*([least] if first else []), *OTHER_EXPORTS))


def _untranslated_failure(calls: Sequence[_Call], exporter: str, opset: int) -> StageError:
    places = [call.operator + (f" ({call.line})" if call.line else "") for call in calls]
    what = f"{len(calls)} operators to opset {opset}: {', '.join(places)}"
    if len(calls) == 1:
        name, _, place = places[0].partition(" ")
        what = f"the operator {name} to opset {opset} {place}".rstrip()
    groups = [
        (call.schema, registration_remedies(call.operator, exporter, opset)) for call in calls
    ]
    problem = f"the {exporter} exporter cannot translate {what}"
    return StageError(problem, format_remedies(groups), OTHER_EXPORTS)


def _untranslated_calls(frames: Sequence[FrameType], project: Path) -> Iterator[_Call]:
    """Find the nodes of the program that the exporter has no translation for."""
    from torch.onnx._internal.torchscript_exporter._globals import GLOBALS
    from torch.onnx._internal.torchscript_exporter.registration import registry as symbolics

    for frame in frames:
        graph, program = frame.f_locals.get("graph"), frame.f_locals.get("exported_program")
        registry: Any = frame.f_locals.get("registry")
        if frame.f_code.co_name == "_optimize_graph" and isinstance(graph, torch._C.Graph):
            for node in _all_nodes(graph):
                group = symbolics.get_function_group(node.kind().removesuffix("_"))
                is_operator = not node.kind().startswith(("prim::", "onnx::"))
                opset = GLOBALS.export_onnx_opset_version
                if is_operator and (group is None or group.get(opset) is None):
                    yield _describe_call(node, project)
        elif program is not None and hasattr(registry, "get_decomps"):
            for node in captured_nodes(program):
                is_operator = isinstance(node.target, torch._ops.OpOverload)
                if is_operator and not registry.get_decomps(node.target):
                    yield _describe_call(node, project)


def _all_nodes(block: Any) -> Iterator[Any]:
    for node in block.nodes():
        yield node
        for inner in node.blocks():
            yield from _all_nodes(inner)


def _describe_call(node: Any, project: Path) -> _Call:
    """Describe a node of a captured or traced program."""
    if isinstance(node, torch.fx.Node):
        schema, trace = str(getattr(node.target, "_schema", "")), node.stack_trace or ""
        name = str(node.target)
    else:
        schema, trace, name = node.schema(), str(node.sourceRange()), node.kind()
        if schema == "(no schema)":
            schema = next(iter(operator_schemas(name)), "")
    return _Call(schema.partition("(")[0] or name, schema, source_line(trace, project))
