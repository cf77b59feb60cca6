"""Plan of the preprocess stage: golden images, and graphs that take raw images."""

from collections.abc import Iterator

from buildsys.plan.action import Action
from buildsys.plan.custom_operators import NO_OPERATORS
from buildsys.plan.graph_points import IMAGES, size_ranges
from buildsys.plan.model_plan import ModelPlan
from buildsys.plan.network import data_files


def plan_preprocess(model: ModelPlan) -> Iterator[Action]:
    """Plan golden cases with images, and the graphs of engines that preprocess them."""
    if not model.images:
        return
    network, served, images = model.network, model.served, {"images": model.images}
    cases = served.cases(served.values)
    # of the smallest images: there are many
    samples = {**model.samples, "dims": {**served.values["min"], **model.samples.get("dims", {})}}
    yield model.action(
        "preprocess",
        f"preprocess/{IMAGES}/preprocess.json",
        IMAGES,
        runs_network=True,
        operators=model.operators.use() if network.is_onnx else NO_OPERATORS,
        options={
            **network.options,
            **images,
            "served": served.inputs,
            "cases": cases,
            "spans": size_ranges(served),
            **({"samples": samples} if model.samples else {}),
        },
        outputs={**served.golden(cases), **served.golden_samples(model.samples)},
        sources=data_files(network.options["data"].values()),
        tools=("numpy", "onnx", "onnxruntime", "pillow", "torch", "torchvision"),
        environment=("onnxruntime",),
    )
    for variant, graph in dict(engine.plain_graph for engine in model.engines).items():
        yield model.action(
            "preprocess",
            f"preprocess/{variant}/preprocess.json",
            variant,
            options=images,
            inputs=graph.files(),
            outputs=model.preprocessed(variant).files(),
            after=(graph.target, served.golden_target),
            code=("buildsys.stages.preprocess.image_nodes",),
            tools=("onnx", "numpy"),
        )
