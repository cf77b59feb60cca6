"""Arguments of forward in the form of the manifest's ``call``.

A string is the name of an input, ``{tuple: […]}`` a tuple and ``{text: …}`` a string.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

import torch

Tensors = Mapping[str, torch.Tensor]
Call = Mapping[str, Any]
_TRIAL_S = 10.0  # for all forms
_QUOTED_WORD = re.compile(r'"([A-Za-z_]\w*)"')


def arranged(call: Call, inputs: Tensors) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arrange the positional and keyword arguments of a call."""
    positional = tuple(_value(value, inputs) for value in call["args"])
    return positional, {name: _value(value, inputs) for name, value in call["kwargs"].items()}


def _value(value: Any, inputs: Tensors) -> Any:
    if isinstance(value, str):
        return inputs[value]
    if isinstance(value, list):
        return [_value(member, inputs) for member in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {"tuple"}:
        return tuple(_value(value["tuple"], inputs))
    if value.keys() == {"text"}:
        return value["text"]
    return {key: _value(member, inputs) for key, member in value.items()}


def call_hint(module: torch.nn.Module, inputs: Tensors) -> str:
    """Find the ``call`` accepted by a network, or ""."""
    deadline = time.monotonic() + _TRIAL_S
    for what, call in call_forms(list(inputs)):
        if time.monotonic() > deadline:
            break
        positional, named = arranged(call, {name: t.clone() for name, t in inputs.items()})
        with suppress(Exception), torch.no_grad():  # the user's code may raise anything
            module(*positional, **named)
            text = json.dumps({key: value for key, value in call.items() if value})
            return f"forward takes {what}: call: {_QUOTED_WORD.sub(_unquoted, text)}"
    return ""


def _unquoted(match: re.Match[str]) -> str:
    return match[0] if match[1] in ("true", "false", "null") else match[1]


def call_forms(names: list[str]) -> Iterator[tuple[str, Call]]:
    """Yield descriptions and calls in common forms."""
    by_name = {name: name for name in names}
    forms: list[tuple[str, list[Any]]] = [
        ("a list", [names]),
        ("a tuple", [{"tuple": names}]),
        ("a dict", [by_name]),
    ]
    yield "keywords", {"args": [], "kwargs": by_name}
    if len(names) > 1:
        forms.append(("lists", [[name] for name in names]))
        forms += [
            ("a tensor and a list", [names[0], names[1:]]),
            ("a tensor and a tuple", [names[0], {"tuple": names[1:]}]),
            ("a tensor and a dict", [names[0], {name: name for name in names[1:]}]),
            ("a list and a tensor", [names[:-1], names[-1]]),
        ]
    for what, args in forms:
        yield what, {"args": args, "kwargs": {}}
