"""Outputs of a network or a function by name, as declared in a manifest.

A result may be a tensor, or nested tuples, lists, dicts and dataclasses of tensors; the tensors are
numbered or, below a dict, named by their path (``boxes``, ``heads.0``). None is left out.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from buildsys.errors import StageError

Declared = Mapping[str, Mapping[str, Any]]  # outputs of the manifest


def name_outputs(
    result: Any, declared: Declared, tensor_types: type | tuple[type, ...], source: str
) -> dict[str, Any]:
    """Order the result of ``source``, such as forward, by output name.

    Raises: StageError: a key or the number of outputs differs, or an output is not a tensor.
    """
    is_mapping = _fields(result) is not None
    tensors: dict[str, Any] = {}
    for index, (path, leaf) in enumerate(_leaves(result, "")):
        if not isinstance(leaf, tensor_types):
            raise StageError(
                f"{source} returned {type(leaf).__name__} as output {path or index};"
                " only tensors can be outputs",
                "let the callable of the source return, or call it in, a function or module that"
                " returns tensors",
            )
        tensors[path if is_mapping else f"output{index}"] = leaf
    if not tensors:
        raise StageError(
            f"{source} returned {type(result).__name__}, without a tensor",
            "let it return tensors, also in tuples, lists, dicts or dataclasses",
        )
    if not declared:
        return tensors
    keys = {name: output["key"] or name for name, output in declared.items()}
    if not is_mapping and not any(output["key"] for output in declared.values()):
        keys = dict(zip(declared, tensors, strict=False))  # by position
    missing = [key for key in keys.values() if key not in tensors]
    if missing or len(declared) != len(tensors) or tensors.keys() - keys.values():
        sizes = [f"{name} {list(getattr(t, 'shape', ()))}" for name, t in tensors.items()]
        raise StageError(
            f"{source} returned {', '.join(sizes)}; the manifest declares {', '.join(declared)}",
            f"correct the key of {missing[0]}" if missing else "declare one output per tensor",
        )
    return {name: tensors[key] for name, key in keys.items()}


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield the leaves of a nested result with their paths."""
    if value is None:
        return
    items = _fields(value)
    if items is None and isinstance(value, tuple | list):
        items = dict(enumerate(value))
    if items is None:
        yield path, value
        return
    for key, item in items.items():
        yield from _leaves(item, f"{path}.{key}" if path else str(key))


def _fields(value: Any) -> Mapping[Any, Any] | None:
    """List the items of a dict or dataclass, None for others."""
    if isinstance(value, Mapping):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return None


def check_output(
    name: str,
    dtype: str,
    shape: Sequence[int],
    declared: Mapping[str, Any],
    dims: Mapping[str, int],
) -> None:
    """Compare an output's dtype and shape with the declared ones, if any.

    Raises: StageError: one differs.
    """
    problem = ""
    if declared.get("dtype") not in (None, dtype):
        problem = f"is {dtype}, the manifest declares {declared['dtype']}"
    elif declared.get("shape") is not None and (
        expected := unmet_shape(shape, declared["shape"], dims)
    ):
        problem = f"has the shape {list(shape)}, the manifest declares {expected}"
    if problem:
        hint = f"correct outputs.{name}, with null for a size that follows from others"
        raise StageError(f"output {name} {problem}", hint)


def unmet_shape(
    sizes: Sequence[int], declared: Sequence[int | str | None], dims: Mapping[str, int]
) -> str:
    """Format the declared shape of a tensor with another one, "" if it fits."""
    expected = [dims[size] if isinstance(size, str) else size for size in declared]
    if len(expected) == len(sizes) and all(
        size in (None, actual) for size, actual in zip(expected, sizes, strict=True)
    ):
        return ""
    return f"[{', '.join('?' if size is None else str(size) for size in expected)}]"
