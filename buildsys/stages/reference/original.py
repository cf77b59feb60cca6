"""The model of a manifest's source, which all graphs and engines are compared with."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from buildsys.errors import CheckFailed, StageError
from buildsys.manifest.shape_cases import Dims, concrete_shape
from buildsys.models.golden_inputs import golden_input
from buildsys.onnx_graphs.result_types import Doubt
from buildsys.onnx_graphs.tensor_comparison import compare
from buildsys.onnx_graphs.tensors import Case, Tensor, load_case
from buildsys.stages.operators.implementation import implementation_of
from buildsys.workers.job import Job

if TYPE_CHECKING:
    import torch
    from onnx import ModelProto
    from torch import nn

    from buildsys.models.torch_model import Network


Tensors = Mapping[str, Tensor]
State = Mapping[tuple[str, str], Any]  # name, place in the source -> its content
_MOST_ROUNDING = 2.5e-5  # relative; two implementations differ by a few times as much
_DAMAGED = (
    "save the graph again, with its weights next to it; an operator that is not registered is"
    " declared in a manifest (`ops`, docs/manifest.md)"
)


class Original(NamedTuple):
    """The model of the manifest's source."""

    call: Callable[[Tensors, Dims], Tensors]  # golden inputs, dimensions -> outputs
    weights: str  # their origin
    float_type: str  # the type of most weights; int8 if it has quantizers
    network: Network | None = None  # of PyTorch
    unconverted: ModelProto | None = None  # an ONNX file before the conversion of its opset
    table_rows: Collection[int] = ()  # sizes of tables that are read by index

    @property
    def module(self) -> nn.Module | None:
        """The module of PyTorch."""
        return self.network.module if self.network is not None else None

    def kept_state(self, project: Path) -> State:
        """Read what the network keeps between calls."""
        if self.module is None:
            return {}
        from buildsys.models.kept_state import read_state

        return read_state(self.module, project)

    def clock_place(self, project: Path) -> str:
        """Find the forward that reads the time, as ``file:line``, or ""."""
        if self.module is None:
            return ""
        from buildsys.models.kept_state import clock_place

        return clock_place(self.module, project)

    def case(self, inputs: Tensors, outputs: Tensors) -> Case:
        """Make a golden case, with the right alternatives of its outputs."""
        if (network := self.network) is None:
            return Case(inputs, outputs, self.float_type)
        from buildsys.models.alternatives import find_alternatives

        alternatives = find_alternatives(lambda: network(_arguments(inputs)), outputs)
        return Case(inputs, outputs, self.float_type, alternatives)

    def is_rounding(self, inputs: Tensors) -> bool:
        """Check if outputs are mostly rounding errors."""
        if (network := self.network) is None:
            return False
        import torch

        from buildsys.models.rounded_operations import is_mostly_rounding

        with torch.inference_mode():
            outputs = network(_arguments(inputs))
            return is_mostly_rounding(lambda: network(_arguments(inputs)), outputs, _MOST_ROUNDING)

    def has_own_operators(self, inputs: Tensors) -> bool:
        """Check for operators of other libraries than PyTorch."""
        if self.network is None:
            return False
        import torch

        from buildsys.models.rounded_operations import OwnOperators

        operators = OwnOperators()
        with torch.inference_mode(), operators:
            self.network(_arguments(inputs))
        return operators.is_used


def load_original(job: Job) -> Original:
    """Load the model of the manifest's source. Raises: StageError: it cannot be built or read."""
    source = job.options["source"]
    load = _onnx_model if "onnx" in source else _numpy_function if "numpy" in source else None
    original = load(job) if load else _torch_model(job)
    if original.float_type:
        return original
    types = (tensor["dtype"] for tensor in job.options["inputs"].values())  # without weights
    return original._replace(float_type=next((t for t in types if "float" in t), "float32"))


def golden_inputs(job: Job, dims: Dims, values: Mapping[str, Any]) -> dict[str, Tensor]:
    """Make all golden inputs; ``values`` are further arguments of ``golden_input``."""
    return {
        name: golden_input(
            name,
            concrete_shape(signature["shape"], dims),
            signature["dtype"],
            job.options["data"][name],
            project=job.project,
            **values,
        )
        for name, signature in job.options["inputs"].items()
    }


def not_finite(outputs: Tensors) -> dict[tuple[str, str], str]:
    """Describe NaN and infinite values by output and kind."""
    texts = {}
    for name, tensor in outputs.items():
        if tensor.non_finite():
            values = tensor.values()
            for kind, places in (("NaN", np.isnan(values)), ("infinite", np.isinf(values))):
                if count := int(places.sum()):
                    texts[name, kind] = f"output {name} has {count} of {values.size} values {kind}"
    return texts


def _torch_model(job: Job) -> Original:
    import torch  # not needed for an ONNX source

    from buildsys.models.torch_model import (
        check_outputs,
        from_torch,
        main_float_type,
        make_network,
        table_rows,
    )

    if job.threads:
        torch.set_num_threads(job.threads)
    job.progress("building the network")
    network = make_network(job.options, job.project)
    module, declared = network.module, job.options["outputs"]

    def call(inputs: Tensors, dims: Dims) -> Tensors:
        with torch.inference_mode():
            outputs = network(_arguments(inputs))
        check_outputs(outputs, declared, dims)
        return {name: from_torch(tensor) for name, tensor in outputs.items()}

    return Original(
        call, network.weights, main_float_type(module), network, table_rows=table_rows(module)
    )


