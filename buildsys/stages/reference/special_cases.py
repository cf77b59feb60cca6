"""Golden cases with special values, such as zeros, multiples and the last rows of tables."""

import signal
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, nullcontext
from itertools import chain
from types import FrameType
from typing import NoReturn

from buildsys.errors import StageError
from buildsys.manifest.shape_cases import Dims, format_case
from buildsys.manifest.value_ranges import VALUE_CASES
from buildsys.models.value_cases import last_rows, value_cases
from buildsys.onnx_graphs.result_types import Doubt
from buildsys.onnx_graphs.tensors import Case
from buildsys.stages.common.golden_check import uncompared_case
from buildsys.stages.reference.further_cases import value_dims
from buildsys.stages.reference.original import Original, Tensors, golden_inputs, not_finite
from buildsys.workers.job import Job

_LEAST_LIMIT_S, _LONGER = 20.0, 10  # of a call with special values; times an ordinary call
_NOT_FINITE = {"nan", "inf"}
_USUAL_VALUES = {"zeros", "ones", "small", "large", "huge"}  # few networks refuse them
_FAR_INTEGERS = {"negative-integers", "hundreds", "wide-integers", "last-rows"}
_FAR_VALUES = _FAR_INTEGERS | _NOT_FINITE | {"large", "huge"}


def special_cases(
    job: Job, original: Original, usual: Collection[tuple[str, str]], doubts: list[Doubt]
) -> Iterator[tuple[str, Dims, Case]]:
    """Yield the cases with special values that the network answers with finite numbers.

    ``usual`` are outputs with NaN or infinite values in all cases.
    Values that are not finite, and multiples, say nothing about networks of narrow floats; nor
    does the place of NaN among others, as ArgMax returns it.
    """
    names = set(job.options["further"]["values"]).intersection(VALUE_CASES)
    if job.options["source"].get("device", "cpu") != "cpu":  # an index out of range ends CUDA
        names -= _FAR_INTEGERS
    is_narrow = original.float_type in ("float16", "bfloat16")
    if is_narrow:
        names -= _NOT_FINITE | {"small", "large", "huge"}
    if original.quantizes:
        names -= {"nan"}
    if not names:
        return
    dims, seed = value_dims(job), job.options["source"]["seed"]

    def answer(inputs: Tensors) -> tuple[Tensors, str]:
        try:
            with _time_limit(limit_s) if original.module is not None else nullcontext():
                outputs = original.call(inputs, dims)
        except StageError as error:
            return {}, error.problem
        return ({} if not_finite(outputs).keys() - usual else outputs), ""

    inputs, data = golden_inputs(job, dims, {"case": "min", "seed": seed}), job.options["data"]
    start = time.monotonic()
    if original.has_own_operators(inputs):  # which need not survive values out of range
        names -= _FAR_VALUES
    limit_s = _LEAST_LIMIT_S + _LONGER * (time.monotonic() - start)
    cases = value_cases(inputs, data, names)
    if "last-rows" in names and original.table_rows:
        last = last_rows(inputs, data, original.table_rows, lambda feeds: bool(answer(feeds)[0]))
        cases = chain(cases, [("last-rows", last)] if last else ())
    for name, feeds in cases:
        outputs, problem = answer(feeds)
        if problem and name in _USUAL_VALUES:
            doubts.append(uncompared_case(name, format_case(name, dims), problem))
        is_open = usual or any("int" in tensor.dtype for tensor in outputs.values())
        if not outputs or (is_open and name in _NOT_FINITE):
            continue
        if not is_narrow and original.is_rounding(feeds):
            case_text = format_case(name, dims)
            doubts.append(uncompared_case(name, case_text, "its outputs are mostly rounding"))
        else:
            yield name, dims, original.case(feeds, outputs)


@contextmanager
def _time_limit(limit_s: float) -> Iterator[None]:
    """Raise StageError in a block that takes longer, such as a loop that infinity never ends."""

    def stop(_number: int, _frame: FrameType | None) -> NoReturn:
        raise StageError(f"forward takes more than {limit_s:.0f} s")

    previous = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
