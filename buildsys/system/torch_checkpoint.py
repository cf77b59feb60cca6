"""The content of a file that torch.save wrote, without torch: what a network gets from it, and nothing else.

Saving a state dict again may change the file (names in the archive, alignment, torch's version) and not one weight. So
its digest is made of the tensors: name, type, shape and values. The pickle inside is read by an unpickler
that knows a handful of stand-ins and calls nothing else.
"""

from __future__ import annotations

import json
import os
import pickle
import struct
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any, Literal, TypeGuard

WRAPPERS = (
    "state_dict",
    "model_state_dict",
    "model",
)  # keys under which training scripts save a state dict
_PICKLE_LIMIT = 64 << 20  # a state dict's own pickle has some hundred bytes per tensor
_LEAVES_LIMIT = 1_000_000
_DEPTH_LIMIT = 16
_RUNS_LIMIT = 4_000_000  # pieces that lie apart: about four seconds
_CHUNK_BYTES = 8 << 20
_LOCAL_HEADER = struct.Struct(
    "<26xHH"
)  # its last two fields: length of the name, length of the extra field
_FORMATS: Mapping[int, Literal["B", "H", "I", "Q"]] = {
    1: "B",
    2: "H",
    4: "I",
    8: "Q",
}  # of memoryview.cast, by size
_STORAGES = {
    "FloatStorage": "float32", "DoubleStorage": "float64", "HalfStorage": "float16", "BFloat16Storage": "bfloat16",
    "ByteStorage": "uint8", "CharStorage": "int8", "ShortStorage": "int16", "IntStorage": "int32",
    "LongStorage": "int64", "BoolStorage": "bool", "ComplexFloatStorage": "complex64",
    "ComplexDoubleStorage": "complex128", "UntypedStorage": "",
}  # fmt: skip
_ITEM_BYTES = {
    "float32": 4, "float64": 8, "float16": 2, "bfloat16": 2, "uint8": 1, "int8": 1, "int16": 2, "int32": 4, "int64": 8,
    "bool": 1, "complex64": 8, "complex128": 16, "uint16": 2, "uint32": 4, "uint64": 8, "float8_e4m3fn": 1,
    "float8_e4m3fnuz": 1, "float8_e5m2": 1, "float8_e5m2fnuz": 1, "float8_e8m0fnu": 1,
}  # fmt: skip


class NotUnderstoodError(Exception):
    """The file holds something that this reader does not know."""


@dataclass(frozen=True, slots=True)
class _Storage:
    key: str
    dtype: str  # "" for one that its tensors give a type


@dataclass(frozen=True, slots=True)
class _Tensor:
    storage: _Storage
    dtype: str
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]


class _Dict(dict[Any, Any]):
    """An OrderedDict; what else was set on it (``_metadata``) is dropped, as the loader drops it."""

    def __setstate__(self, state: object) -> None:
        pass


@dataclass(frozen=True, slots=True)
class _StandIn:
    """What the pickle gets for a global name: it can be called, or stand for a type, and nothing else."""

    name: str
    make: Callable[..., Any]

    def __call__(self, *arguments: Any) -> Any:
        return self.make(*arguments)

    def __setstate__(self, state: object) -> None:
        raise NotUnderstoodError("state for a global")


def state_dict_of(loaded: object) -> object:
    """Return the state dict of a checkpoint: what lies under the first of ``WRAPPERS``, else all of it."""
    if isinstance(loaded, Mapping):
        return next(
            (loaded[key] for key in WRAPPERS if isinstance(loaded.get(key), Mapping)), loaded
        )
    return loaded


def tensors_digest(path: str) -> str | None:
    """Return ``tensors:DIGEST`` of the state dict in a file; None where it is not understood.

    Raises: OSError: the file cannot be read.
    """
    from blake3 import blake3  # a run without work does not come here

    try:
        with open(path, "rb") as file, zipfile.ZipFile(file) as archive:  # noqa: PTH123 - paths are strings here
            reader = _Reader(file, archive)
            rows = sorted(_rows(state_dict_of(reader.load()), reader))
    except OSError:
        raise
    except Exception:  # a damaged or hostile pickle raises whatever it likes
        return None
    return f"tensors:{blake3(json.dumps(rows).encode()).hexdigest()}"


