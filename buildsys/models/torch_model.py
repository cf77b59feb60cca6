"""Call a network as its manifest says: named tensors in, named tensors out.

Inputs go to ``forward`` in the manifest's order, those with ``keyword`` by that keyword. What forward
returns may be a tensor, or tuples, lists, dicts and dataclasses of tensors, nested as one likes; the tensors are
numbered or, below a dict, called by their path (``boxes``, ``heads.0``). None is left out.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from buildsys.errors import StageError
from buildsys.manifest.shape_cases import concrete_shape
from buildsys.models.build import make_module
from buildsys.models.random_weights import measuring_batch_norms
from buildsys.models.torch_dtypes import dtype_name, to_torch
from buildsys.models.user_code import reraise_as_stage_error, with_article
from buildsys.onnx_graphs.tensors import tensor_of

Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True, eq=False)
class Network:
    """A module with its calling convention."""

    module: nn.Module
    keywords: Mapping[str, str | None]  # input name -> keyword of forward, None by position
    declared: Mapping[
        str, Mapping[str, Any]
    ]  # output name -> {key, …} of the manifest; empty: as forward returns
    project: Path
    weights: str  # how the weights were made, for the report
    example_result: Any = (
        None  # what forward returned for the example, where it had to be called anyway
    )

    def arguments(
        self, inputs: Tensors
    ) -> tuple[tuple[torch.Tensor, ...], dict[str, torch.Tensor]]:
        """Return the positional and the keyword arguments of forward."""
        positional = tuple(
            inputs[name] for name, keyword in self.keywords.items() if keyword is None
        )
        return positional, {
            keyword: inputs[name] for name, keyword in self.keywords.items() if keyword is not None
        }

    def result(self, inputs: Tensors) -> Any:
        """Return what forward returns.

        Raises: StageError: forward raised; says for which inputs and where.
        """
        positional, named = self.arguments(inputs)
        with reraise_as_stage_error(
            f"forward of {type(self.module).__name__} failed on {describe_inputs(inputs)}",
            self.project,
        ):
            return self.module(*positional, **named)

    def __call__(self, inputs: Tensors) -> dict[str, torch.Tensor]:
        """Return the outputs by name, in the manifest's order.

        Raises: StageError: forward raised, or returned other outputs than declared.
        """
        return name_outputs(self.result(inputs), self.declared)


def make_network(options: Mapping[str, Any], project: Path) -> Network:
    """Build the network of a stage's options: ``source``, ``example``, ``inputs`` and ``outputs``.

    Raises: StageError: it cannot be built, its weights cannot be had, or a drawn one fails on the example.
    """
    made = make_module(options["source"], project)
    keywords = {name: signature["keyword"] for name, signature in options["inputs"].items()}
    network = Network(made.module, keywords, options["outputs"], project, made.weights)
    if not made.unmeasured:
        return network
    with torch.no_grad(), measuring_batch_norms(made.module, options["source"]["seed"]):
        return replace(network, example_result=network.result(example_inputs(options)))


def example_inputs(options: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Return inputs that any network takes: normal floats, and ones (valid as an index, a count or a mask)."""
    generator = torch.Generator().manual_seed(options["source"]["seed"])
    example: dict[str, torch.Tensor] = {}
    for name, signature in options["inputs"].items():
        shape = concrete_shape(signature["shape"], options["example"])
        if "float" in signature["dtype"] or "complex" in signature["dtype"]:
            values = torch.randn(shape, generator=generator).numpy()
            example[name] = to_torch(tensor_of(values, signature["dtype"]))
        else:
            example[name] = to_torch(tensor_of(np.ones(shape, np.int8), signature["dtype"]))
    return example


def name_outputs(result: Any, declared: Mapping[str, Mapping[str, Any]]) -> dict[str, torch.Tensor]:
    """Return what forward returned by output name.

    Raises: StageError: a key or a number of outputs that is not as declared, or something that is no tensor.
    """
    found = dict(_leaves(result, ""))
    if not found:
        raise StageError(f"forward returned no tensor but {type(result).__name__}")
    if not declared:
        return found
    if _is_mapping(result):
        keys = {name: output["key"] or name for name, output in declared.items()}
        _check_keys(keys, found)
        return {name: found[key] for name, key in keys.items()}
    if len(found) != len(declared):
        raise StageError(
            f"the manifest declares {_count(len(declared), 'output')} ({', '.join(declared)}), "
            f"forward returned {_count(len(found), 'tensor')} ({_shapes(found)})"
        )
    keyed = [name for name, output in declared.items() if output["key"]]
    if keyed:
        raise StageError(
            f"outputs.{keyed[0]}.key is given, but forward returned {type(result).__name__}, not a dict"
        )
    return dict(zip(declared, found.values(), strict=True))


