"""Plan of the report stage: all results on one page."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from buildsys.plan.action import NO_NEEDS, Action, FileRef
from buildsys.plan.model_plan import ModelPlan
from buildsys.stages.table import GRAPH_STAGES, NETWORK_SECTIONS, REPORT, STAGES, stage_info

_HIDDEN = ("timeout", "toolchains", "flaky", "needs")  # decide no result
# hidden if empty
_RARE = ("owner", "tags", "symbolics", "translations", "optimize", "gates")


def plan_report(model: ModelPlan, actions: Mapping[str, Action]) -> Iterator[Action]:
    """Plan the report on all other ``actions``."""
    name, spec, results = model.name, model.spec, list(actions.values())
    graphs = [action for action in results if action.stage in GRAPH_STAGES]
    stages = dict.fromkeys(action.stage for action in results)
    rooms = (f"{stage_info(stage).package}.report" for stage in stages)  # describe the results
    outputs = {}
    if "markdown" in spec["report"]["formats"]:
        outputs["markdown"] = FileRef(f"{name}/report/report.md")
    pictures = _pictures(graphs) if "html" in spec["report"]["formats"] else {}
    for title in pictures:
        outputs[f"picture.{title}"] = FileRef(f"{name}/report/{title}.svg", optional=True)
    hidden = {*_HIDDEN, *(section for section in _RARE if not spec.get(section))}
    without = [stage for stage in STAGES if stage.name not in stages and stage.name != REPORT]
    hidden.update(section for stage in without for section in stage.sections)
    hidden |= set() if model.has_network else set(NETWORK_SECTIONS)
    manifest = {section: value for section, value in spec.items() if section not in hidden}
    if model.has_network:
        manifest["engines"] = [_as_written(engine) for engine in spec["engines"]]
    if "commands" in manifest:
        fields = [command.items() for command in spec["commands"]]
        manifest["commands"] = [{n: v for n, v in f if n not in _HIDDEN} for f in fields]
    if spec.get("toolchains"):  # without the paths of their interpreters
        manifest["toolchains"] = {n: {"env": t["env"]} for n, t in spec["toolchains"].items()}
    yield model.action(
        "report",
        "report/report.json",
        needs=NO_NEEDS,
        options={
            "manifest": manifest,
            "pictures": pictures,
            "sources": _engine_graphs(model, graphs),
        },
        inputs={
            **{action.target: action.outputs["result"] for action in results},
            **{f"graph:{action.target}": action.outputs["model"] for action in graphs},
        },
        outputs=outputs,
        after=[action.target for action in results],
        code=rooms,
        tools=("onnx",),
        probes=(("dot", "-V"),) if pictures else (),
    )


def _as_written(engine: Mapping[str, Any]) -> Mapping[str, Any]:
    """Write ``auto`` as a part of an engine's precision, and leave out its needs."""
    fields = {name: value for name, value in engine.items() if name not in ("auto", "needs")}
    is_auto = {"precision": f"auto-{engine['precision']}"} if engine.get("auto") else {}
    return fields | is_auto


def _engine_graphs(model: ModelPlan, graphs: Sequence[Action]) -> dict[str, str]:
    """Choose the graph with the work of each engine: its source, or the network's for programs."""
    network = _last(graphs)
    return {
        engine.name: network
        if network and engine.description.takes_program
        else engine.source_target
        for engine in model.engines
    }


def _last(graphs: Sequence[Action]) -> str | None:
    """Find the target of the network's final graph."""
    return next((graph.target for graph in reversed(graphs) if graph.stage != "convert"), None)


def _pictures(graphs: Sequence[Action]) -> dict[str, str]:
    """Choose the graphs to draw: title -> target."""
    first = next((graph.target for graph in graphs if graph.stage == "export"), None)
    last = _last(graphs)
    targets = {"exported": first, "simplified": last if last != first else None}
    return {title: target for title, target in targets.items() if target is not None}
