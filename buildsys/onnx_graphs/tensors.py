"""Tensors of every ONNX type as numpy arrays, and their files.

ONNX types unknown to numpy (bfloat16, float8, 4-bit types) are stored as bits in unsigned integers,
so numpy alone loads and stores everything. Only computing with float8 and float4 types needs
``ml_dtypes``.
"""

import json
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from buildsys.errors import StageError

Array = npt.NDArray[Any]

NATIVE_DTYPES = (
    "float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32",
    "uint64", "bool", "complex64", "complex128",
)  # fmt: skip
BIT_DTYPES = {
    "bfloat16": "uint16",
    **dict.fromkeys(("float8e4m3fn", "float8e4m3fnuz", "float8e5m2", "float8e5m2fnuz"), "uint8"),
    # one element per byte
    **dict.fromkeys(("float4e2m1", "int4", "uint4"), "uint8"),
}
ML_DTYPES = {  # the same names as in torch, which has no types below 8 bits
    "bfloat16": "bfloat16", "float8e4m3fn": "float8_e4m3fn", "float8e4m3fnuz": "float8_e4m3fnuz",
    "float8e5m2": "float8_e5m2", "float8e5m2fnuz": "float8_e5m2fnuz",
    "float4e2m1": "float4_e2m1fn", "int4": "int4", "uint4": "uint4",
}  # fmt: skip
_NAME_OF_ML_DTYPE = {theirs: ours for ours, theirs in ML_DTYPES.items()}
_DTYPES_KEY, _FLOAT_TYPE = "__dtypes__", "float_type"
# earliest time of a zip entry, so that equal tensors give equal bytes
_EPOCH = (1980, 1, 1, 0, 0, 0)
BITS = {
    "float16": np.uint16, "bfloat16": np.uint16, "float32": np.uint32, "float64": np.uint64,
}  # fmt: skip
_EXACT = 256.0  # multiples of 1/256 are not rounded numbers but sizes, scales and thresholds