def check_outputs(
    outputs: Tensors,
    declared: Mapping[str, Mapping[str, Any]],
    dims: Mapping[str, int],
    inputs: Tensors,
) -> None:
    """Compare the shapes and dtypes of ``outputs`` with the declared ones.

    Raises: StageError: one differs.
    """
    for name, output in declared.items():
        found, dtype = list(outputs[name].shape), dtype_name(outputs[name].dtype)
        if output["dtype"] not in (None, dtype):
            raise StageError(f"output {name} is {dtype}, the manifest declares {output['dtype']}")
        if output["shape"] is None:
            continue
        wanted = [dims[size] if isinstance(size, str) else size for size in output["shape"]]
        if len(wanted) != len(found) or any(
            w not in (None, f) for w, f in zip(wanted, found, strict=True)
        ):
            shown = ", ".join("?" if size is None else str(size) for size in wanted)
            raise StageError(
                f"output {name} has the shape {found} for {describe_inputs(inputs)}, the manifest declares [{shown}]"
            )


def is_flat(result: Any) -> bool:
    """Say whether ``result`` is a tensor or a plain tuple or list of tensors, as exporters like it."""
    items = result if isinstance(result, tuple | list) else (result,)
    return all(isinstance(item, torch.Tensor) for item in items)


class FlatCall(nn.Module):
    """A network whose forward takes all inputs by position and returns a flat tuple."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.network = network.module
        self.training = network.module.training  # of this module alone: submodules keep their modes
        self._convention = network

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Call the network and return its outputs in the manifest's order."""
        positional, named = self._convention.arguments(
            dict(zip(self._convention.keywords, tensors, strict=True))
        )
        return tuple(
            name_outputs(self.network(*positional, **named), self._convention.declared).values()
        )


def describe_inputs(inputs: Tensors) -> str:
    """Return e.g. ``ids int64 [2, 16], mask bool [2, 16]``."""
    return ", ".join(
        f"{name} {dtype_name(value.dtype)} {list(value.shape)}" for name, value in inputs.items()
    )


def _leaves(value: Any, path: str) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors of a result with their names."""
    for index, (name, leaf) in enumerate(_paths(value, path)):
        if not isinstance(leaf, torch.Tensor):
            raise StageError(
                f"forward returned {with_article(type(leaf).__name__)} as output {name or index}; "
                "only tensors can be outputs"
            )
        yield (name if _is_mapping(value) else f"output{index}"), leaf


def _paths(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if value is None:
        return
    if _is_mapping(value):
        items = [(str(key), item) for key, item in _items(value)]
    elif isinstance(value, tuple | list):
        items = [(str(index), item) for index, item in enumerate(value)]
    else:
        yield path, value
        return
    for key, item in items:
        yield from _paths(item, f"{path}.{key}" if path else key)


def _is_mapping(value: Any) -> bool:
    return isinstance(value, Mapping) or (
        dataclasses.is_dataclass(value) and not isinstance(value, type)
    )


def _items(value: Any) -> list[tuple[Any, Any]]:
    if isinstance(value, Mapping):
        return list(value.items())
    return [(field.name, getattr(value, field.name)) for field in dataclasses.fields(value)]


def _check_keys(keys: Mapping[str, str], found: Tensors) -> None:
    missing = [key for key in keys.values() if key not in found]
    unused = [key for key in found if key not in keys.values()]
    if missing:
        raise StageError(
            f"forward returned no output {missing[0]}", f"it returned {', '.join(found)}"
        )
    if unused:
        raise StageError(
            f"the manifest declares {_count(len(keys), 'output')} ({', '.join(keys)}), "
            f"forward returned {_count(len(found), 'tensor')} ({', '.join(found)})",
            f"declare {', '.join(unused)} as well",
        )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _shapes(tensors: Tensors) -> str:
    return ", ".join(
        f"{dtype_name(tensor.dtype)} {list(tensor.shape)}" for tensor in tensors.values()
    )
