"""Conversion of tensors between numpy and torch, for all dtypes of torch."""

from __future__ import annotations

import torch

from buildsys.errors import StageError
from buildsys.onnx_graphs.tensors import BIT_DTYPES, NATIVE_DTYPES, Array, Tensor

_TORCH_NAMES = {
    **{name: name for name in (*NATIVE_DTYPES, "bfloat16")},
    "float8e4m3fn": "float8_e4m3fn",
    "float8e4m3fnuz": "float8_e4m3fnuz",
    "float8e5m2": "float8_e5m2",
    "float8e5m2fnuz": "float8_e5m2fnuz",
}
_MANIFEST_NAMES = {theirs: ours for ours, theirs in _TORCH_NAMES.items()}


def torch_dtype(name: str) -> torch.dtype:
    """Return torch's dtype for a manifest's.

    Raises: StageError: torch has no tensors of it.
    """
    found = getattr(torch, _TORCH_NAMES.get(name, ""), None)
    if not isinstance(found, torch.dtype):
        raise StageError(
            f"a PyTorch network cannot take or return {name} tensors",
            "use an ONNX file for such a model (source: {onnx: FILE})",
        )
    return found


def dtype_name(dtype: torch.dtype) -> str:
    """Return the manifest's name of a torch dtype."""
    name = str(dtype).removeprefix("torch.")
    return _MANIFEST_NAMES.get(name, name)


def to_torch(tensor: Tensor) -> torch.Tensor:
    """Return a copy as a torch tensor; forward may write into it."""
    dtype = torch_dtype(tensor.dtype)
    values = torch.from_numpy(tensor.array.copy())
    return values.view(dtype) if tensor.dtype in BIT_DTYPES else values.to(dtype)


def from_torch(tensor: torch.Tensor) -> Tensor:
    """Return a torch tensor as a numpy one.

    Raises: StageError: the tensor is not dense.
    """
    name = dtype_name(tensor.dtype)
    plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    if plain.layout != torch.strided or plain.is_quantized:
        raise StageError(f"only dense tensors can be outputs, not {plain.layout} {name}")
    if name in BIT_DTYPES:
        bits: Array = plain.view(getattr(torch, BIT_DTYPES[name])).numpy()
        return Tensor(bits, name)
    return Tensor(plain.numpy(), name)
