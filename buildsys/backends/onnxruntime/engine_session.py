"""Sessions of engines with their execution providers."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import onnxruntime as ort

from buildsys.backends.cuda_gpus import find_driver
from buildsys.backends.interface import OperatorUse, Options
from buildsys.backends.onnxruntime.execution_providers import (
    CPU,
    EngineProvider,
    Provider,
    engine_providers,
    openvino_plugin_options,
    runs_on_cpu_only,
)
from buildsys.backends.onnxruntime.session import FAILURES, OrtGraph, explain, session_options
from buildsys.errors import StageError, Unavailable
from buildsys.system.cpu import usable_cores

_SPINNING = ("session.intra_op.allow_spinning", "session.inter_op.allow_spinning")
_MODES = {"sequential": "ORT_SEQUENTIAL", "parallel": "ORT_PARALLEL"}


def check_providers(options: Options) -> None:
    """Check the execution providers and their options."""
    for selected in engine_providers(options):
        provider = selected.provider
        is_there = provider.title in ort.get_available_providers() or (
            provider.plugin and _has_plugin(provider.title, provider.plugin)
        )
        if not is_there:
            problem = f"the installed onnxruntime {ort.__version__} has no {provider.name} provider"
            raise Unavailable(problem, provider.install)
        if provider.needs_nvidia and not (driver := find_driver()).gpus:
            problem = f"the {provider.name} provider needs an NVIDIA GPU, and here {driver.missing}"
            raise Unavailable(problem, driver.remedy or "run it on a machine with a GPU")
    add_providers(ort.SessionOptions(), options)


def engine_session_options(options: Options, optimization: str) -> ort.SessionOptions:
    """Make the session options of an engine, with its providers."""
    # an explicit number of threads: for 0, ONNX Runtime also pins them to cores, which other
    # libraries then share
    session = session_options(
        optimization=optimization,
        intra_op_threads=int(options["intra_op_threads"]) or usable_cores(),
        inter_op_threads=options["inter_op_threads"],
    )
    session.execution_mode = getattr(ort.ExecutionMode, _MODES[options["execution_mode"]])
    for entry in _SPINNING:
        session.add_session_config_entry(entry, "1" if options["spinning"] else "0")
    for entry, value in options["session_config"].items():
        session.add_session_config_entry(entry, value)
    add_providers(session, options)
    return session


def add_providers(session: ort.SessionOptions, options: Options) -> None:
    """Add an engine's providers to ``session``; the CPU's is always the last one."""
    for selected in engine_providers(options):
        if selected.name == CPU:
            continue
        values = {**_own_options(selected, options), **selected.options}
        if selected.provider.needs_nvidia:
            load_cuda_libraries()
        try:
            if is_plugin(selected.provider):
                devices = _plugin_devices(selected)
                if selected.name == "openvino":
                    values = openvino_plugin_options(values, _device_type(devices[0]))
                session.add_provider_for_devices(devices, values)
            else:
                session.add_provider(selected.provider.title, values)
        except ort.capi.onnxruntime_pybind11_state.InvalidArgument as error:
            text = f"onnxruntime {ort.__version__} cannot start its {selected.name} provider"
            hint = "its device is missing here, or an option is wrong: the log says which"
            raise Unavailable(text, hint) from error
        except FAILURES as error:
            reason = str(error).strip().splitlines()[0].rpartition("&) ")[2]
            raise StageError(
                f"ONNX Runtime {ort.__version__} refuses the options of {selected.name}: {reason}",
                "remove the option, or install the version that has it",
            ) from error


@cache
def load_cuda_libraries() -> None:
    """Load CUDA and cuDNN from the packages next to onnxruntime, such as those of PyTorch.

    The loader of the system does not search there; without them, no provider of NVIDIA starts.
    """
    with redirect_stdout(sys.stderr):  # it prints what it does not find
        ort.preload_dlls()


def _own_options(selected: EngineProvider, options: Options) -> dict[str, str]:
    """Return the provider options that an engine's settings imply."""
    if selected.name == "qnn" and "backend_path" not in selected.options:
        return {"backend_type": "htp"}  # QNN has no default for the processor as its device
    if selected.name != "openvino":
        return {}
    own = {"device_type": "CPU"}
    if options.get("precision") == "fp32" and selected.options.get("device_type", "CPU") == "CPU":
        own["precision"] = "FP32"  # OpenVINO may choose bfloat16 on processors that have it
    return own


def open_engine(
    model: Path, session: ort.SessionOptions, options: Options, operators: tuple[OperatorUse, ...]
) -> OrtGraph:
    """Open a session; ``session`` has the engine's providers."""
    titles = ["CPUExecutionProvider"] if runs_on_cpu_only(options) else None
    graph = OrtGraph(model, session, titles, [use.path for use in operators if use.path])
    # it falls back to the CPU with no more than a log line
    started = graph.session.get_providers()
    for selected in engine_providers(options):
        if selected.provider.title not in started:
            raise Unavailable(
                f"ONNX Runtime could not start its {selected.name} provider; its log says why",
                "install the CUDA and cuDNN versions of this onnxruntime-gpu"
                if selected.provider.needs_nvidia
                else selected.provider.install,
            )
    return graph


@cache
def _has_plugin(title: str, distribution: str) -> bool:
    """Register a provider's plugin with ONNX Runtime, if it is installed."""
    try:
        module: Any = import_module(distribution.replace("-", "_"))
    except ModuleNotFoundError:
        return False
    try:
        ort.register_execution_provider_library(title, module.get_library_path())
    except (*FAILURES, AttributeError, OSError) as error:  # also of an older ONNX Runtime
        reason = str(error).strip().splitlines()[0]
        problem = f"onnxruntime {ort.__version__} cannot load {distribution}: {reason}"
        raise Unavailable(problem, f"pip install -U {distribution} onnxruntime") from error
    return True


def is_plugin(provider: Provider) -> bool:
    """Check whether the provider is a plugin, not part of onnxruntime.

    ONNX Runtime 1.31 counts a registered plugin with a device as available, 1.24 does not.
    """
    if provider.title not in ort.get_available_providers():
        return True
    devices = ort.get_ep_devices() if provider.plugin and hasattr(ort, "get_ep_devices") else ()
    return any(device.ep_name == provider.title for device in devices)


def _plugin_devices(selected: EngineProvider) -> list[Any]:
    """Find the devices of a plugin provider that its ``device_type`` names."""
    provider, kind = selected.provider, selected.options.get("device_type", "")
    devices = [device for device in ort.get_ep_devices() if device.ep_name == provider.title]
    chosen = [device for device in devices if kind in ("", _device_type(device))]
    if not devices:
        problem = f"{provider.plugin} supports no device of this machine"
        raise Unavailable(problem, provider.elsewhere)
    if not chosen:
        kinds = ", ".join(map(_device_type, devices))
        problem = f"{provider.plugin} finds no {kind} here, only {kinds}"
        raise Unavailable(problem, "choose one of these as device_type, or run it elsewhere")
    return chosen[:1]


def _device_type(device: Any) -> str:
    return str(device.ep_metadata.get("ov_device") or device.device.type.name)


_SINCE = "1.23"  # the first ONNX Runtime that compiles ahead of time


def compile_graph(source: Path, engine: Path, options: Options, level: str) -> None:
    """Write a graph whose EPContext nodes contain compiled nodes."""
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
        hint = "remove ep_context: the nodes are then compiled at every load"
        raise StageError(refusal.problem, refusal.hint or hint) from error