def _arguments(inputs: Tensors) -> dict[str, torch.Tensor]:
    from buildsys.models.torch_model import to_torch

    return {name: to_torch(tensor) for name, tensor in inputs.items()}


def _numpy_function(job: Job) -> Original:
    from buildsys.models.numpy_function import NumpyFunction

    source = job.options["source"]
    function = NumpyFunction(source, job.options["outputs"], job.project)
    return Original(function, f"of {source['numpy']}", "")


def _onnx_model(job: Job) -> Original:
    from buildsys.backends.onnxruntime.file_versions import (
        fit_versions,
        readable_versions,
        versions_of,
    )
    from buildsys.backends.onnxruntime.session import OrtGraph
    from buildsys.models.sources.onnx import is_callable, load_onnx
    from buildsys.onnx_graphs.onnx_file import gathered_rows, load_model, save_model
    from buildsys.onnx_graphs.tensor_types import emulate, float_types, main_float_type
    from buildsys.stages.operators.local_functions import add_functions

    source = job.options["source"]
    name = source["onnx"]
    implementation, file = implementation_of(job), job.project / name
    unconverted = None
    with TemporaryDirectory(dir=job.outputs["result"].parent) as folder:
        header = load_onnx(source, job.project, external_data=False)
        fits = readable_versions(header) == versions_of(header)
        is_bfloat16 = "bfloat16" in float_types(header)  # ONNX Runtime has few kernels for it
        has_operators = "operators" in job.options or "graph_functions" in job.inputs
        if not fits or is_bfloat16 or has_operators or is_callable(source):
            whole = header if is_callable(source) else load_onnx(source, job.project)
            model, _ = fit_versions(whole, name)
            if versions_of(model).opset != versions_of(header).opset:
                unconverted = whole
            if "graph_functions" in job.inputs:
                add_functions(model, load_model(job.inputs["graph_functions"]))
            implementation.apply(model)
            file = Path(folder) / "model.onnx"
            save_model(emulate(model, "bf16") if is_bfloat16 else model, file)
        if not header.graph.output:
            raise StageError(f"{name} has no outputs", "export it again, with its outputs")
        try:
            graph = OrtGraph(file, libraries=implementation.libraries, title=name)
        except StageError as error:
            error.hint = error.hint or _DAMAGED
            raise
    return Original(
        lambda inputs, _dims: graph.run(inputs),
        f"from {name}",
        main_float_type(header),
        unconverted=unconverted,
        table_rows=gathered_rows(header),
    )


_SAME = {"float16": 1e-2, "bfloat16": 5e-2}  # relative; both calls may round differently
_SAME_FLOAT32 = 1e-5
_MOST_NAMES = 4
_DRAWS = ("random", "numpy.random", "torch.random")
_HINT = (
    "pass what forward keeps as an input and return it as an output, and call eval() on all layers"
)
_DRAWS_HINT = "call eval() on all layers, and leave noise out or make it an input"


def compare_second_call(job: Job, original: Original, earlier: State) -> list[Doubt]:
    """Call a network again on its first inputs; return doubts about what it keeps.

    ``earlier`` is its state after the first call. A changed state is compared around a third call:
    the calls before may have filled caches for their sizes.
    Raises: CheckFailed: its outputs differ.
    """
    title, dims = next(iter(job.options["cases"].items()))
    first = load_case(job.outputs[f"case.{title}"])
    second, before = original.call(first.inputs, dims), original.kept_state(job.project)
    if changed := _changed(earlier, before):
        original.call(first.inputs, dims)
        changed = _changed(before, original.kept_state(job.project))
    limits = {"rtol": _SAME.get(first.float_type, _SAME_FLOAT32)}
    for output, tensor in first.outputs.items():
        if not compare(second[output], tensor, limits).passed:
            changed = changed or _changed(earlier, before)
            differs = f"output {output} differs in a second call on the inputs of case {title}"
            if draws := [name for name, _ in changed if name in _DRAWS]:
                problem = f"forward draws random numbers ({', '.join(draws)}): {differs}"
                raise CheckFailed(problem, _DRAWS_HINT)
            cause = f"it changes {_describe(changed)}" if changed else "it may read the time"
            raise CheckFailed(f"forward depends on earlier calls: {differs}; {cause}", _HINT)
    changed = [key for key in changed if key[0] != "torch.random"]  # which graphs draw as well
    doubts = []
    if changed:
        text = f"forward changes {_describe(changed)}, which an exported graph does not"
        doubts.append(Doubt(kind="state", text=text, place=_place(changed)))
    if place := original.clock_place(job.project):
        text = f"forward reads the time ({place}), which is a constant of an exported graph"
        doubts.append(Doubt(kind="state", text=text, place=place))
    return doubts


def _changed(before: State, after: State) -> list[tuple[str, str]]:
    return [key for key in after if key not in before or before[key] != after[key]]


def _describe(changed: Sequence[tuple[str, str]]) -> str:
    names = ", ".join(name for name, _ in changed[:_MOST_NAMES])
    more = f" and {len(changed) - _MOST_NAMES} more" if len(changed) > _MOST_NAMES else ""
    return names + more + (f" ({place})" if (place := _place(changed)) else "")


def _place(changed: Sequence[tuple[str, str]]) -> str:
    return next((place for _, place in changed if place), "")
