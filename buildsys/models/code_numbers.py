"""Numbers in the code of a network, which its branches may compare sizes with.

A tracer follows one side of a branch. A random draw seldom meets ``length == 512`` or the key of a
table, and a large input cannot be compared at all sizes.
"""

from collections.abc import Iterator, Mapping
from types import CodeType, FunctionType
from typing import Any

from torch import nn

from buildsys.system.code_kinds import is_user_code

_TABLES = (tuple, list, set, frozenset, dict)
_MOST_MEMBERS = 64  # of a table


def code_numbers(network: nn.Module) -> list[int]:
    """List the integers in the code, globals and attributes of layers, and their successors.

    The user's layers come before those of libraries, PyTorch's have none.
    """
    layers = [part for part in network.modules() if not type(part).__module__.startswith("torch.")]

    def is_other(layer: nn.Module) -> bool:
        file = getattr(getattr(layer.forward, "__code__", None), "co_filename", "")
        return not is_user_code(file)

    numbers = [number for layer in sorted(layers, key=is_other) for number in _numbers_of(layer)]
    return [*dict.fromkeys(size for number in numbers for size in (number, number + 1))]


def _numbers_of(layer: nn.Module) -> Iterator[int]:
    for function in vars(type(layer)).values():
        if isinstance(function, FunctionType):
            yield from _numbers_in_code(function.__code__, function.__globals__, set())
    yield from _numbers_in([value for name, value in vars(layer).items() if name[0] != "_"])


def _numbers_in_code(
    code: CodeType, names: Mapping[str, Any], seen: set[CodeType]
) -> Iterator[int]:
    seen.add(code)
    yield from _numbers_in(code.co_consts)
    inner = [value for value in code.co_consts if isinstance(value, CodeType)]
    for name in code.co_names:
        value = names.get(name)
        if isinstance(value, FunctionType) and value.__globals__ is names:
            inner.append(value.__code__)
        else:
            yield from _numbers_in([value])
    for other in inner:
        if other not in seen:
            yield from _numbers_in_code(other, names, seen)


def _numbers_in(values: Any) -> Iterator[int]:
    for value in values:
        if type(value) is int:
            yield value
        elif isinstance(value, _TABLES) and len(value) <= _MOST_MEMBERS:
            yield from _numbers_in(value)
