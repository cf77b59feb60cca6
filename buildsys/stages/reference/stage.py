"""The reference stage: golden inputs and outputs of every shape case."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import nullcontext, suppress
from functools import partial
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from buildsys.errors import StageError
from buildsys.manifest.shape_cases import Dims, concrete_shape, format_case
from buildsys.manifest.value_ranges import VALUE_CASES
from buildsys.models.golden_inputs import golden_input
from buildsys.models.value_cases import last_rows, value_cases
from buildsys.onnx_graphs.result_types import Doubt
from buildsys.onnx_graphs.tensors import (
    Array,
    Case,
    Tensor,
    load_case,
    save_case,
    save_cases,
    save_tensors,
)
from buildsys.stages.common.golden_check import uncompared_case, uncompared_problem
from buildsys.stages.operators.implementation import implementation_of
from buildsys.stages.reference.further_cases import (
    further_cases,
    input_elements,
    is_small,
    value_dims,
)
from buildsys.stages.reference.result import GoldenCase, GoldenTensor, ReferenceResult
from buildsys.stages.reference.second_call import State, compare_second_call, read_kept_state
from buildsys.stages.reference.sizes import all_sizes, within_budget
from buildsys.workers.job import Job, StageResult

if TYPE_CHECKING:
    from onnx import ModelProto
    from torch import nn

Tensors = Mapping[str, Tensor]
Model = Callable[[Tensors, Mapping[str, int]], Tensors]  # golden inputs, dimensions -> outputs
# of all cases with other sizes: their number, also with many layers, and a budget of elements,
# and of products of elements and weights, which bound the operations
_MOST_SIZES, _MOST_LAYERS, _MOST_ELEMENTS, _MOST_PRODUCTS = 256, 8192, 1 << 20, 1 << 32
_SAMPLE_SEED = 1000  # other values than those of the cases
_MOST_ROUNDING = 2.5e-5  # relative; two implementations differ by a few times as much
_DAMAGED = (
    "save the graph again, with its weights next to it; an operator that is not registered is"
    " declared in a manifest (`ops`, docs/manifest.md)"
)

_FAR_INTEGERS = {"negative-integers", "hundreds", "wide-integers", "last-rows"}
_FAR_VALUES = _FAR_INTEGERS | {"large", "huge", "nan", "inf"}


class Original(NamedTuple):
    """The model of the manifest's source."""

    call: Model
    weights: str  # their origin
    float_type: str  # the type of most weights
    module: nn.Module | None = None  # None for an ONNX file
    unconverted: ModelProto | None = None  # an ONNX file before the conversion of its opset
    alternatives: Callable[[Tensors, Tensors], dict[str, Array]] = lambda *_: {}
    table_rows: Collection[int] = ()  # sizes of tables that are read by index
    is_rounding: Callable[[Tensors], bool] = lambda _: False  # the outputs are rounding errors
    has_own_operators: Callable[[Tensors], bool] = lambda _: False  # of another library

    def case(self, inputs: Tensors, outputs: Tensors) -> Case:
        """Make a golden case, with the right alternatives of its outputs."""
        return Case(inputs, outputs, self.float_type, self.alternatives(inputs, outputs))


