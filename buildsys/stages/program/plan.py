"""Plan of the program stage: the network as a program of torch.export."""

from collections.abc import Iterator

from buildsys.plan.action import Action
from buildsys.plan.graph_points import size_ranges
from buildsys.plan.model_plan import ModelPlan
from buildsys.stages.export.plan import DYNAMO_MODULES


def plan_program(model: ModelPlan) -> Iterator[Action]:
    """Plan the capture of the network, if an engine is built from its program."""
    if not any(engine.description.takes_program for engine in model.engines):
        return
    yield model.action(
        "program",
        "program/program.json",
        runs_network=True,
        options={**model.network.options, "ranges": size_ranges(model.exported)},
        outputs={"program": model.program, "origins": model.program_origins},
        tools=("sympy",),  # evaluates the guards on sizes
        preload=DYNAMO_MODULES,
    )
