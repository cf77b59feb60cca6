"""New weights for an earlier engine of the same graph, instead of a build.

An engine is refitted only if its graph has the same skeleton and every changed initializer can be
replaced in it by name. Everything else is built, with the reason in the result.

Source: TensorRT developer guide, "Refitting an Engine".
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from buildsys.backends.interface import BuildRequest, EarlierBuild, Figures
from buildsys.backends.tensorrt import version_adapter
from buildsys.backends.tensorrt.build import build_engine
from buildsys.backends.tensorrt.library import TensorRTLibrary, is_strong
from buildsys.backends.tensorrt.log import load_failure, log_of
from buildsys.errors import StageError
from buildsys.onnx_graphs.graph_reader import WeightFile, read_weights
from buildsys.system.files import sha256_of

# facts of a build that depend on the graph's skeleton and the engine's fields only
_INHERITED = (
    "settings", "profiles", "inputs", "outputs", "layers", "precision_shares", "precision_of",
)  # fmt: skip
_DEPENDING = ("sparsity", "strip_plan", "refit_identical", "refit_individual")
_MOST_NAMED = 3  # names in a message


def build_or_refit(library: TensorRTLibrary, request: BuildRequest) -> Figures:
    """Refit an earlier engine if there is a suitable one, else build one."""
    if not request.options["refit"]:
        return build_engine(library, request)
    if request.definition:
        reason = "the weights of a network defined by hand have no file to compare"
        return {**build_engine(library, request), "not_refitted": reason}
    begun = time.perf_counter()
    reason = _obstacle(request) if request.earlier else ""
    weights = read_weights(request.onnx)
    digests = {name: weight.digest for name, weight in weights.weights.items()}
    basis = {"refit_basis": {"skeleton": weights.skeleton, "weights": digests}}
    if request.earlier and not reason:
        request.progress("refitting an earlier engine")
        try:
            earlier, record = _same_graph(request.earlier, weights.skeleton)
            messages = _refit(library, request, earlier.engine, weights, record)
        except StageError as failure:
            reason = failure.problem
            request.engine.unlink(missing_ok=True)
            request.progress(f"building, as no earlier engine can be refitted: {reason}")
        else:
            origin = {name: record[name] for name in ("engine_sha256", "started", "build_seconds")}
            return {
                **{name: record[name] for name in _INHERITED if name in record},
                **basis,
                "refitted_from": origin,
                "phases": {"refit": round(time.perf_counter() - begun, 3)},
                "messages": messages,
            }
    facts = build_engine(library, request)
    return {**facts, **basis, **({"not_refitted": reason} if reason else {})}


def _obstacle(request: BuildRequest) -> str:
    """Return a reason why new weights need a new build, "" if there is none."""
    options = request.options
    depending = {
        "network hook": options["network"],
        "layers in fp32": not is_strong(options) and options.get("auto"),
        "calibrated ranges": request.calibration,
        "custom operators": request.operators,
        **{f"field {name}": options[name] for name in _DEPENDING},
    }
    names = [name for name, applies in depending.items() if applies]
    return f"its {' and '.join(names)} may depend on the weights" if names else ""


def _same_graph(
    builds: tuple[EarlierBuild, ...], skeleton: str
) -> tuple[EarlierBuild, Mapping[str, Any]]:
    """Find the newest earlier build of a graph with this skeleton, and its result."""
    for earlier in builds:
        with suppress(OSError, ValueError, KeyError, TypeError):  # removed since, or older
            record = json.loads(earlier.result.read_text(encoding="utf-8"))
            if record["refit_basis"]["skeleton"] != skeleton:
                continue
            if sha256_of(earlier.engine) == record["engine_sha256"]:
                return earlier, record
    raise StageError("no earlier engine was built from this graph with other weights")


def _refit(
    library: TensorRTLibrary,
    request: BuildRequest,
    file: Path,
    graph: WeightFile,
    record: Mapping[str, Any],
) -> list[str]:
    """Write the engine of ``file`` with the weights of ``graph``; return TensorRT's warnings."""
    log = log_of(library)
    with log.collected() as messages:
        runtime = library.trt.Runtime(log.logger)
        runtime.engine_host_code_allowed = bool(request.options["version_compatible"])
        engine = runtime.deserialize_cuda_engine(file.read_bytes())
        if engine is None:
            raise load_failure("the earlier engine", messages, library.release)
        refitter = library.trt.Refitter(engine, log.logger)
        before, weights = record["refit_basis"]["weights"], graph.weights
        changed = {name for name in weights if before.get(name) != weights[name].digest}
        if fixed := changed.difference(refitter.get_all_weights()):
            raise StageError(f"the earlier engine cannot replace {_names(fixed)}")
        arrays = version_adapter.set_weights(library, refitter, request.onnx, weights, changed)
        if missing := refitter.get_missing_weights():
            raise StageError(f"the graph has no weights {_names(missing)}")
        if not refitter.refit_cuda_engine() or messages.errors:
            raise StageError(f"TensorRT did not refit: {messages.error_text('without a reason')}")
        del refitter, arrays  # before the engine
        content = bytes(version_adapter.serialize_refitted(library, engine))
        del engine
        if runtime.deserialize_cuda_engine(content) is None:
            raise load_failure("the refitted engine", messages, library.release)
        request.engine.write_bytes(content)
        return list(dict.fromkeys(messages.warnings))


def _names(names: Collection[str]) -> str:
    return ", ".join([*sorted(names)[:_MOST_NAMED], *(["…"] if len(names) > _MOST_NAMED else [])])