def _rows(state: object, reader: _Reader) -> Iterator[tuple[str, ...]]:
    """Yield one row per leaf, each with its path."""
    waiting: list[tuple[tuple[str, ...], Any]] = [((), state)]
    for _ in range(_LEAVES_LIMIT):
        if not waiting:
            return
        path, value = waiting.pop()
        if len(path) > _DEPTH_LIMIT:  # or something that holds itself
            raise NotUnderstoodError("entries in entries without end")
        name = json.dumps(path)
        if isinstance(value, dict):
            yield name, "dict", str(len(value))
            waiting += [
                ((*path, f"{type(key).__name__} {key}"), item)
                for key, item in value.items()
                if _is_plain(key)
            ]
            if not all(map(_is_plain, value)):
                raise NotUnderstoodError("a key that is neither text nor a number")
        elif isinstance(value, (list, tuple)):
            yield name, type(value).__name__, str(len(value))
            waiting += [((*path, str(index)), item) for index, item in enumerate(value)]
        elif isinstance(value, _Tensor):
            yield name, value.dtype, str(value.shape), reader.digest(value)
        elif _is_plain(value):
            yield name, type(value).__name__, repr(value)
        else:
            raise NotUnderstoodError(type(value).__name__)
    raise NotUnderstoodError("too many entries")


def _is_plain(value: object) -> bool:
    return value is None or type(value) in (str, int, float, bool, bytes, complex)


class _Reader:
    """An archive of torch.save."""

    def __init__(self, file: IO[bytes], archive: zipfile.ZipFile) -> None:
        self._descriptor = file.fileno()
        self._members = {info.filename: info for info in archive.infolist()}
        pickles = [name for name in self._members if name.endswith("/data.pkl")]
        if len(pickles) != 1 or len(self._members) != len(archive.infolist()):
            raise NotUnderstoodError("not an archive of torch.save")
        self._prefix = pickles[0].removesuffix("data.pkl")
        if f"{self._prefix}constants.pkl" in self._members:
            raise NotUnderstoodError("a TorchScript archive")
        order = self._members.get(f"{self._prefix}byteorder")
        if order is not None and archive.read(order) != b"little":
            raise NotUnderstoodError("another byte order")
        if self._members[pickles[0]].file_size > _PICKLE_LIMIT:
            raise NotUnderstoodError("a large pickle")
        self._pickle = archive.open(pickles[0])
        self._digests: dict[_Tensor, str] = {}

    def load(self) -> object:
        """Return what was saved, its tensors as descriptions."""
        with self._pickle:
            return _Unpickler(self._pickle).load()

    def digest(self, tensor: _Tensor) -> str:
        """Return the digest of a tensor's values."""
        if tensor not in self._digests:
            self._digests[tensor] = self._digest(tensor)
        return self._digests[tensor]

    def _digest(self, tensor: _Tensor) -> str:
        from blake3 import blake3

        found = blake3(max_threads=blake3.AUTO)
        if 0 in tensor.shape:
            return str(found.hexdigest())
        axes = [
            (size, step) for size, step in zip(tensor.shape, tensor.stride, strict=True) if size > 1
        ]
        if tensor.offset < 0 or any(size < 0 or step < 0 for size, step in axes):
            raise NotUnderstoodError("a negative size")
        width = _ITEM_BYTES[tensor.dtype]
        start, limit = self._place(tensor.storage.key)
        begin = start + tensor.offset * width
        span = 1 + sum((size - 1) * step for size, step in axes)
        if begin + span * width > start + limit:
            raise NotUnderstoodError("a tensor beyond its storage")
        if _is_dense(axes):  # as it lies; the order of its axes belongs to it
            found.update(json.dumps(_order(axes)).encode())
            for position in range(begin, begin + span * width, _CHUNK_BYTES):
                found.update(
                    self._read(position, min(_CHUNK_BYTES, begin + span * width - position))
                )
        else:  # as a copy of it would lie
            found.update(json.dumps(list(range(len(axes)))).encode())
            for piece in _pieces(memoryview(self._read(begin, span * width)), width, axes):
                found.update(piece)
        return str(found.hexdigest())

    def _place(self, key: str) -> tuple[int, int]:
        """Return where a storage's bytes begin in the file, and how many there are."""
        member = self._members[f"{self._prefix}data/{key}"]
        if member.compress_type != zipfile.ZIP_STORED:
            raise NotUnderstoodError("a compressed archive")
        name, extra = _LOCAL_HEADER.unpack(self._read(member.header_offset, _LOCAL_HEADER.size))
        return member.header_offset + _LOCAL_HEADER.size + name + extra, member.file_size

    def _read(self, position: int, size: int) -> bytes:
        found = os.pread(self._descriptor, size, position)
        if len(found) != size:
            raise NotUnderstoodError("a file that is cut short")
        return found


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if module in ("torch", "torch.storage") and name in _STORAGES:
            return _StandIn(_STORAGES[name], _refuse)
        if module == "torch" and name in _ITEM_BYTES:
            return _StandIn(name, _refuse)
        if (module, name) not in _CALLABLES:
            raise NotUnderstoodError(f"{module}.{name}")
        return _StandIn(name, _CALLABLES[module, name])

    def persistent_load(self, pid: Any) -> _Storage:
        kind, storage, key, _location, _size = pid
        if kind != "storage" or not isinstance(storage, _StandIn) or not isinstance(key, str):
            raise NotUnderstoodError("a persistent object")
        return _Storage(key, storage.name)


