"""DLPack capsules: reading those of any library, making our own.

Unlike numpy's functions these know bfloat16 and float8, and memory of a GPU.
Source: DLPack, dlpack.h and "Python Specification for DLPack".
"""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

from buildsys.errors import StageError

CPU, CUDA, CUDA_HOST, CUDA_MANAGED = 1, 2, 3, 13  # device types
_DTYPES = {
    (kind, bits): f"{name}{bits}"
    for kind, name, widths in (
        (0, "int", (8, 16, 32, 64)), (1, "uint", (8, 16, 32, 64)), (2, "float", (16, 32, 64)),
        (4, "bfloat", (16,)), (5, "complex", (64, 128)),
    )
    for bits in widths
} | {
    (6, 8): "bool", (10, 8): "float8e4m3fn", (11, 8): "float8e4m3fnuz", (12, 8): "float8e5m2",
    (13, 8): "float8e5m2fnuz", (14, 8): "float8e8m0",
}  # fmt: skip
_CODES = {name: code for code, name in _DTYPES.items()}
_NAME = b"dltensor"  # must outlive the capsules


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Managed(ctypes.Structure):
    pass


_Deleter = ctypes.CFUNCTYPE(None, ctypes.POINTER(_Managed))
_Managed._fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", _Deleter))
_Destructor = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_API = ctypes.pythonapi
_get_pointer = _API.PyCapsule_GetPointer
_get_pointer.restype, _get_pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
# for a capsule that is being freed, which cannot be a Python object any more
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_IsValid", _API)
)
_pointer_of_freed = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", _API)
)
_new_capsule = _API.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = (ctypes.c_void_p, ctypes.c_char_p, _Destructor)
_exported: dict[int, tuple[object, ...]] = {}  # by address, until the consumer is done


class Memory(NamedTuple):
    """The memory of an array in another library."""

    address: int
    shape: tuple[int, ...]
    dtype: str  # with ONNX's name
    is_contiguous: bool
    owner: object


def read_capsule(capsule: Any) -> Memory:
    """Return the memory of a capsule; the capsule stays its owner.

    Raises: StageError: its type has no ONNX name.
    """
    found = ctypes.cast(_get_pointer(capsule, _NAME), ctypes.POINTER(_Managed)).contents.tensor
    dtype = _DTYPES.get((found.code, found.bits))
    if dtype is None or found.lanes != 1:
        problem = f"DLPack's type {found.code} of {found.bits} bits is unknown"
        raise StageError(problem, "convert the array to a type of the engine's inputs")
    shape = tuple(found.shape[: found.ndim])
    address = (found.data or 0) + found.byte_offset
    is_contiguous = not found.strides or _are_dense(shape, found.strides[: found.ndim])
    return Memory(address, shape, dtype, is_contiguous, capsule)


def make_capsule(
    address: int, shape: tuple[int, ...], dtype: str, device: tuple[int, int], owner: object
) -> Any:
    """Return a capsule of memory; it keeps ``owner`` alive."""
    code, bits = _CODES[dtype]
    sizes = (ctypes.c_int64 * len(shape))(*shape)
    managed = _Managed()
    managed.tensor = _Tensor(address, *device, len(shape), code, bits, 1, sizes, None, 0)
    managed.deleter = _DELETER
    place = ctypes.addressof(managed)
    _exported[place] = managed, sizes, owner
    return _new_capsule(place, _NAME, _DESTRUCTOR)


def _are_dense(shape: tuple[int, ...], strides: list[int]) -> bool:
    expected = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size != 1 and stride != expected:
            return 0 in shape
        expected *= size
    return True


def _delete(managed: Any) -> None:
    _exported.pop(ctypes.addressof(managed.contents), None)


def _destroy(capsule: int) -> None:
    """Free the memory of an unused capsule; consumers rename theirs."""
    if _is_valid(capsule, _NAME):
        _exported.pop(_pointer_of_freed(capsule, _NAME), None)


_DELETER, _DESTRUCTOR = _Deleter(_delete), _Destructor(_destroy)