def run(job: Job) -> StageResult:
    """Write one file ``case.NAME`` per shape case and comparable further case.

    Raises: StageError: the model cannot be built or called, or its outputs are not as declared.
    CheckFailed: they depend on earlier calls.
    """
    original, seed = load_original(job), job.options["source"]["seed"]
    if "weights" in job.outputs and original.module is not None:
        from buildsys.models.torch_model import from_torch  # not needed for an ONNX source

        # for a network that is defined by hand with the same weights
        state = original.module.state_dict().items()
        save_tensors(job.outputs["weights"], {name: from_torch(tensor) for name, tensor in state})
    cases: dict[str, GoldenCase] = {}
    special: dict[tuple[str, str], str] = {}  # outputs with NaN or infinite values
    warnings, nan_outputs = list[str](), list[set[str]]()
    earlier: State = {}  # what the network kept of the first call
    read = partial(read_kept_state, original.module, job.project)
    recorder = None
    if original.module is not None and "further" in job.options:
        from buildsys.models.resized_inputs import ResizeRecorder

        recorder = ResizeRecorder()
    for number, (case, dims) in enumerate(job.options["cases"].items()):
        job.progress(f"case {case}")
        job.count(number, len(job.options["cases"]), "cases")
        inputs = golden_inputs(job, dims, {"case": case, "seed": seed})
        if recorder:
            recorder.start(case)
        with recorder or nullcontext():
            outputs = original.call(inputs, dims)
        for values, text in not_finite(outputs).items():
            text += f" in case {case}: engines must have them at equal places"
            special.setdefault(values, text)
        nan_outputs.append({name for name, tensor in outputs.items() if _is_nan(tensor)})
        golden = original.case(inputs, outputs)
        if original.unconverted is not None and not cases:
            from buildsys.stages.reference.unconverted_file import compare_unconverted

            title = job.options["source"]["onnx"]
            warnings.append(compare_unconverted(original.unconverted, golden, title))
        cases[case] = _save_case(job, case, dims, golden)
        earlier = earlier or read()
    is_accepted = job.options.get("uncompared") == "warn"
    for name in () if is_accepted else set.intersection(*nan_outputs):
        raise StageError(f"output {name} is NaN everywhere in every case", _nan_hint(original))
    warnings += special.values()
    doubts: list[Doubt] = []
    if "random" not in job.options:
        job.progress("calling the network again")
        title, dims = next(iter(job.options["cases"].items()))
        first = load_case(job.outputs[f"case.{title}"])
        call = partial(original.call, first.inputs, dims)
        doubts = compare_second_call(call, read, earlier, first, title)
    if "further" in job.options:
        job.progress("choosing further cases")  # reads the network's source
    if recorder and is_small(job):
        import torch

        torch.set_num_threads(1)  # waiting for others takes longer than small operations
    for further in further_cases(job, original.module, recorder.resizes if recorder else ()):
        job.progress(f"case {further.name}")
        try:
            inputs = golden_inputs(job, further.dims, further.values)
            outputs = original.call(inputs, further.dims)
            problem = next((t for v, t in not_finite(outputs).items() if v not in special), "")
        except StageError as error:  # the original refuses what the manifest allows
            problem = error.problem
        if problem:
            case_text = format_case(further.name, further.dims)
            doubts.append(uncompared_case(further.name, case_text, problem))
        else:
            golden = original.case(inputs, outputs)
            cases[further.name] = _save_case(job, further.name, further.dims, golden)
    for name, dims, golden in special_cases(job, original, special.keys(), doubts):
        job.progress(f"case {name}")
        cases[name] = _save_case(job, name, dims, golden)
    if small := small_cases(job, original, special.keys()):
        save_cases(job.outputs["sizes"], small)
    if "samples" in job.options:
        job.progress("computing samples for low precision")
        if samples := list(_samples(job, original, special.keys())):
            save_cases(job.outputs["samples"], samples)
    figures = ReferenceResult(
        cases=cases, weights=original.weights, warnings=warnings, doubts=doubts
    )
    uncompared = [doubt for doubt in doubts if doubt["kind"] == "uncompared"]
    if problem := uncompared_problem(job, cases, uncompared):
        return StageResult("failed", problem, "narrow dims, or the data of inputs", figures)
    return StageResult(figures=figures)


def special_cases(
    job: Job, original: Original, usual: Collection[tuple[str, str]], doubts: list[Doubt]
) -> Iterator[tuple[str, Dims, Case]]:
    """Yield the cases with special values that the network answers with finite numbers.

    ``usual`` are outputs with NaN or infinite values in all cases.
    Values that are not finite, and multiples, say nothing about networks of narrow floats; nor
    does the place of NaN among others, as ArgMax returns it.
    """
    names = set(job.options.get("further", {"values": ()})["values"]).intersection(VALUE_CASES)
    if job.options["source"].get("device", "cpu") != "cpu":  # an index out of range ends CUDA
        names -= _FAR_INTEGERS
    is_narrow = original.float_type in ("float16", "bfloat16")
    if is_narrow:
        names -= {"small", "large", "huge", "nan", "inf"}
    if not names:
        return
    dims, seed = value_dims(job), job.options["source"]["seed"]

    def answer(inputs: Tensors) -> Tensors:
        try:
            outputs = original.call(inputs, dims)
        except StageError:
            return {}
        return {} if not_finite(outputs).keys() - usual else outputs

    inputs, data = golden_inputs(job, dims, {"case": "min", "seed": seed}), job.options["data"]
    if original.has_own_operators(inputs):  # which need not survive values out of range
        names -= _FAR_VALUES
    cases = value_cases(inputs, data, names)
    if "last-rows" in names and original.table_rows:
        last = last_rows(inputs, data, original.table_rows, lambda feeds: bool(answer(feeds)))
        cases = chain(cases, [("last-rows", last)] if last else ())
    for name, feeds in cases:
        outputs = answer(feeds)
        is_open = usual or any("int" in tensor.dtype for tensor in outputs.values())
        if not outputs or (is_open and name in ("nan", "inf")):
            continue
        if not is_narrow and original.is_rounding(feeds):
            case_text = format_case(name, dims)
            doubts.append(uncompared_case(name, case_text, "its outputs are mostly rounding"))
        else:
            yield name, dims, original.case(feeds, outputs)


