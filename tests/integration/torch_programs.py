"""Builds of captured PyTorch programs, and the outputs that they must have."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from engine_jobs import DIMS, INPUTS

from buildsys.backends.interface import BuildRequest, EarlierBuild, load_backend
from buildsys.manifest.schema.engines import engine_spec
from buildsys.onnx_graphs.tensors import Tensor
from buildsys.system.files import sha256_of


def captured_by_hand(folder: Path, network: torch.nn.Module) -> Path:
    x = torch.zeros(2, 3, 8, 8)
    batch = torch.export.Dim.DYNAMIC(min=1, max=8)
    program = torch.export.export(network.eval(), (x,), dynamic_shapes=({0: batch},), strict=False)
    tensor = {"dtype": "float32", "shape": ["batch", 3, 8, 8]}
    ports = {"inputs": [{"name": "x", **tensor}], "outputs": [{"name": "y", **tensor}]}
    torch.export.save(program, folder / "p.pt2", extra_files={"ports.json": json.dumps(ports)})
    return folder / "p.pt2"


def build_request(folder: Path, source: Path, **fields: Any) -> BuildRequest:
    folder.mkdir(exist_ok=True)
    engine = {"name": "e", "backend": "torch", **fields}
    options = engine_spec("torch").model_validate(engine).model_dump()
    inputs = {name: {**tensor, "dtype": "float32"} for name, tensor in INPUTS.items()}
    return BuildRequest("m", Path(), folder / "engine.pt2", options, inputs, DIMS, program=source)


def build_recorded(asked: BuildRequest) -> dict[str, Any]:
    """Build an engine with its record, as a later refit needs it."""
    figures = load_backend("torch").build(asked)
    digests = {path.name: {"sha256": sha256_of(path)} for path in asked.engine.parent.iterdir()}
    origin = {"engine_sha256": "0", "started": "now", "build_seconds": 1, "files": digests}
    record_of(asked.engine).result.write_text(json.dumps({**figures, **origin}))
    return figures


def record_of(engine: Path) -> EarlierBuild:
    return EarlierBuild(engine, engine.parent / "engine.json")


def with_doubled_weights(source: Path, folder: Path) -> Path:
    files = {"ports.json": ""}
    program = torch.export.load(source, extra_files=files)
    for parameter in program.parameters():
        parameter.data *= 2
    torch.export.save(program, folder / "other.pt2", extra_files=files)
    return folder / "other.pt2"


def expected(source: Path, inputs: Mapping[str, Tensor]) -> np.ndarray:
    return output_of(torch.export.load(source), inputs)


def output_of(program: torch.export.ExportedProgram, inputs: Mapping[str, Tensor]) -> np.ndarray:
    result = program.module()(torch.from_numpy(inputs["x"].array))
    return (result[0] if isinstance(result, tuple) else result).detach().numpy()