@dataclass(frozen=True, eq=False)
class Tensor:
    """An array with the ONNX name of its type, e.g. ``bfloat16``.

    ``array`` contains values for numpy's own types (strings as unicode), and bits, as unsigned
    integers of the same shape, for the types of ``BIT_DTYPES``.
    """

    array: Array
    dtype: str

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape in elements."""
        return tuple(self.array.shape)

    def values(self) -> Array:
        """Return the values, for bit types as float32 or 8-bit integers.

        Raises: StageError: a float8 or float4 type without ``ml_dtypes`` installed.
        """
        values = self.array
        if self.dtype == "bfloat16":
            values = (values.astype(np.uint32) << np.uint32(16)).view(np.float32)
        elif self.dtype == "int4":
            values = np.right_shift(np.left_shift(values.view(np.int8), 4), 4)
        elif self.dtype in BIT_DTYPES and self.dtype != "uint4":
            values = values.view(_ml_dtype(self.dtype)).astype(np.float32)
        return values

    def typed(self) -> Array:
        """Return the elements in their own type, a type of ``ml_dtypes`` for bits; no copy.

        Raises: StageError: ``ml_dtypes`` is needed and not installed.
        """
        return self.array.view(_ml_dtype(self.dtype)) if self.dtype in BIT_DTYPES else self.array

    def non_finite(self) -> int:
        """Count NaN and infinite elements."""
        values = self.values()
        return int((~np.isfinite(values)).sum()) if values.dtype.kind in "fc" else 0


@dataclass(frozen=True)
class Case:
    """The golden inputs and outputs of one shape case.

    ``alternatives`` of integer outputs are rows of a place among the elements, the least and
    largest value that is right there as well, and -1 or the number of a row without equal indices.
    """

    inputs: Mapping[str, Tensor]
    outputs: Mapping[str, Tensor]
    float_type: str = "float32"  # the type of most weights; int8 of a network with quantizers
    alternatives: Mapping[str, Array] = field(default_factory=dict)


def tensor_of(array: npt.ArrayLike, dtype: str | None = None) -> Tensor:
    """Convert ``array`` to a tensor, rounded if ``dtype`` is narrower.

    ``dtype`` defaults to the type of the array, possibly one of ``ml_dtypes``. Unsigned arrays
    are values, not bits; build ``Tensor(bits, dtype)`` for bits.
    """
    values = np.asarray(array)
    name = str(values.dtype.name)
    own = "string" if values.dtype.kind in "OUST" else _NAME_OF_ML_DTYPE.get(name, name)
    dtype = dtype or own
    if dtype == "string":
        items = values.reshape(-1).tolist()
        words = [item.decode() if isinstance(item, bytes) else str(item) for item in items]
        if any(word.endswith("\0") for word in words):
            problem = "a string that ends in a NUL character cannot be stored in a numpy array"
            raise StageError(problem, "remove the NUL characters")
        return Tensor(np.array(words, dtype=np.str_).reshape(values.shape), dtype)
    if dtype in BIT_DTYPES:
        if values.dtype.name == ML_DTYPES[dtype]:
            bits = values.view(BIT_DTYPES[dtype])
        elif dtype in ("int4", "uint4"):
            bits = values.astype(np.int8).view(np.uint8) & np.uint8(0x0F)
        elif dtype == "bfloat16":
            bits = _bfloat16_bits(np.asarray(values, np.float32, order="C"))
        else:
            with np.errstate(invalid="ignore", over="ignore"):
                bits = values.astype(np.float32).astype(_ml_dtype(dtype)).view(BIT_DTYPES[dtype])
        return Tensor(bits, dtype)
    if dtype not in NATIVE_DTYPES:
        raise StageError(f"{dtype} is not a supported tensor type", "convert it in the network")
    return Tensor(values.astype(dtype, copy=False), dtype)


def _bfloat16_bits(values: Array) -> Array:
    """Round float32 to bfloat16, ties to even; NaN stays NaN, quietly."""
    bits, half = values.view(np.uint32), np.uint32(16)
    with np.errstate(over="ignore"):
        rounded = (bits + np.uint32(0x7FFF) + ((bits >> half) & np.uint32(1))) >> half
    nan = (bits >> half) | np.uint32(0x40)
    return np.asarray(np.where(np.isnan(values), nan, rounded), np.uint16)


def save_case(
    path: Path,
    inputs: Mapping[str, Tensor],
    outputs: Mapping[str, Tensor],
    float_type: str = "float32",
    alternatives: Mapping[str, Array] | None = None,
) -> None:
    """Write golden tensors to an .npz file deterministically."""
    save_tensors(path, _named_tensors(Case(inputs, outputs, float_type, alternatives or {})))


def load_case(path: Path) -> Case:
    """Read the file of ``save_case``. Raises: StageError: the file cannot be read."""
    return _case(load_tensors(path))


def _named_tensors(case: Case) -> dict[str, Tensor]:
    named = {f"in.{name}": tensor for name, tensor in case.inputs.items()}
    named.update((f"out.{name}", tensor) for name, tensor in case.outputs.items())
    named.update((f"alt.{name}", tensor_of(rows)) for name, rows in case.alternatives.items())
    if case.float_type in ("float16", "bfloat16", "int8"):
        named[_FLOAT_TYPE] = tensor_of(np.array(case.float_type))
    return named


def _case(tensors: Mapping[str, Tensor]) -> Case:
    inputs = {name[3:]: tensor for name, tensor in tensors.items() if name.startswith("in.")}
    outputs = {name[4:]: tensor for name, tensor in tensors.items() if name.startswith("out.")}
    float_type = str(tensors[_FLOAT_TYPE].array) if _FLOAT_TYPE in tensors else "float32"
    rows = {name[4:]: tensor.array for name, tensor in tensors.items() if name.startswith("alt.")}
    return Case(inputs, outputs, float_type, rows)


def save_cases(path: Path, cases: Iterable[Case]) -> None:
    """Write many small golden cases to one .npz file."""
    numbered = ((f"{number}.", case) for number, case in enumerate(cases))
    save_tensors(
        path,
        {
            before + name: tensor
            for before, case in numbered
            for name, tensor in _named_tensors(case).items()
        },
    )


def load_cases(path: Path) -> list[Case]:
    """Read the file of ``save_cases``. Raises: StageError: the file cannot be read."""
    cases: dict[str, dict[str, Tensor]] = {}
    for key, tensor in load_tensors(path).items():
        number, _, name = key.partition(".")
        cases.setdefault(number, {})[name] = tensor
    return [_case(named) for named in cases.values()]


def save_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write named tensors to an uncompressed .npz file with fixed time stamps."""
    names = np.asarray(json.dumps({name: tensor.dtype for name, tensor in tensors.items()}))
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        write_array(archive, _DTYPES_KEY, names)
        for name, tensor in tensors.items():
            write_array(archive, name, tensor.array)


