"""The validate stage: exported and simplified graphs against the original model."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from buildsys.manifest.exports import OTHER_EXPORTS
from buildsys.manifest.shape_cases import Dims, dims_of_shapes, format_case, format_dims
from buildsys.onnx_graphs.agreement import ComparedCase
from buildsys.onnx_graphs.onnx_file import load_model
from buildsys.onnx_graphs.result_types import CheckFailure, Doubt
from buildsys.onnx_graphs.tensor_types import assembled_outputs
from buildsys.onnx_graphs.tensors import Case, load_case, load_cases
from buildsys.stages.common.difference_hints import (
    STABLE_HINT,
    UNINFORMATIVE,
    difference_hint,
    read_branches,
    uninformative_changes,
)
from buildsys.stages.common.golden_check import (
    ORIGINAL,
    Checks,
    OutputRules,
    WrongOutput,
    and_more,
    golden_limits,
    output_rules,
    summarize_checks,
    uncompared_case,
    uncompared_outputs,
    uncompared_problem,
    wrong_outputs,
)
from buildsys.stages.common.graph_runs import GraphCheck
from buildsys.stages.common.rounding_noise import UNSTABLE
from buildsys.stages.operators.implementation import implementation_of
from buildsys.stages.validate.result import ValidateResult
from buildsys.workers.job import Job, StageResult

GRAPHS = ("exported", "simplified")
_MOST_DIFFERING = 3  # sizes; others may take long, as changes of the last bits are tried
_SIZE = "size-"  # cases of small inputs, shown only if they differ
_FILE = "golden-"  # cases of files
_UNMODIFIED = "unmodified"  # the exported graph before surgery
_EARLIER = ("exported", _UNMODIFIED)


class _ComparedCase(NamedTuple):
    """A further case with its graph."""

    graph: str
    tensors: Case
    sizes: Dims


def run(job: Job) -> StageResult:
    """Compare both graphs with the golden outputs in every case.

    A failure states output, case, index and both values. The tensors of each failed case are saved
    as ``failed/GRAPH-CASE.npz`` (keys ``in.``, ``expected.`` and ``actual.``) next to the result.
    Unavailable with operators that only another backend implements; ``verify`` checks its engines.
    """
    missing = implementation_of(job).missing_operators(job.inputs["simplified.model"])
    if missing:
        return StageResult(
            "unavailable",
            f"nothing implements {' and '.join(missing)} for ONNX Runtime: only the engines are"
            f" compared with {ORIGINAL}",
            "to compare the graphs as well, add function or library to its entry in ops",
        )
    shared = {case: load_case(job.inputs[f"case.{case}"]) for case in job.options["cases"]}
    golden = dict.fromkeys(GRAPHS, shared)
    if "simplified_cases" in job.options:  # surgery changed the inputs or outputs
        golden["simplified"] = {
            case: load_case(job.inputs[f"simplified.case.{case}"])
            for case in job.options["simplified_cases"]
        }
    further = _further_cases(job)
    if any(case.graph == _UNMODIFIED for case in further.values()):
        golden = {_UNMODIFIED: {}, **golden}
    dims = {**job.options["cases"], **{name: case.sizes for name, case in further.items()}}
    limits = golden_limits(job, shared)
    warnings, failed = [*_constant(job), *_limited(further)], list[WrongOutput]()
    figures: ValidateResult = {"graphs": {}, "tolerance": limits, "dims": dims}
    problems: list[CheckFailure] = []
    doubts: list[Doubt] = []
    all_checks: dict[str, Checks] = {}  # by graph
    for graph, cases in golden.items():
        job.progress(f"running the {graph} graph in {len(cases)} cases")
        check = GraphCheck(job, job.inputs[f"{graph}.model"], _rules(job, graph))
        own = {name: case.tensors for name, case in further.items() if case.graph == graph}
        checks: dict[str, ComparedCase] = {}
        differing = 0  # sizes
        for name, tensors in {**cases, **own}.items():
            is_size = name.startswith(_SIZE)
            if is_size and differing == _MOST_DIFFERING:
                break
            job.progress("other sizes" if is_size else f"case {name}")
            case_text = format_case(name, dims.get(name, {}))
            checked = check.compare({case_text: tensors})[case_text]
            differing += is_size and bool(wrong_outputs(checked))
            if wrong_outputs(checked) and check.is_unstable(checked, tensors):
                doubt = uncompared_case(name, case_text, UNSTABLE)
                doubts += [] if doubt in doubts else [doubt]  # by another graph
            elif not is_size or wrong_outputs(checked):
                checks[name] = checked
        all_checks[graph] = checks
        # as engines are in these cases
        compared = [case.compared for name, case in checks.items() if name in cases]
        if cases and (problem := uncompared_problem(job, compared, doubts)):
            problems.append({"graph": graph, "problem": problem})
        uninformative, doubtful = uncompared_outputs(job, compared)
        doubts += [doubt for doubt in doubtful if doubt not in doubts]
        for output, problem in uninformative.items():
            problems.append({"graph": graph, "output": output, "problem": problem})
        wrong, numbers = summarize_checks(job, graph, checks, limits)
        earlier = {(output.case, output.output) for output in failed}
        failed += [output for output in wrong if (output.case, output.output) not in earlier]
        figures["graphs"][graph] = numbers["cases"]
    figures["warnings"], figures["doubts"] = warnings, doubts
    compared_cases = {name for checks in all_checks.values() for name in checks}
    figures["dims"] = {name: d for name, d in dims.items() if name in compared_cases}
    figures["failures"] = [{**o.failure(), "dims": dims.get(o.case, {})} for o in failed]
    if failed:
        first_case = all_checks[failed[0].graph][failed[0].case]
        reason, hint = _verdict(job, failed, first_case, further)
        return StageResult("failed", reason, hint, figures, OTHER_EXPORTS)
    if problems:
        figures["failures"], first = problems[:1], problems[0]
        if "output" not in first:
            return StageResult("failed", first["problem"], STABLE_HINT, figures)
        zero = {problem["output"] for problem in problems if "output" in problem}
        changes = uninformative_changes(zero, next(iter(shared.values())).outputs)
        return StageResult("failed", first["problem"], UNINFORMATIVE, figures, changes)
    return StageResult(figures=figures)


def _rules(job: Job, graph: str) -> OutputRules:
    if graph == _UNMODIFIED:
        model = load_model(job.inputs[f"{graph}.model"], external_data=False)
        return output_rules(job, "_unmodified")._replace(assembled=assembled_outputs(model))
    is_changed = graph == "simplified" and "simplified_cases" in job.options
    return output_rules(job, "_simplified" if is_changed else "")


def _verdict(
    job: Job,
    failed: Sequence[WrongOutput],
    case: ComparedCase,
    further: Mapping[str, _ComparedCase],
) -> tuple[str, str]:
    """Describe the first failure, and its remedy."""
    first = failed[0]
    reason = first.sentence() + and_more(failed)
    if first.case in further:
        sizes_text = format_dims(further[first.case].sizes)
        reason += f"; {first.case} has {sizes_text}" if sizes_text else ""
        if first.case.startswith(_FILE):
            return reason, "the source may differ from what made the file: in weights, layouts, …"
    elif first.graph == "simplified":
        return reason, ""
    branches = read_branches(job.advisory.get("export"))
    return reason, difference_hint(case, first.output, branches)


def _further_cases(job: Job) -> dict[str, _ComparedCase]:
    """Load the further cases, each for its last possible graph.

    One graph is enough: ``simplify`` and ``surgery`` compare their graphs with those before.
    """
    places = [("simplified.", "simplified"), ("", "exported"), ("unmodified.", _UNMODIFIED)]
    if "simplified_cases" not in job.options:
        places = [("", "simplified"), ("unmodified.", _UNMODIFIED)]
    further, cases = job.options.get("further", {"cases": ()}), {}
    if further["cases"]:
        job.progress("reading further cases")
    for name in further["cases"]:
        files = [
            (graph, path)
            for prefix, graph in places
            if (path := job.inputs.get(f"{prefix}case.{name}"))
        ]
        if files:
            (graph, path), (_, original) = files[0], files[-1]
            tensors = load_case(path)
            inputs = (tensors if original == path else load_case(original)).inputs
            shapes = {tensor: t.shape for tensor, t in inputs.items()}
            sizes = dims_of_shapes(further["shapes"], shapes)
            cases[name] = _ComparedCase(graph, tensors, sizes)
    for number, case in enumerate(load_cases(job.inputs["sizes"]) if "sizes" in job.inputs else ()):
        shapes = {tensor: t.shape for tensor, t in case.inputs.items()}
        sizes = dims_of_shapes(further["shapes"], shapes)
        cases[f"{_SIZE}{number + 1}"] = _ComparedCase(further["graph"], case, sizes)
    return cases


def _constant(job: Job) -> list[str]:
    """List warnings for inputs that never change."""
    return [
        f"input {name} is {value} in every case, so its effect is not compared; to compare it, give"
        f" inputs.{name}.data other values"
        for name, value in job.options.get("constant", {}).items()
    ]


def _limited(further: Mapping[str, _ComparedCase]) -> list[str]:
    """List warnings for cases of earlier graphs than the simplified one."""
    names = [name for name in further if not name.startswith(_SIZE)]
    graphs = {graph: [c for c in names if further[c].graph == graph] for graph in _EARLIER}
    return [
        f"golden outputs after surgery are unknown for {', '.join(cases)}:"
        f" compared in the {graph} graph only"
        for graph, cases in graphs.items()
        if cases
    ]
