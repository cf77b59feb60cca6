"""Plan of the operators stage: local functions and libraries of custom operators."""

from collections.abc import Iterator

from buildsys.plan.action import Action
from buildsys.plan.model_plan import ModelPlan
from buildsys.system.compilers import language_of, linker_of
from buildsys.system.user_modules import source_of


def plan_operators(model: ModelPlan) -> Iterator[Action]:
    """Plan the functions and libraries of a model with ``ops``."""
    if not model.spec["ops"]:
        return
    operators = model.operators
    functions, libraries = operators.functions, operators.libraries
    compiled = [library for library in libraries.values() if "sources" in library]
    compilers = {linker_of(library["sources"]) for library in compiled}
    compilers |= {language_of(file) for library in compiled for file in library["sources"]}
    native = any(
        flag.endswith("=native") for library in compiled for flag in library.get("flags", ())
    )
    sources = [source_of(f) for named in functions.values() for f in named.values()]
    for library in libraries.values():
        sources += library["sources"] if "sources" in library else [library["file"]]
    options = {"functions": functions, "libraries": {n: dict(e) for n, e in libraries.items()}}
    roles = [*functions, *(f"library.{library}" for library in libraries)]
    yield model.action(
        "operators",
        "operators/operators.json",
        options={section: value for section, value in options.items() if value},
        outputs={role: operators.file(role) for role in roles},
        sources=sources,
        tools=(*(("python", "onnx") if "functions" in functions else ()), *sorted(compilers)),
        devices=("cpu",) if native else (),
    )
