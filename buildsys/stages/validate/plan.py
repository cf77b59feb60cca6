"""Plan of the validate stage: graphs against golden outputs."""

from collections.abc import Iterator
from typing import Any

from buildsys.plan.action import Action, FileRef
from buildsys.plan.model_plan import ModelPlan

_TOLERANCE = ("rtol", "cosine", "atol", "top1", "spread_error")


def plan_validate(model: ModelPlan) -> Iterator[Action]:
    """Plan the check of the exported and the simplified graph."""
    name, section = model.name, model.spec["validate"]
    network, first, final = model.exported, model.unsimplified, model.final
    options: dict[str, Any] = {
        "tolerance": {field: section[field] for field in _TOLERANCE},
        **first.compare,
        "cases": first.cases(section["cases"]),
    }
    golden = first.golden(options["cases"])
    after = [first.graph.target, first.golden_target, f"simplify:{name}"]
    if final.golden_folder != first.golden_folder:
        options["simplified_cases"] = final.cases(section["cases"])
        if final.policies:
            options["compare_simplified"] = dict(final.policies)
        golden |= final.golden(options["simplified_cases"], prefix="simplified.")
        golden["assembled_simplified"] = final.assembling.assembled
        after.append(final.golden_target)
    if model.further:
        shapes = {tensor: signature["shape"] for tensor, signature in network.inputs.items()}
        options["further"] = {"cases": model.further_names, "shapes": shapes}
        if first.has_further:
            golden |= first.golden(model.further_names, optional=True)
        if final.has_further and final.golden_folder != first.golden_folder:
            golden |= final.golden(model.further_names, "simplified.", optional=True)
        if sizes := network.golden_sizes(model.further):
            golden |= sizes
            graphs = (("simplified", final), ("exported", first), ("unmodified", network))
            options["further"]["graph"] = next(
                graph for graph, point in graphs if point.golden_folder == network.golden_folder
            )
        if first.golden_folder != network.golden_folder:
            # for the cases that surgery cannot carry
            golden |= network.golden(model.further_names, "unmodified.", optional=True)
            files = network.graph.files().items()
            golden |= {f"unmodified.{role}": file for role, file in files}
            after += [network.graph.target, network.golden_target]
            if network.policies:
                options["compare_unmodified"] = dict(network.policies)
    if section["uncompared"]:
        options["uncompared"] = section["uncompared"]
    if constant := _constant_inputs(model):
        options["constant"] = constant
    operators = model.operators.use()
    yield model.action(
        "validate",
        "validate/result.json",
        operators=operators,
        options=options,
        inputs={
            **{f"exported.{role}": file for role, file in first.graph.files().items()},
            **{f"simplified.{role}": file for role, file in final.graph.files().items()},
            "assembled": final.source.assembled,
            **golden,
        },
        advisory={"export": FileRef(f"{name}/export/export.json", optional=True)},
        after=(*after, final.graph.target),
        tools=("onnxruntime", "numpy", *model.small_float_tools, *operators.tools),
        environment=("onnxruntime",),
    )


def _constant_inputs(model: ModelPlan) -> dict[str, Any]:
    """List the inputs with one value in every case: name -> value."""
    entries = {name: tensor["data"] or {} for name, tensor in model.spec["inputs"].items()}
    return {name: data["constant"] for name, data in entries.items() if "constant" in data}
