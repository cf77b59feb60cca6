"""Golden cases from files, with the outputs of another framework."""

from collections.abc import Iterator, Mapping

from buildsys.errors import StageError
from buildsys.manifest.shape_cases import Dims
from buildsys.models.golden_inputs import read_array, require_dtype
from buildsys.onnx_graphs.tensors import Case, NpzFile, Tensor, tensor_of
from buildsys.stages.reference.original import Original, not_finite
from buildsys.system.printable import nearest
from buildsys.workers.job import Job


def cases_of_files(job: Job, original: Original) -> Iterator[tuple[str, Dims, Case]]:
    """Yield the cases of the files in ``reference``.

    Raises: StageError: an array is missing, unknown, of another type or shape, or has NaN.
    """
    for case, file in job.options["further"].get("golden", {}).items():
        declared = job.options["inputs"].items()
        inputs = {n: _tensor(job, file, n, port["dtype"], "input") for n, port in declared}
        dims = _sizes(job, file, inputs)
        try:
            computed = original.call(inputs, dims)
        except StageError as error:
            raise StageError(f"{file}: {error.problem}", error.hint) from error
        outputs = {n: _tensor(job, file, n, t.dtype, "output") for n, t in computed.items()}
        for name, tensor in outputs.items():
            if tensor.shape != computed[name].shape:
                shapes = f"{list(tensor.shape)}, the source computes {list(computed[name].shape)}"
                raise StageError(f"{file}: {name} has the shape {shapes}", "save it in this shape")
        names = [*inputs, *outputs]
        if unknown := next((name for name in NpzFile(job.project / file) if name not in names), ""):
            hint = f"did you mean {' or '.join(nearest(unknown, names) or names)}?"
            raise StageError(f"{file}: {unknown} is neither an input nor an output", hint)
        usual = not_finite(computed)
        for key, text in not_finite(outputs).items():
            if key not in usual:
                raise StageError(f"{file}: {text}", "the source computes finite ones")
        yield case, dims, Case(inputs, outputs, original.float_type)


def _tensor(job: Job, file: str, name: str, dtype: str, kind: str) -> Tensor:
    array, what = read_array(job.project / file, file, name)
    require_dtype(array, dtype, what, f"{kind} {name}")
    return tensor_of(array, dtype)


def _sizes(job: Job, file: str, inputs: Mapping[str, Tensor]) -> Dims:
    """Read the sizes of dynamic dimensions. Raises: StageError: a shape is not as declared."""
    spans, dims = job.options["further"]["spans"], dict[str, int]()
    for name, tensor in inputs.items():
        declared = job.options["inputs"][name]["shape"]
        fits = len(declared) == len(tensor.shape)
        for size, actual in zip(declared, tensor.shape, strict=False):
            if isinstance(size, str):
                span = spans[size]
                fits &= dims.setdefault(size, actual) == actual
                fits &= span["min"] <= actual <= span["max"] and not actual % span["multiple_of"]
            else:
                fits &= size == actual
        if not fits:
            ranges = ", ".join(f"{d} {spans[d]['min']} to {spans[d]['max']}" for d in spans)
            problem = f"{name} has the shape {list(tensor.shape)}, input {name} has "
            problem += f"[{', '.join(map(str, declared))}]{f' ({ranges})' * bool(ranges)}"
            raise StageError(f"{file}: {problem}", "widen dims, or save other arrays")
    return dims
