"""Simplify stage: a smaller graph with equal outputs."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from buildsys.errors import CheckFailed, StageError
from buildsys.manifest.exports import KEEP_GRAPH, OTHER_EXPORTS
from buildsys.onnx_graphs.onnx_file import (
    check_file,
    copy_model,
    file_facts,
    interface,
    interface_changes,
    load_model,
    save_model,
)
from buildsys.onnx_graphs.result_types import GraphSummary
from buildsys.onnx_graphs.tensor_types import assembled_outputs, output_facts
from buildsys.onnx_graphs.tensors import Tensor, load_case
from buildsys.stages.common.golden_check import failures_of, figures_of
from buildsys.stages.common.graph_runs import (
    changed_counts,
    compare_cases,
    limits_of,
    random_inputs,
    run_cases,
)
from buildsys.stages.operators.implementation import implementation_of
from buildsys.stages.simplify.result import SimplifyResult
from buildsys.stages.simplify.tools import simplify_by_onnxsim, simplify_by_onnxslim
from buildsys.workers.job import Job, StageResult

Tool = Callable[[Path, Path, Mapping[str, Any], bool], None]

_TOOLS: Mapping[str, Tool] = {"onnxsim": simplify_by_onnxsim, "onnxslim": simplify_by_onnxslim}


def run(job: Job) -> StageResult:
    """Simplify ``model`` by the manifest's tool; different outputs fail, unless due to fusing.

    Raises: StageError: the exported graph is invalid or the tool fails. CheckFailed: the result is
        invalid or has another interface.
    """
    source, target, spec = job.inputs["model"], job.outputs["model"], job.options["simplify"]
    tool = spec["tool"]
    check_file(source, "the exported graph")
    original = load_model(source, external_data=False)
    before = file_facts(original, source)
    ports, limits = interface(original), limits_of(original)
    facts = output_facts(original, assembled_outputs(original))
    job.outputs["assembled"].write_text(json.dumps(facts))
    initializers_are_inputs = len(original.graph.input) > len(ports["input"])
    if tool == "none":
        copy_model(source, target)
        return StageResult(figures=_figures(tool, before, before))
    del original  # the weights of a large graph must not add to the tool's copies
    inputs = _cases(job, ports["input"])
    comparable = not implementation_of(job).missing_operators(source)
    outputs = run_cases(job, source, inputs) if comparable else {}

    problems: list[CheckFailed] = []
    refused: StageResult | None = None
    for fuse in dict.fromkeys((spec["fuse"], False)):
        job.progress(f"simplifying {before['nodes']} nodes with {tool}")
        _TOOLS[tool](source, target, {**spec, "fuse": fuse}, initializers_are_inputs)
        try:
            after = _check_simplified(target, ports, tool)
            actual = run_cases(job, target, inputs) if comparable else {}
        except CheckFailed as error:
            problems.append(error)
            continue
        except StageError as error:  # the exported graph runs
            reason = f"simplification broke the graph: {error.problem}"
            problems.append(CheckFailed(reason, "", KEEP_GRAPH))
            continue
        figures = _figures(tool, before, after)
        compared = compare_cases(actual, outputs, limits, inputs, job.options.get("compare"))
        figures["equal"] = figures_of(compared)
        different = failures_of("simplified", compared)
        if not different:
            break
        _, case, name, comparison = different[0]
        sentence = comparison.sentence("the simplified graph", "the exported graph")
        reason = f"simplification changed {name} in case {case}: {sentence}"
        hint = "keep the graph as it is, or export it in another way"
        changes = (*KEEP_GRAPH, *OTHER_EXPORTS)
        problems.append(CheckFailed(reason, hint, changes))
        refused = StageResult("failed", reason, hint, figures, changes)
    else:
        if refused is None:
            raise problems[0]
        return refused
    # onnxsim 0.8.1 drops the empty inputs of Concat, whatever its axis; folding rounds weights
    warnings = [f"{error.problem}; simplified without fusing instead" for error in problems]
    if not comparable:  # validate fails, but engines of other backends can be built
        reason = "ONNX Runtime has no implementation of an operator"
        warnings.append(f"the graphs were not compared: {reason}")
    figures["warnings"] = warnings
    return StageResult(figures=figures)


def _cases(job: Job, graph_inputs: list[dict[str, Any]]) -> dict[str, dict[str, Tensor]]:
    """Provide the inputs of both graphs by case: golden ones, random ones if there are none."""
    # parameters that are inputs have fixed shapes
    fixed = {
        port["name"]: port
        for port in graph_inputs
        if all(isinstance(size, int) for size in port["shape"] or ("",))
    }
    inputs = {**fixed, **job.options["inputs"]}
    cases = {}
    for case, dims in job.options["cases"].items():
        golden = job.inputs.get(f"case.{case}")
        golden_inputs = {} if golden is None else dict(load_case(golden).inputs)
        missing = {name: spec for name, spec in inputs.items() if name not in golden_inputs}
        cases[case] = {**golden_inputs, **random_inputs(missing, case, dims)}
    return cases


def _check_simplified(target: Path, ports: dict[str, Any], tool: str) -> GraphSummary:
    simplified, what = load_model(target, external_data=False), f"the graph from {tool}"
    try:
        check_file(target, what)
    except StageError:
        # onnxsim leaves wrong shapes of inner tensors; they are only annotations
        del simplified.graph.value_info[:]
        save_model(simplified, target)
        check_file(target, what, CheckFailed, "", KEEP_GRAPH)
    changed = next(interface_changes(ports, interface(simplified)), None)
    if changed:
        raise CheckFailed(f"{tool} changed the interface of the graph: {changed}", "", KEEP_GRAPH)
    return file_facts(simplified, target)


def _figures(tool: str, before: GraphSummary, after: GraphSummary) -> SimplifyResult:
    removed, added = changed_counts(before["operators"], after["operators"])
    return SimplifyResult(
        tool=tool, before=before, after=after, removed=removed, added=added, equal={}
    )
