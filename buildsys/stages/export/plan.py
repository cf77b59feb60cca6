"""Plan of the export stage: the network as an ONNX graph."""

from collections.abc import Iterator

from buildsys.plan.action import Action
from buildsys.plan.graph_points import size_ranges
from buildsys.plan.model_plan import ModelPlan
from buildsys.system.user_modules import source_of

_REGISTRATIONS = ("symbolics", "translations")  # sections that add operators to an exporter
# imported by the first dynamo export; saves 1.0 s of each later one
DYNAMO_MODULES = (
    "torch.export._trace",
    "torch._functorch.aot_autograd",
    "onnxscript.function_libs.torch_lib.ops",
    "buildsys.backends.parsed_torchlib",
)


def plan_export(model: ModelPlan) -> Iterator[Action]:
    """Plan the export of a network or copy of an ONNX file."""
    spec = model.spec
    functions = model.operators.graph_functions
    libraries: tuple[str, ...] = ()
    code: tuple[str, ...] = ()
    registered: list[str] = []
    dynamo = False
    if model.network.is_onnx:  # the file is copied: its seed, example and exporter decide nothing
        options = {
            "source": spec["source"] if model.network.is_made else {"onnx": spec["source"]["onnx"]},
            "inputs": model.exported.inputs,
            "outputs": spec["outputs"],
            "export": {field: spec["export"][field] for field in ("external_data", "random")},
        }
        libraries = ("onnxruntime",)  # decides the versions of the file
        code = ("buildsys.backends.onnxruntime.file_versions",)
    else:
        sections = {section: spec[section] for section in _REGISTRATIONS if spec[section]}
        options = {**model.network.options, "export": spec["export"], **sections}
        for entry in (entry for entries in sections.values() for entry in entries):
            registered.append(entry.get("module") or source_of(entry["function"]))
        if dynamo := spec["export"]["exporter"] == "dynamo":
            libraries = ("onnxscript", "onnx-ir", "sympy")  # sympy names computed sizes
            options["ranges"] = size_ranges(model.exported)  # for guards on sizes
    yield model.action(
        "export",
        "export/export.json",
        runs_network=True,
        options=options,
        inputs=functions,
        outputs={**model.exported.graph.files(), **model.origins},
        sources=registered,
        after=(model.operators.target,) if functions else (),
        code=code,
        tools=("onnx", *libraries),
        preload=DYNAMO_MODULES if dynamo else (),
    )
