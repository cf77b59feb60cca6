"""The reference stage: golden inputs and outputs of every shape case."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from buildsys.errors import StageError
from buildsys.manifest.shape_cases import Dims, format_case
from buildsys.onnx_graphs.result_types import Doubt
from buildsys.onnx_graphs.tensors import Case, Tensor, save_case, save_cases, save_tensors
from buildsys.stages.common.golden_check import uncompared_case, uncompared_problem
from buildsys.stages.reference.further_cases import (
    further_cases,
    is_small,
    samples,
    small_cases,
    special_cases,
)
from buildsys.stages.reference.golden_files import cases_of_files
from buildsys.stages.reference.original import (
    Original,
    State,
    compare_second_call,
    golden_inputs,
    load_original,
    not_finite,
)
from buildsys.stages.reference.result import GoldenCase, GoldenTensor, ReferenceResult
from buildsys.workers.job import Job, StageResult

if TYPE_CHECKING:
    from buildsys.models.resized_inputs import Resize


class _ShapeCases(NamedTuple):
    """What the calls of all shape cases say about the network."""

    cases: dict[str, GoldenCase]
    special: Mapping[tuple[str, str], str]  # outputs with NaN or infinite values, described
    warnings: list[str]
    state: State  # what the network kept of the first call
    resizes: list[Resize]


def run(job: Job) -> StageResult:
    """Write one file ``case.NAME`` per shape case and comparable further case.

    Raises: StageError: the model cannot be built or called, or its outputs are not as declared.
    CheckFailed: they depend on earlier calls.
    """
    original = load_original(job)
    if "weights" in job.outputs and original.module is not None:
        from buildsys.models.torch_model import from_torch  # not needed for an ONNX source

        # for a network that is defined by hand with the same weights
        state = original.module.state_dict().items()
        save_tensors(job.outputs["weights"], {name: from_torch(tensor) for name, tensor in state})
    cases, special, warnings, kept, resizes = _write_shape_cases(job, original)
    doubts = list(_missing_weights(original))
    if "random" not in job.options:
        job.progress("calling the network again")
        doubts += compare_second_call(job, original, kept)
    usual = special.keys()
    if "further" in job.options:
        for name, dims, case in cases_of_files(job, original):
            cases[name] = _save_case(job, name, dims, case)
        for name, dims, case in _further_cases(job, original, resizes, usual, doubts):
            job.progress(f"case {name}")
            cases[name] = _save_case(job, name, dims, case)
        if small := small_cases(job, original, usual):
            save_cases(job.outputs["sizes"], small)
    if "samples" in job.options:
        job.progress("computing samples for low precision")
        if drawn := list(samples(job, original, usual)):
            save_cases(job.outputs["samples"], drawn)
    warnings += special.values()
    figures = ReferenceResult(
        cases=cases, weights=original.weights, warnings=warnings, doubts=doubts
    )
    uncompared = [doubt for doubt in doubts if doubt["kind"] == "uncompared"]
    if problem := uncompared_problem(job, cases, uncompared):
        return StageResult("failed", problem, "narrow dims, or the data of inputs", figures)
    return StageResult(figures=figures)


def _write_shape_cases(job: Job, original: Original) -> _ShapeCases:
    recorder = None
    if original.module is not None and "further" in job.options:
        from buildsys.models.resized_inputs import ResizeRecorder

        recorder = ResizeRecorder()
    cases: dict[str, GoldenCase] = {}
    special: dict[tuple[str, str], str] = {}
    warnings, nan_outputs = list[str](), list[set[str]]()
    state: State = {}
    planned, seed = job.options["cases"], job.options["source"]["seed"]
    for number, (name, dims) in enumerate(planned.items()):
        job.progress(f"case {name}")
        job.count(number, len(planned), "cases")
        inputs = golden_inputs(job, dims, {"case": name, "seed": seed})
        with recorder.start(name) if recorder else nullcontext():
            outputs = original.call(inputs, dims)
        for values, text in not_finite(outputs).items():
            text += f" in case {name}: engines must have them at equal places"
            special.setdefault(values, text)
        nan_outputs.append({name for name, tensor in outputs.items() if _is_nan(tensor)})
        case = original.case(inputs, outputs)
        if original.unconverted is not None and not cases:
            from buildsys.stages.reference.unconverted_file import compare_unconverted

            title = job.options["source"]["onnx"]
            warnings.append(compare_unconverted(original.unconverted, case, title))
        cases[name] = _save_case(job, name, dims, case)
        state = state or original.kept_state(job.project)
    is_accepted = job.options.get("uncompared") == "warn"
    for name in () if is_accepted else set.intersection(*nan_outputs):
        raise StageError(f"output {name} is NaN everywhere in every case", _nan_hint(original))
    return _ShapeCases(cases, special, warnings, state, recorder.resizes if recorder else [])


def _further_cases(
    job: Job,
    original: Original,
    resizes: list[Resize],
    usual: Collection[tuple[str, str]],
    doubts: list[Doubt],
) -> Iterator[tuple[str, Dims, Case]]:
    """Yield cases of other sizes, seeds and values; add those that cannot be to ``doubts``."""
    if original.module is not None and is_small(job):
        import torch

        torch.set_num_threads(1)  # waiting for others takes longer than small operations
    job.progress("choosing further cases")  # reads the network's source
    for name, dims, values in further_cases(job, original, resizes):
        try:
            inputs = golden_inputs(job, dims, values)
            outputs = original.call(inputs, dims)
            problem = next((t for v, t in not_finite(outputs).items() if v not in usual), "")
        except StageError as error:  # the original refuses what the manifest allows
            problem = error.problem
        if problem:
            doubts.append(uncompared_case(name, format_case(name, dims), problem))
        else:
            yield name, dims, original.case(inputs, outputs)
    yield from special_cases(job, original, usual, doubts)


def _save_case(job: Job, name: str, dims: Dims, case: Case) -> GoldenCase:
    path = job.outputs[f"case.{name}"]
    save_case(path, case.inputs, case.outputs, case.float_type, case.alternatives)
    inputs, outputs = (
        {name: GoldenTensor(dtype=t.dtype, shape=list(t.shape)) for name, t in tensors.items()}
        for tensors in (case.inputs, case.outputs)
    )
    return {"dims": dict(dims), "inputs": inputs, "outputs": outputs}


def _missing_weights(original: Original) -> Iterator[Doubt]:
    if original.network is not None and (names := original.network.missing):
        from buildsys.models.state_dicts import shortened

        place = shortened(names)
        text = f"the file of weights lacks {place}: as the network was created"
        yield Doubt(kind="weights", text=text, place=place)


def _is_nan(tensor: Tensor) -> bool:
    return 0 < tensor.array.size == tensor.non_finite() and bool(np.isnan(tensor.values()).all())


def _nan_hint(original: Original) -> str:
    state = dict(original.module.named_parameters()) if original.module is not None else {}
    if name := next((name for name, value in state.items() if value.isnan().any()), ""):
        return f"the weights have NaN in {name}: take others"
    return "change the input data or the weights"