def _refuse(*_arguments: object) -> None:
    raise NotUnderstoodError("a call of a type")


def _make_dict() -> _Dict:
    return _Dict()


def _make_tensor(storage: Any, offset: Any, shape: Any, stride: Any, *_more: object) -> _Tensor:
    if not isinstance(storage, _Storage) or not storage.dtype:
        raise NotUnderstoodError("a storage without a type")
    return _checked(_Tensor(storage, storage.dtype, offset, shape, stride))


def _make_typed(
    storage: Any,
    offset: Any,
    shape: Any,
    stride: Any,
    _grad: object,
    _hooks: object,
    dtype: Any,
    *_more: object,
) -> _Tensor:
    if not isinstance(storage, _Storage) or not isinstance(dtype, _StandIn):
        raise NotUnderstoodError("a tensor without a type")
    return _checked(_Tensor(storage, dtype.name, offset, shape, stride))


def _checked(tensor: _Tensor) -> _Tensor:
    if (
        _are_numbers((tensor.offset,))
        and _are_numbers(tensor.shape)
        and _are_numbers(tensor.stride)
    ):
        return tensor
    raise NotUnderstoodError("a shape that is not made of numbers")


def _are_numbers(values: object) -> TypeGuard[tuple[int, ...]]:
    return isinstance(values, tuple) and all(type(value) is int for value in values)


def _make_parameter(tensor: Any, _grad: object = None, _hooks: object = None) -> _Tensor:
    if not isinstance(tensor, _Tensor):
        raise NotUnderstoodError("a parameter without a tensor")
    return tensor


def _make_size(sizes: Any = ()) -> tuple[int, ...]:
    return tuple(sizes)


_CALLABLES: Mapping[tuple[str, str], Callable[..., Any]] = {
    ("collections", "OrderedDict"): _make_dict,
    ("torch", "Size"): _make_size,
    ("torch._utils", "_rebuild_tensor_v2"): _make_tensor,
    ("torch._utils", "_rebuild_tensor_v3"): _make_typed,
    ("torch._utils", "_rebuild_parameter"): _make_parameter,
}


def _is_dense(axes: Sequence[tuple[int, int]]) -> bool:
    """Tell whether the values lie beside each other, in whatever order of the axes."""
    expected = 1
    for size, step in sorted(axes, key=lambda axis: axis[1]):
        if step != expected:
            return False
        expected *= size
    return True


def _order(axes: Sequence[tuple[int, int]]) -> list[int]:
    """Return the axes from the outermost to the innermost: 0, 1, … for a contiguous tensor."""
    return sorted(range(len(axes)), key=lambda axis: -axes[axis][1])


def _pieces(storage: memoryview, width: int, axes: Sequence[tuple[int, int]]) -> Iterator[bytes]:
    """Yield the values in the order of the axes; ``storage`` begins with the first one."""
    unit = min(width, 8)
    if width > unit:  # a complex128 is two numbers
        axes = [*((size, 2 * step) for size, step in axes), (2, 1)]
    values = storage.cast(_FORMATS[unit])
    *outer, (size, step) = axes
    starts: Sequence[int] = [0]
    for outer_size, outer_step in outer:
        if len(starts) * outer_size > _RUNS_LIMIT:
            raise NotUnderstoodError("too many pieces that lie apart")
        starts = [start + index * outer_step for start in starts for index in range(outer_size)]
    if step == 0:
        yield from (values[start : start + 1].tobytes() * size for start in starts)
    else:
        yield from (
            values[start : start + (size - 1) * step + 1 : step].tobytes() for start in starts
        )
