"""Engine files of providers that compile nodes: the graph before, or with the results in it."""

from __future__ import annotations

import shutil
from pathlib import Path

import onnxruntime as ort

from buildsys.backends.interface import Options
from buildsys.backends.onnxruntime.engine_session import engine_session_options
from buildsys.backends.onnxruntime.session import FAILURES, explain
from buildsys.errors import StageError, Unavailable

_SINCE = "1.23"  # the first ONNX Runtime that compiles ahead of time
_REMEDY = "remove ep_context: the nodes are then compiled at every load"


def copy_graph(source: Path, engine: Path, data: Path) -> None:
    """Copy a graph and its external data, which has another name then."""
    shutil.copyfile(source, engine)
    source_data = source.with_name(f"{source.name}.data")
    if not source_data.exists():
        return
    import onnx

    shutil.copyfile(source_data, data)
    model = onnx.load(str(source), load_external_data=False)
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = data.name
    onnx.save(model, str(engine))


def compile_graph(source: Path, engine: Path, options: Options, level: str) -> None:
    """Write a graph whose EPContext nodes contain compiled nodes.

    Raises: StageError: no provider has compiled a node. Unavailable: ONNX Runtime is too old.
    """
    if not hasattr(ort, "ModelCompiler"):
        problem = f"onnxruntime {ort.__version__} cannot compile models ahead of time"
        raise Unavailable(problem, f"pip install 'onnxruntime>={_SINCE}', or remove ep_context")
    session = engine_session_options(options, level)
    try:
        compiler = ort.ModelCompiler(
            session,
            str(source),
            embed_compiled_data_into_model=True,  # so the digest of the file covers it
            flags=ort.OrtCompileApiFlags.ERROR_IF_NO_NODES_COMPILED,
        )
        compiler.compile_to_file(str(engine))
    except FAILURES as error:
        refusal = explain("cannot keep what its providers compile", error)
        raise StageError(refusal.problem, refusal.hint or _REMEDY) from error


def unreadable_context(error: StageError) -> StageError:
    """Return the error of providers that cannot load what they have compiled.

    Seen with onnxruntime-openvino 1.24.1 on a CPU.
    """
    problem = f"the providers cannot load what they have compiled themselves: {error.problem}"
    return StageError(problem, _REMEDY)
