"""The fields of an ONNX Runtime engine, and checks across them."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, WithJsonSchema

from buildsys.backends.onnxruntime.execution_providers import (
    CPU,
    OTHER_OPTIONS,
    PROVIDERS,
    REFUSED_OPTIONS,
    Provider,
    known_providers,
    provider_entry,
)
from buildsys.manifest.problem import Problems, expected, show_value, suggest
from buildsys.manifest.schema.base import form
from buildsys.manifest.schema.engines import EngineBase
from buildsys.manifest.value_tree import FieldPath
from buildsys.manifest.view import ManifestView


def _is_provider(entry: object) -> bool:
    if isinstance(entry, str):
        return True
    if not isinstance(entry, dict) or len(entry) != 1:
        return False
    (options,) = entry.values()
    return options is None or isinstance(options, dict)


_NAMES = {"type": "string", "enum": [*PROVIDERS]}
_WITH_OPTIONS = {"type": "object", "propertyNames": _NAMES, "minProperties": 1, "maxProperties": 1}
Providers = Annotated[
    tuple[Any, ...],
    form(
        "a list of providers such as [cuda, cpu] or [{openvino: {num_streams: 2}}, cpu]",
        lambda value: isinstance(value, tuple) and bool(value) and all(map(_is_provider, value)),
    ),
    WithJsonSchema({"type": "array", "items": {"anyOf": [_NAMES, _WITH_OPTIONS]}, "minItems": 1}),
]


class OnnxRuntimeEngine(EngineBase):
    """An ONNX Runtime session, saved as an optimized model."""

    backend: Literal["onnxruntime"] = Field(description="ONNX Runtime.")
    provider: Literal["cpu", "cuda"] = Field(
        "cpu", description="Execution provider; with cuda, unsupported nodes run on the CPU."
    )
    providers: Providers | None = Field(
        None,
        description="Execution providers, preferred first; without cpu, nodes that run there fail.",
    )
    ep_context: bool = Field(
        False, description="Keep what the providers compile in the engine file."
    )
    quantization: Literal["static", "dynamic"] = Field(
        "static", description="Of int8: ranges by calibration, or at run time."
    )
    optimized: bool = Field(False, description="Fuse the graph as the section optimize says.")
    intra_op_threads: int = Field(
        0, ge=0, description="Threads within an operator; 0: one per core."
    )
    inter_op_threads: int = Field(
        1, ge=1, description="Concurrent operators, with execution_mode: parallel."
    )
    graph_optimization_level: Literal["disable", "basic", "extended", "all"] = Field(
        "all", description="Optimization of the graph; lower if the engine cannot be loaded again."
    )
    execution_mode: Literal["sequential", "parallel"] = Field(
        "sequential", description="Order of operators."
    )
    spinning: bool = Field(True, description="Let threads spin: lower latency, a busy core.")
    session_config: dict[str, str] = Field(
        {}, description="Entries by key; session.x64quantprecision is 1 unless set."
    )


ENGINE = OnnxRuntimeEngine
_REFUSED = "remove it: files and streams are not in the key; ep_context keeps what is compiled"


def problems(view: ManifestView, path: FieldPath, engine: dict[str, Any]) -> Problems:
    """Yield unknown providers and options, and fields that contradict each other."""
    precision, quantization = engine.get("precision", "fp32"), engine.get("quantization")
    if engine.get("optimized") is True:
        if view.get("optimize") is None:
            hint = "add optimize: {model_type: bert}, with the type of your network"
            text = "this model has no section optimize"
            yield view.problem(view.place_of(path, "optimized"), text, hint, of_key=True)
        if precision not in ("fp32", "int4") and quantization != "dynamic":
            text = f"not supported with precision: {precision}"
            hint = "use fp32, int4, or int8 with quantization: dynamic"
            yield view.problem((*path, "optimized"), text, hint, of_key=True)
    if engine.get("ep_context") is True:
        named = {provider.name for provider in known_providers(engine)}
        able = [name for name, provider in PROVIDERS.items() if provider.context_library]
        if not named & {*able}:
            text = f"not supported by {', '.join(sorted(named)) or 'these providers'}"
            hint = f"remove it, or use one of {', '.join(able)}"
            yield view.problem((*path, "ep_context"), text, hint, of_key=True)
    entries = engine.get("providers")
    if not isinstance(entries, list):
        return
    names: list[str] = []
    for number, entry in enumerate(entries):
        place = (*path, "providers", number)
        name, options = provider_entry(entry)
        with_options = isinstance(entry, dict)
        if name not in PROVIDERS:
            hint = suggest(name, PROVIDERS, what="providers")
            field = (*place, name) if with_options else place
            text = f"unknown execution provider {show_value(name)}"
            yield view.problem(field, text, hint, of_key=with_options)
        elif name in names or names[-1:] == [CPU]:
            text = f"{name} is listed twice or after cpu, which takes all nodes"
            yield view.problem(place, text, "list each provider once, cpu last")
        elif with_options:
            yield from _option_problems(view, (*place, name), PROVIDERS[name], options)
        names.append(name)


def _option_problems(
    view: ManifestView, path: FieldPath, provider: Provider, options: Mapping[str, Any]
) -> Problems:
    for name, value in options.items():
        if name == OTHER_OPTIONS:
            texts = isinstance(value, dict) and all(isinstance(v, str) for v in value.values())
            if not texts:
                text = expected("a map of texts by option", value)
                yield view.problem((*path, name), text, 'such as {new_option: "1"}')
        elif name in REFUSED_OPTIONS:
            text = f"{name} cannot be set here"
            yield view.problem((*path, name), text, _REFUSED, of_key=True)
        elif name not in provider.options:
            hint = suggest(name, provider.options, what="options") or "remove it"
            hint += f"; an option of another version goes into {OTHER_OPTIONS}: {{{name}: …}}"
            text = f"{provider.name} has no option {show_value(name)}"
            yield view.problem((*path, name), text, hint, of_key=True)
        elif value not in (choices := provider.choices.get(name, (value,))):
            text = expected(f"one of {', '.join(choices)}", value)
            yield view.problem((*path, name), text, suggest(str(value), choices, what="values"))
        elif not isinstance(value, str | int | bool):
            text = expected("a text, an integer, true or false", value)
            yield view.problem((*path, name), text)
