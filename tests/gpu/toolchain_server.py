"""Server for stages and backends in a toolchain: JSON lines on stdin and stdout.

Needs numpy, onnx, cuda-bindings and a TensorRT only, like the stages themselves.
"""

import importlib
import json
import os
import sys
import traceback
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from buildsys.backends.cuda_device import Device
from buildsys.backends.interface import BuildRequest, Calibration, EarlierBuild, load_backend
from buildsys.errors import BuildsysError
from buildsys.onnx_graphs.tensors import load_tensors, save_tensors
from buildsys.workers.job import Job

PATHS = ("onnx", "engine", "project", "timing_cache")


def version(request: dict[str, Any]) -> str:
    return str(importlib.import_module("tensorrt").__version__)


def stage(request: dict[str, Any]) -> dict[str, Any]:
    job = request["job"]
    files = {
        kind: {role: Path(path) for role, path in job.pop(kind).items()}
        for kind in ("inputs", "outputs")
    }
    module = importlib.import_module(f"buildsys.stages.{job['stage']}.stage")
    return asdict(module.run(Job(**job, **files, project=Path(request["project"]))))


def build(request: dict[str, Any]) -> Any:
    """Build an engine; return its facts, its progress messages and its last count."""
    fields = {**request["request"]}
    fields |= {name: Path(fields[name]) for name in PATHS if fields.get(name)}
    if fields.get("calibration"):
        given = fields["calibration"]
        fields["calibration"] = Calibration(
            Path(given["batches"]), given["algorithm"], Path(given["cache"])
        )
    fields["earlier"] = tuple(
        EarlierBuild(Path(engine), Path(result)) for engine, result in fields.get("earlier", ())
    )
    said: list[str] = []
    counted: list[tuple[int, int, str]] = []
    fields["progress"], fields["count"] = said.append, lambda *found: counted.append(found)
    asked = BuildRequest(**fields)
    backend = load_backend("tensorrt")
    backend.prepare(asked.options)
    built = backend.build(asked)
    return {
        **built,
        "said": said,
        "counted": counted[-1:],
        **(backend.describe(asked.engine, asked.options) if request.get("describe", True) else {}),
    }


def run(request: dict[str, Any]) -> Any:
    """Run an engine on a file's tensors; return its profiles."""
    backend = load_backend("tensorrt")
    session = backend.load(Path(request["engine"]), request["options"])
    try:
        save_tensors(
            Path(request["outputs"]),
            session.run(load_tensors(Path(request["inputs"])), request.get("profile")),
        )
        return session.profiles
    finally:
        session.close()


def inspect(request: dict[str, Any]) -> Any:
    """Return the inspector's raw answer."""
    trt = importlib.import_module("tensorrt")
    from buildsys.backends.tensorrt.library import library_of, log_of

    runtime = trt.Runtime(log_of(library_of(trt)).logger)
    engine = runtime.deserialize_cuda_engine(Path(request["engine"]).read_bytes())
    return engine.create_engine_inspector().get_engine_information(trt.LayerInformationFormat.JSON)


def hold(request: dict[str, Any]) -> int:
    """Allocate most of the GPU's memory until a call with ``release``."""
    while HELD:
        HELD.pop().close()
    if request.get("release"):
        return 0
    device = Device(0)
    HELD.append(device)
    held = 0
    with device.current():
        for size in (8 << 30, 1 << 30, 128 << 20):
            with suppress(BuildsysError):
                while True:
                    device.allocate(size)
                    held += size
    return held


def answer(request: dict[str, Any]) -> dict[str, Any]:
    try:
        return {"value": OPERATIONS[request["op"]](request)}
    except BuildsysError as error:
        return {"error": str(error), "kind": type(error).__name__}
    except Exception:
        return {"crash": traceback.format_exc()}


OPERATIONS = {each.__name__: each for each in (version, stage, build, run, inspect, hold)}
HELD: list[Device] = []

if __name__ == "__main__":
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # C++ libraries print to stdout as well
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), file=answers, flush=True)
