"""Packages of AOTInductor, for the CPU.

A package checks nothing that it gets, and reads memory as it lies: types, shapes and layouts are
checked here, and its constants are in a file of their own, which a refit writes again.

Source: PyTorch documentation, "AOTInductor: Ahead-Of-Time Compilation for Torch.Export-ed Models".
"""

import json
import re
import zipfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch

from buildsys.backends.captured_program import named_outputs, one_sentence, ordered_inputs
from buildsys.backends.declared_ports import check_inputs, ports_of
from buildsys.backends.interface import BuildRequest, Profiles, Run
from buildsys.backends.torch.programs import (
    Program,
    check_version,
    constants_in_use,
    example_inputs,
    read_weights,
    weights_file,
)
from buildsys.errors import StageError, Unavailable
from buildsys.onnx_graphs.tensors import Tensor
from buildsys.system.cpu import engine_instructions

_MODEL, _INTERFACE = "model", "buildsys_interface"  # names in the package
_COMPILER_HINT = (
    "the log has the complete message; another exporter or backend may take the network"
)
# in the generated wrapper, without declarations
_CALLS = re.compile(r"^(?!extern).*?\b(aoti_torch_cpu_\w+|cpp_fused_\w+)\(", re.MULTILINE)


def compile_package(
    program: Program, interface: Mapping[str, Any], request: BuildRequest
) -> list[str]:
    """Write the package; return the names of the kernels that it calls."""
    from torch._inductor import aoti_compile_and_package
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        compiler = get_cpp_compiler()
    except InvalidCxxCompiler as error:
        text = "AOTInductor needs a C++ compiler, and there is none"
        raise Unavailable(text, "install g++, or name a compiler in the variable CXX") from error
    request.progress(f"compiling with {Path(compiler).name}")
    settings: dict[str, Any] = {
        "aot_inductor.package_constants_in_so": False,
        "aot_inductor.metadata": {_INTERFACE: json.dumps(interface, sort_keys=True)},
        "always_keep_tensor_constants": True,  # else the code contains small constants
        "cpp.dynamic_threads": True,  # else the number of threads here is compiled in
    }
    program.example_inputs = (example_inputs(interface, request), {})
    with one_sentence(f"model {request.model}: AOTInductor cannot compile it", _COMPILER_HINT):
        aoti_compile_and_package(
            program, package_path=str(request.engine.absolute()), inductor_configs=settings
        )
    with zipfile.ZipFile(request.engine) as archive:
        names = [name for name in archive.namelist() if name.endswith(".wrapper.cpp")]
        return _CALLS.findall(archive.read(names[0]).decode()) if names else []


def write_weights(program: Program, engine: Path) -> None:
    """Write the constants that the package does not contain."""
    constants = constants_in_use(program)
    names = sorted(replaceable(engine))
    torch.save({name: constants[name].detach() for name in names}, weights_file(engine))


def replaceable(engine: Path) -> Collection[str]:
    """Return the names of the constants that are not compiled in."""
    names: list[str] = _loader(engine).get_constant_fqns()
    return names


def _loader(engine: Path) -> Any:
    """Load a package. Running it before its constants are loaded is a crash."""
    try:
        return torch._C._aoti.AOTIModelPackageLoader(str(engine), _MODEL, False, 1, -1)
    except RuntimeError as error:
        text = " ".join(str(error).split())[:200]
        raise StageError(f"PyTorch cannot load {engine.name}: {text}", "build it again") from error


def read_interface(engine: Path) -> dict[str, Any]:
    """Read a package's facts about itself, without loading its code.

    Raises: StageError: it is damaged, or was not built here.
    """
    load: Any = torch._C._aoti.AOTIModelPackageLoader.load_metadata_from_package  # type: ignore[attr-defined]
    try:
        metadata = dict(load(str(engine), _MODEL))
    except RuntimeError as error:
        text = f"PyTorch cannot read {engine.name}: it is damaged, or no package of AOTInductor"
        raise StageError(text, "build it again") from error
    if _INTERFACE not in metadata:
        text = f"{engine.name} has no names of inputs and outputs, which a build here writes"
        raise StageError(text, "build it again")
    interface: dict[str, Any] = json.loads(metadata[_INTERFACE])
    return interface


class PackageSession:
    """A loaded package."""

    profiles: Profiles = ()

    def __init__(self, engine: Path, threads: int) -> None:
        interface = read_interface(engine)
        check_version(engine, interface)
        if missing := {*interface["instructions"]} - {*engine_instructions()}:
            # PyTorch only warns, and the code would crash
            text = f"{engine.name} was compiled for processors with {', '.join(sorted(missing))}"
            raise StageError(text, "build it on this kind of processor")
        self._engine, self._threads = engine, threads
        self._dims: Mapping[str, Mapping[str, int]] = interface["dims"]
        self.inputs, self.outputs = ports_of(interface["inputs"]), ports_of(interface["outputs"])
        if threads:
            torch.set_num_threads(threads)  # the whole process's
        self._weights = read_weights(weights_file(engine), interface["constants"])
        self._loader = _loader(engine)
        with one_sentence(f"{engine.name} does not take its weights", "build it again"):
            # the package keeps pointers into these tensors
            self._loader.load_constants(self._weights, False, True, True)

    def run(self, inputs: Mapping[str, Tensor], profile: int | None = None) -> dict[str, Tensor]:
        """Return the outputs by name."""
        return named_outputs(self.outputs, self._call(self._feeds(inputs)))

    def bind(self, inputs: Mapping[str, Tensor], profile: int | None = None) -> Run:
        """Return a call that drops its outputs."""
        feeds, run = self._feeds(inputs), self._loader.run
        self._call(feeds)  # reports wrong inputs
        return lambda: run(feeds)

    def close(self) -> None:
        """Free the package and its constants."""
        del self._loader, self._weights

    def duplicate(self) -> "PackageSession":
        """Make a session with separate memory."""
        return PackageSession(self._engine, self._threads)

    def _call(self, feeds: list[torch.Tensor]) -> Any:
        try:
            return self._loader.run(feeds)
        except RuntimeError as error:
            text = " ".join(str(error).split())[:200]
            raise StageError(f"PyTorch cannot run the engine: {text}", "see the log") from error

    def _feeds(self, inputs: Mapping[str, Tensor]) -> list[torch.Tensor]:
        """Return the inputs in order, contiguous."""
        check_inputs(self.inputs, self._dims, inputs)
        return ordered_inputs(self.inputs, inputs)
