"""Times of an engine's nodes, in a profile written by ONNX Runtime."""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from buildsys.backends.interface import Figures, shares, slowest
from buildsys.backends.onnxruntime.execution_providers import provider_name

_SUFFIX = "_kernel_time"  # of events
_CONTAINERS = ("If", "Loop", "Scan")  # the nodes of their bodies have times as well
_NAMES = {"float": "float32", "double": "float64"}  # others have ONNX's names
_NARROWEST_FIRST = (
    "int4", "uint4", "float8e4m3fn", "float8e5m2", "int8", "uint8", "bfloat16", "float16",
    "float32", "float64",
)  # fmt: skip
_LARGEST_BYTES = 64 << 20  # of a profile


def read_layers(profile: Path, *, with_providers: bool = False) -> list[Figures]:
    """Return the slowest nodes with their median times, without the first run.

    ``with_providers`` adds the provider of each, and its share of the time of all nodes.
    [] for a profile that is too large. Raises: OSError, ValueError: it cannot be read.
    """
    if profile.stat().st_size > _LARGEST_BYTES:
        return []
    events = json.loads(profile.read_bytes())
    runs = sorted(
        (event["ts"], event["ts"] + event["dur"])
        for event in events
        if event.get("name") == "model_run"
    )
    runs = runs[1:] or runs
    nodes: dict[str, Mapping[str, Any]] = {}
    times_us: dict[str, list[float]] = defaultdict(lambda: [0.0] * len(runs))
    for event in events:
        name = str(event.get("name", ""))
        arguments = event.get("args", {})
        if not name.endswith(_SUFFIX) or arguments.get("op_name") in _CONTAINERS:
            continue
        for number, (begin, end) in enumerate(runs):
            if begin <= event["ts"] <= end:
                name = name.removesuffix(_SUFFIX)
                nodes[name] = arguments
                times_us[name][number] += event["dur"]
                break
    times_ms = {name: statistics.median(found) / 1000 for name, found in times_us.items()}
    layers = [
        {
            "name": name,
            "kind": str(nodes[name].get("op_name", "")),
            "precision": _precision(nodes[name]),
            **timed,
        }
        for name, timed in slowest(times_ms)
    ]
    if with_providers:
        titles = {name: str(arguments.get("provider", "")) for name, arguments in nodes.items()}
        by_title: dict[str, float] = defaultdict(float)
        for name, time_ms in times_ms.items():
            by_title[titles[name]] += time_ms
        of_time = shares(by_title)
        for layer in layers:
            title = titles[str(layer["name"])]
            layer["provider"] = provider_name(title)
            layer["provider_share"] = round(of_time.get(title, 0.0), 4)
    return layers


def _precision(arguments: Mapping[str, Any]) -> str | None:
    """Return the narrowest type of activations or weights among inputs and outputs."""
    outputs = list(_types(arguments.get("output_type_shape", ())))
    found = {*outputs, *_types(arguments.get("input_type_shape", ()))}
    return next((one for one in _NARROWEST_FIRST if one in found), next(iter(outputs), None))


def _types(ports: Iterable[Mapping[str, Any]]) -> list[str]:
    return [_NAMES.get(name, name) for port in ports for name in port]
