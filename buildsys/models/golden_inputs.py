"""Golden inputs: the same values on every machine."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from buildsys.errors import StageError
from buildsys.manifest.value_ranges import default_high
from buildsys.models.images import find_images, read_images
from buildsys.models.user_code import load_callable, reraise_as_stage_error
from buildsys.onnx_graphs.tensors import BIT_DTYPES, Array, NpzFile, Tensor, tensor_of

Data = Mapping[str, Any]  # the manifest's ``data`` of one input


def golden_input(
    name: str,
    shape: tuple[int, ...],
    dtype: str,
    data: Data | None,
    *,
    case: str,
    seed: int,
    project: Path,
    sample: int = 0,
) -> Tensor:
    """Make the golden values of one input in one case.

    ``sample`` counts the images or rows of stored data that earlier samples took.
    Raises: StageError: the data does not fit the input's shape or dtype, or cannot be read.
    """
    if not data and _is_float(dtype):
        data = {"random": "normal", "mean": 0.0, "std": 1.0}
    elif not data:
        data = {"random": "integers", "low": 0, "high": default_high(dtype)}
    if "npz" in data:
        return _from_npz(data, name, shape, dtype, case, project, sample)
    if "python" in data:
        where = f"input {name}, case {case}"
        return values_from_callable(data["python"], shape, dtype, case, seed, project, where)
    if "images" in data:
        count = shape[0] if len(shape) == 4 else 1
        files = find_images(data, name, (sample + 1) * count, project)
        return read_images(files[sample * count :], data, name, shape, dtype)
    if "constant" in data:
        return tensor_of(np.full(shape, data["constant"]), dtype)
    key = int.from_bytes(hashlib.sha256(f"{name}/{case}".encode()).digest()[:16], "little")
    stream = np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, key])))
    return _random(data, shape, dtype, stream)


def _random(data: Data, shape: tuple[int, ...], dtype: str, stream: np.random.Generator) -> Tensor:
    kind = data["random"]
    if kind == "integers":
        low, high = int(data["low"]), int(data["high"])
        return tensor_of(stream.integers(low, high, shape, dtype=np.int64), dtype)

    def draw() -> Array:
        if kind == "normal":
            return np.asarray(data["mean"] + data["std"] * stream.standard_normal(shape))
        return np.asarray(data["low"] + (data["high"] - data["low"]) * stream.random(shape))

    values = draw()
    return tensor_of(values + 1j * draw() if dtype.startswith("complex") else values, dtype)


def _is_float(dtype: str) -> bool:
    return "float" in dtype or "complex" in dtype


def _from_npz(
    data: Data, name: str, shape: tuple[int, ...], dtype: str, case: str, project: Path, sample: int
) -> Tensor:
    array, what = read_array(project / data["npz"], data["npz"], data["key"] or name)
    array = array[sample * shape[0] :] if sample and shape else array
    if array.ndim != len(shape) or any(
        stored < size for stored, size in zip(array.shape, shape, strict=True)
    ):
        raise StageError(
            f"{what} has the shape {array.shape}, input {name} needs {shape} in the case {case}",
            "arrays are cut to each case's shape from the front, so they must be at least as"
            " large as the largest case",
        )
    require_dtype(array, dtype, what, f"input {name}")
    return tensor_of(array[tuple(slice(size) for size in shape)], dtype)


def read_array(file: Path, title: str, key: str) -> tuple[Array, str]:
    """Read one array of an .npz file, and its name for messages.

    Raises: StageError: no such file or array.
    """
    try:
        arrays = NpzFile(file)
        if key not in arrays:
            raise StageError(f"{title} has no array {key}", f"it has {', '.join(arrays)}")
        return arrays[key], f"{title}: {key}"
    except (OSError, ValueError) as error:
        raise StageError(
            f"{title} cannot be read as an .npz file: {error}", "save it with numpy.savez"
        ) from error


def require_dtype(array: Array, dtype: str, what: str, of: str) -> None:
    """Raise StageError if a stored array's dtype differs from an input's."""
    expected = "float32" if dtype in BIT_DTYPES and _is_float(dtype) else dtype
    stored = tensor_of(array).dtype
    if stored not in (expected, dtype):
        raise StageError(f"{what} is {stored}, {of} is {dtype}", f"save it as {expected}")


def values_from_callable(
    reference: str,
    shape: tuple[int, ...],
    dtype: str,
    which: str | int,
    seed: int,
    project: Path,
    where: str,
) -> Tensor:
    """Compute a user callable's values for one case or batch.

    Raises: StageError: it raised, or its values do not fit the input.
    """
    make = load_callable(reference, project)
    with reraise_as_stage_error(f"{reference} failed for {where}", project):
        array = np.asarray(make(shape, dtype, which, seed))
    if array.shape != shape:
        raise StageError(
            f"{reference} returned the shape {array.shape} for {where}; expected {shape}",
            "return an array of the shape in its first argument",
        )
    returned = tensor_of(array).dtype
    if returned != dtype and not (dtype in BIT_DTYPES and returned == "float32"):
        problem = f"{reference} returned {returned} for {where}; expected {dtype}"
        raise StageError(problem, "convert it with .astype(dtype), its second argument")
    return tensor_of(array, dtype)
