"""A graph between two steps of surgery, and all that a step may use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from buildsys.manifest.surgery_interface import Inputs
from buildsys.onnx_graphs.tensors import Case, Tensor
from buildsys.stages.common.equivalence import Runtime

Step = Mapping[str, Any]
Outputs = Mapping[str, Tensor]


@dataclass(frozen=True)
class Setting:
    """What all steps of a target share."""

    project: Path
    scratch: Path
    dims: Mapping[str, Mapping[str, int]]  # case -> values of all dimensions
    tolerance: Mapping[str, float | None]  # against golden outputs; empty where no step needs it
    seed: int
    runtime: Runtime
    progress: Callable[[str], None]


@dataclass(frozen=True)
class Point:
    """A graph with its inputs as the manifest has them, its golden cases, and what it computes for them."""

    path: Path
    inputs: Inputs
    golden: Mapping[str, Case]
    computed: Mapping[str, Outputs]


@dataclass(frozen=True)
class Carried:
    """The golden cases after a step, and what the graph must then compute for their inputs."""

    golden: Mapping[str, Case]
    expected: Mapping[str, Outputs]
    limits: Mapping[str, float | None] | None = None  # None: those of two forms of one graph
    against: str = "the graph before it"
    warnings: tuple[str, ...] = ()
    basis: float | None = (
        None  # relative error of what the graph before gives for golden outputs, where it had to
    )