def write_array(archive: zipfile.ZipFile, name: str, array: Array) -> None:
    """Add an array to an .npz file, with a fixed time stamp."""
    little = array.astype(array.dtype.newbyteorder("<"), copy=False)
    # not ascontiguousarray: it turns a scalar into a vector
    values = np.asarray(little, order="C")
    with archive.open(zipfile.ZipInfo(f"{name}.npy", _EPOCH), "w", force_zip64=True) as stream:
        np.lib.format.write_array(stream, values, version=(1, 0), allow_pickle=False)


def load_tensors(path: Path) -> dict[str, Tensor]:
    """Read the file of ``save_tensors``, without pickled objects.

    Raises: StageError: the file cannot be read.
    """
    try:
        arrays = NpzFile(path)
        dtypes: dict[str, str] = json.loads(str(arrays[_DTYPES_KEY][()]))
        return {name: Tensor(arrays[name], dtype) for name, dtype in dtypes.items()}
    except (OSError, ValueError, KeyError, AttributeError, RecursionError) as error:
        raise StageError(
            f"{path} is not a file of tensors: {error}",
            "make it again; it is damaged or of another program",
        ) from error


def load_arrays(path: Path) -> dict[str, Array]:
    """Read any .npz file as contiguous arrays, types unknown to numpy as float32.

    Raises: OSError, ValueError, StageError: the file cannot be read.
    """
    arrays: Mapping[str, Array] = NpzFile(path)
    if _DTYPES_KEY in arrays:  # written by ``save_tensors``
        arrays = {name: tensor.values() for name, tensor in load_tensors(path).items()}
    # not ascontiguousarray: it turns a scalar into a vector
    return {name: np.require(array, requirements="C") for name, array in arrays.items()}


def _ml_dtype(dtype: str) -> np.dtype[Any]:
    try:
        import ml_dtypes
    except ImportError as error:
        problem = f"{dtype} values need the package ml_dtypes"
        raise StageError(problem, "pip install ml_dtypes") from error
    numpy_dtype: np.dtype[Any] = np.dtype(getattr(ml_dtypes, ML_DTYPES[dtype]))
    return numpy_dtype


class NpzFile(Mapping[str, Array]):
    """The arrays of an .npz file by name, read on access.

    Raises: OSError, ValueError: the file, or the array accessed, cannot be read.
    """

    def __init__(self, path: Path) -> None:
        with _one_error():
            self._archive = zipfile.ZipFile(path)  # closed with this object
            names = self._archive.namelist()
        self._members = {name.removesuffix(".npy"): name for name in names}

    def __getitem__(self, name: str) -> Array:
        """Read an array. Raises: KeyError: there is none of this name."""
        member = self._members[name]
        with _one_error(f"array {name}: "), self._archive.open(member) as stream:
            return np.lib.format.read_array(stream, allow_pickle=False)

    def __iter__(self) -> Iterator[str]:
        return iter(self._members)

    def __len__(self) -> int:
        return len(self._members)


def read_npy(path: Path) -> Array:
    """Read the array of an .npy file. Raises: OSError, ValueError: the file cannot be read."""
    with _one_error(), path.open("rb") as stream:
        return np.lib.format.read_array(stream, allow_pickle=False)


@contextmanager
def _one_error(where: str = "") -> Iterator[None]:
    try:
        yield
    except OSError:
        raise
    except Exception as error:  # numpy and zipfile raise any class on damaged files
        first = (str(error).splitlines() or [type(error).__name__])[0]
        problem = "it is not an array of numpy" if "magic string" in first else first
        raise ValueError(f"{where}{problem}") from error


def nudged_tensors(
    tensors: Mapping[str, Tensor], draw: int | np.random.Generator
) -> dict[str, Tensor]:
    """Change the last bits of floats."""
    rng, nudged = np.random.default_rng(draw), dict(tensors)
    for name, tensor in tensors.items():
        if tensor.dtype in BITS:
            bits, values = tensor.array.view(BITS[tensor.dtype]), tensor.values()
            moved = nudge(bits, values.astype(np.float64), rng)
            nudged[name] = Tensor(moved.view(tensor.array.dtype), tensor.dtype)
    return nudged


def nudge(bits: Array, values: Array, rng: np.random.Generator) -> Array:
    """Step to the bits of the next larger or smaller magnitudes."""
    is_rounded = np.isfinite(values) & (values * _EXACT != np.round(values * _EXACT))
    step = rng.integers(0, 2, bits.shape, dtype=np.int8).astype(bool)
    unit = bits.dtype.type(1)
    return np.where(is_rounded, np.where(step, bits + unit, bits - unit), bits)
