"""Plan of the command stage: programs with declared inputs and outputs."""

from collections.abc import Iterator, Mapping
from typing import Any

from buildsys.manifest.command_templates import (
    FIGURES,
    LISTING,
    RESULT_FILE,
    reference_of,
    references,
)
from buildsys.plan.action import Action, FileRef
from buildsys.plan.engine_typing import toolchain_of
from buildsys.plan.model_plan import ModelPlan

_ENGINE_FILES = ("engine", "engine.", "library.", "result")  # roles, or their beginnings


def plan_command(model: ModelPlan, others: Mapping[str, Action]) -> Iterator[Action]:
    """Plan a model's commands; they may read outputs of ``others``."""
    actions = dict(others)
    for spec in model.spec["commands"]:
        action = _action(model, spec, actions)
        actions[action.target] = action
        yield action


def _action(model: ModelPlan, spec: Mapping[str, Any], others: Mapping[str, Action]) -> Action:
    name, folder = spec["name"], f"{model.name}/command/{spec['name']}"
    files: dict[str, str] = {}  # files of the project
    written: dict[str, str] = {}  # by other targets
    listed: list[str] = []  # folders of other targets
    inputs: dict[str, FileRef] = {}
    after: list[str] = []
    order: list[str] = []
    for label, text in spec["inputs"].items():
        reference = reference_of(text)
        if reference is None:
            files[label] = text
            continue
        outputs_read, target = _referenced(model, reference, others)
        written[label] = ".".join(filter(None, reference))
        listed += [label] if outputs_read[""].folder else []
        inputs |= {f"input.{label}{role}": ref for role, ref in outputs_read.items()}
        after.append(target)
        if reference[0] == "engines":
            order.append(f"verify:{model.name}:{reference[1]}")
    outputs = {}
    for label, path in spec["outputs"].items():
        place = f"{folder}/{path.rstrip('/')}"
        listing = FileRef(f"{place}{LISTING}", folder=place)
        outputs[f"output.{label}"] = listing if path.endswith("/") else FileRef(place)
    reports = any(FIGURES in references(argument) for argument in spec["run"])
    on_gpu, measures = spec["device"] == "cuda", spec["measures"]
    fixed = {variable: value for variable, value in spec["env"].items() if value is not None}
    passed = [variable for variable in spec["env"] if variable not in fixed]
    scripts = [path for path in files.values() if path.endswith(".py")]
    options: dict[str, Any] = {
        "run": spec["run"],
        "files": files,
        "references": written,
        "listed": listed,
        "outputs": spec["outputs"],
        "env": fixed,
        "pass": passed,
        "versions": spec["versions"],
        "device": spec["device"],
    }
    if spec["limits"]:
        options["limits"] = spec["limits"]
    return model.action(
        "command",
        f"command/{name}/{RESULT_FILE}",
        name,
        owner=spec,
        timeout_s=spec["timeout"] or model.spec["timeout"].get("command"),
        options=options,
        inputs=inputs,
        outputs=outputs,
        sources=scripts,
        reads=(
            *dict.fromkeys(path for path in files.values() if path not in scripts),
            *(f"${variable}" for variable in passed),
        ),
        after=after,
        order=tuple(dict.fromkeys(order)),
        tools=("python", *spec["versions"]),
        probes=tuple(map(tuple, spec["probes"])),
        toolchain=toolchain_of(model.spec, spec),
        devices=(
            *(("cpu",) if reports else ()),
            *(("cores",) if measures else ()),
            *(("gpu",) if on_gpu else ()),
        ),
        required=spec["required"],
        measures=measures,
        server="bare",  # it starts its program itself
        exclusive=measures and not on_gpu,
        alone_on_gpu=on_gpu,
    )


def _referenced(
    model: ModelPlan, reference: tuple[str, str], others: Mapping[str, Action]
) -> tuple[dict[str, FileRef], str]:
    """Locate another target's output files, the main one first."""
    kind, of = reference
    if kind == "commands":
        command, _, output = of.rpartition(".")
        target = f"command:{model.name}:{command}"
        ref = others[target].outputs[f"output.{output}"]
        return {"": FileRef(ref.path, optional=True, folder=ref.folder)}, target
    if kind == "engines":
        target = f"engine:{model.name}:{of}"
        files = {
            role: FileRef(ref.path, optional=True)
            for role, ref in others[target].outputs.items()
            if role.startswith(_ENGINE_FILES)
        }
        main = files.pop("engine")
        return {"": main, **{f".{role}": ref for role, ref in files.items()}}, target
    if kind == "golden":
        case = model.served.origins[of]
        return {"": model.served.golden([case])[f"case.{case}"]}, model.served.golden_target
    graph = model.exported.graph if kind == "exported" else model.final.graph
    graph_files = graph.files()
    return {"": graph_files["model"], ".data": graph_files["model.data"]}, graph.target
