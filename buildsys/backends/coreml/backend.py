"""Core ML: packages for macOS and iOS, from captured PyTorch programs.

coremltools reads no ONNX. On any platform it converts, and a finished package can be checked:
inputs, outputs, operators and weights. Only Apple's framework can run it.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

from buildsys.backends.coreml.description import DESCRIPTION, oldest_systems
from buildsys.backends.coreml.package import CoreMlSession, read_engine, write_engine
from buildsys.backends.interface import BuildRequest, Figures, OperatorUse, Options
from buildsys.backends.layer_figures import precision_problem
from buildsys.errors import StageError
from buildsys.system.cpu import cpu_model

RUN_OPTIONS: Options = {"compute_units": "all"}


def prepare(options: Options) -> None:
    """Accept all options; the converter checks them."""


def build(request: BuildRequest) -> Figures:
    """Write the package as one file, and check what it contains."""
    from buildsys.backends.coreml.conversion import check_interface, compare_weights, convert

    options = request.options
    with TemporaryDirectory(dir=request.engine.parent) as folder:
        converted = convert(request, Path(folder))
        write_engine(converted.package, request.engine, converted.interface)
        request.progress("checking the package")
        package = read_engine(request.engine)
        check_interface(package, converted.interface)
        weights = compare_weights(converted, options["precision"])
    names = ("precision", "compute_units", "minimum_deployment_target", "shapes")
    return {
        "settings": {name: options[name] for name in names},
        "profiles": [],
        "weights": weights,
        "messages": [],
    }


def describe(engine: Path, options: Options, operators: tuple[OperatorUse, ...] = ()) -> Figures:
    """Describe a package's inputs, outputs, operators and systems."""
    from buildsys.backends.coreml.conversion import operator_facts

    package = read_engine(engine)
    version = int(package.spec.specificationVersion)
    facts = operator_facts(package)
    shares = facts.get("precision_shares", {}).get("layers", {})
    if problem := precision_problem(options["precision"], shares, 0.0):
        raise StageError(problem, "use precision: fp32 for this network")
    return {
        **facts,
        **{role: package.interface[role] for role in ("inputs", "outputs")},
        "specification": version,
        "systems": oldest_systems(version),
    }


def load(engine: Path, options: Options, operators: tuple[OperatorUse, ...] = ()) -> CoreMlSession:
    """Compile a built engine with the system's framework."""
    if problem := DESCRIPTION.system_problem():
        raise problem
    return CoreMlSession(engine, options["compute_units"])


def device(options: Options) -> Figures:
    """Describe the processor of this Mac, if it is one."""
    if problem := DESCRIPTION.system_problem():
        return {"kind": "xpu", "missing": problem.problem}
    return {"kind": "xpu", "name": cpu_model(), "compute_units": options["compute_units"]}
