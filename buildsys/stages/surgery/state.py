"""Data passed between the steps of surgery."""

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
class Context:
    """Facts common to all steps of a target."""

    project: Path
    scratch: Path
    dims: Mapping[str, Mapping[str, int]]  # case -> values of all dimensions
    tolerance: Mapping[str, float | None]  # against golden outputs; empty if no step needs it
    seed: int
    runtime: Runtime
    progress: Callable[[str], None]


@dataclass(frozen=True)
class GraphState:
    """A graph with its declared inputs, golden cases and computed outputs."""

    path: Path
    inputs: Inputs
    golden: Mapping[str, Case]
    computed: Mapping[str, Outputs]


@dataclass(frozen=True)
class StepCases:
    """The golden cases after a step, and the new graph's expected outputs."""

    golden: Mapping[str, Case]
    expected: Mapping[str, Outputs]
    limits: Mapping[str, float | None] | None = None  # None: those of two forms of one graph
    against: str = "the graph before it"
    warnings: tuple[str, ...] = ()
    basis: float | None = None  # relative error of the old graph, if it computed golden outputs