def small_cases(job: Job, original: Original, usual: Collection[tuple[str, str]]) -> list[Case]:
    """Compute cases at all sizes of small inputs, within a fixed budget of elements and time."""
    further, module = job.options.get("further", {}), original.module
    if module is None or not further.get("sizes"):
        return []
    weights = sum(parameter.numel() for parameter in module.parameters())
    layers, seed = sum(1 for _ in module.modules()), job.options["source"]["seed"]

    def cost(dims: Dims) -> int:
        return input_elements(job, dims) * max(weights, _MOST_PRODUCTS // _MOST_ELEMENTS)

    sizes = all_sizes(further["spans"], job.options["cases"].values(), seed)
    most, cases = min(_MOST_SIZES, _MOST_LAYERS // layers), list[Case]()
    for dims in within_budget(sizes, cost, _MOST_PRODUCTS, most):
        with suppress(StageError):  # the original refuses what the manifest allows
            inputs = golden_inputs(job, dims, {"case": "min", "seed": seed})
            outputs = original.call(inputs, dims)
            if not not_finite(outputs).keys() - usual:
                cases.append(original.case(inputs, outputs))
    return cases


def _samples(job: Job, original: Original, special: Collection[tuple[str, str]]) -> Iterator[Case]:
    """Yield cases of one size and other values, as many as the data has."""
    options, seed = job.options["samples"], job.options["source"]["seed"]
    for number in range(options["calls"]):
        values = {"case": "opt", "seed": seed + _SAMPLE_SEED + number, "sample": number}
        try:
            inputs = golden_inputs(job, options["dims"], values)
            outputs = original.call(inputs, options["dims"])
        except StageError:  # the data ends, or the original refuses it
            return
        if not_finite(outputs).keys() <= set(special):
            yield original.case(inputs, outputs)


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


def _save_case(job: Job, name: str, dims: Dims, case: Case) -> GoldenCase:
    path = job.outputs[f"case.{name}"]
    save_case(path, case.inputs, case.outputs, case.float_type, case.alternatives)
    inputs, outputs = (
        {name: GoldenTensor(dtype=t.dtype, shape=list(t.shape)) for name, t in tensors.items()}
        for tensors in (case.inputs, case.outputs)
    )
    return {"dims": dict(dims), "inputs": inputs, "outputs": outputs}


def load_original(job: Job) -> Original:
    """Load the model of the manifest's source.

    Raises: StageError: it cannot be built or read.
    """
    source = job.options["source"]
    load = _onnx_model if "onnx" in source else _numpy_function if "numpy" in source else None
    original = load(job) if load else _torch_model(job)
    if original.float_type:
        return original
    types = (tensor["dtype"] for tensor in job.options["inputs"].values())  # without weights
    return original._replace(float_type=next((t for t in types if "float" in t), "float32"))


def _torch_model(job: Job) -> Original:
    import torch  # not needed for an ONNX source

    from buildsys.models.alternatives import find_alternatives
    from buildsys.models.rounded_operations import OwnOperators, is_mostly_rounding
    from buildsys.models.torch_model import (
        check_outputs,
        from_torch,
        main_float_type,
        make_network,
        table_rows,
        to_torch,
    )

    if job.threads:
        torch.set_num_threads(job.threads)
    job.progress("building the network")
    network = make_network(job.options, job.project)
    declared = job.options["outputs"]

    def call(inputs: Tensors, dims: Mapping[str, int]) -> Tensors:
        arguments = {name: to_torch(tensor) for name, tensor in inputs.items()}
        with torch.inference_mode():
            outputs = network(arguments)
        check_outputs(outputs, declared, dims)
        return {name: from_torch(tensor) for name, tensor in outputs.items()}

    def alternatives(inputs: Tensors, outputs: Tensors) -> dict[str, Array]:
        arguments = {name: to_torch(tensor) for name, tensor in inputs.items()}
        return find_alternatives(lambda: network(arguments), outputs)

    def is_rounding(inputs: Tensors) -> bool:
        arguments = {name: to_torch(tensor) for name, tensor in inputs.items()}
        with torch.inference_mode():
            return is_mostly_rounding(
                lambda: network(arguments), network(arguments), _MOST_ROUNDING
            )

    def has_own_operators(inputs: Tensors) -> bool:
        arguments = {name: to_torch(tensor) for name, tensor in inputs.items()}
        with torch.inference_mode(), OwnOperators() as operators:
            network(arguments)
        return bool(operators.names)

    module = network.module
    return Original(
        call,
        network.weights,
        main_float_type(module),
        module,
        alternatives=alternatives,
        table_rows=table_rows(module),
        is_rounding=is_rounding,
        has_own_operators=has_own_operators,
    )


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


def _is_nan(tensor: Tensor) -> bool:
    return 0 < tensor.array.size == tensor.non_finite() and bool(np.isnan(tensor.values()).all())


def _nan_hint(original: Original) -> str:
    state = dict(original.module.named_parameters()) if original.module is not None else {}
    if name := next((name for name, value in state.items() if value.isnan().any()), ""):
        return f"the weights have NaN in {name}: take others"
    return "change the input data or the weights"


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
