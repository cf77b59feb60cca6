"""Objects in checkpoints without their classes: settings of a trainer, or whole modules.

``torch.load(weights_only=True)`` knows tensors and plain values, and refuses other names. Each of
them gets a stand-in here, which runs nothing: it makes a dictionary that keeps what was pickled.
"""

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

_PARTS = ("_parameters", "_buffers", "_modules")  # of a module


class _Object:
    """Stands for any class or function; torch fills plain dictionaries only."""

    def __new__(cls, *_: Any, **__: Any) -> Any:
        made: OrderedDict[Any, Any] = OrderedDict()
        return made


class _Opaque:
    """Stands for a class whose state is a tuple."""

    __slots__ = ()

    def __new__(cls, *_: Any) -> Any:
        return super().__new__(cls)

    def __setstate__(self, _: Any) -> None:
        pass


class _Wrapper:
    """Stands for a compiled module, which is made from the original one."""

    def __new__(cls, module: Any, *_: Any) -> Any:
        return module


_STAND_INS = {  # by the beginning of a name
    "numpy.": _Opaque,
    "functools.partial": _Opaque,
    "torch._dynamo.eval_frame.OptimizedModule": _Wrapper,
    "": _Object,
}


@contextmanager
def stand_ins(file: Path) -> Iterator[None]:
    """Let torch load a file with other names than its own."""
    try:
        names = torch.serialization.get_unsafe_globals_in_checkpoint(str(file))
    except Exception:  # damaged, or of before torch 1.6: loading it says so
        names = []
    objects: list[Any] = [
        (next(kind for start, kind in _STAND_INS.items() if name.startswith(start)), name)
        for name in names
    ]
    with torch.serialization.safe_globals(objects):
        yield


def module_tensors(loaded: Any) -> dict[str, Any]:
    """Name the tensors of a saved module like its state dict; empty for another object."""
    tensors: dict[str, Any] = {}
    waiting, seen = [("", loaded)], set[int]()
    while waiting:
        prefix, module = waiting.pop()
        attributes = vars(module) if type(module) is OrderedDict else {}
        parts = [attributes.get(name) for name in _PARTS]
        if id(module) in seen or not all(isinstance(part, dict) for part in parts):
            continue
        seen.add(id(module))  # of two names of a module, the file needs one
        hidden = attributes.get("_non_persistent_buffers_set")
        for part in parts[:2]:
            tensors |= {
                f"{prefix}{name}": tensor
                for name, tensor in dict.items(
                    part or {}
                )  # files may replace a method of a dictionary
                if isinstance(tensor, torch.Tensor)
                and not (isinstance(hidden, set) and name in hidden)
            }
        waiting += [(f"{prefix}{name}.", child) for name, child in dict.items(parts[2] or {})]
    return tensors
