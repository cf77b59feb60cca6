"""More sizes and inputs than validate compares, for ``buildsys check``."""

from collections.abc import Iterator
from itertools import chain, cycle, islice
from typing import Any

from buildsys.errors import StageError
from buildsys.manifest.shape_cases import Dims
from buildsys.models.value_cases import value_cases
from buildsys.onnx_graphs.output_policies import uninformative_outputs
from buildsys.stages.common.golden_check import ORIGINAL, wrong_outputs
from buildsys.stages.common.graph_runs import GraphCheck
from buildsys.stages.common.rounding_noise import UNSTABLE
from buildsys.stages.reference.original import Original, golden_inputs, load_original, not_finite
from buildsys.stages.reference.sizes import draw_sizes, sizes_with
from buildsys.stages.validate.stage import GRAPHS
from buildsys.workers.job import Job, StageResult

_EXTREMES = (0, 0, 1, -1)  # in turns; 0: as the manifest's data
_CASES = {1: "extremes-1", -1: "extremes-2"}


def run(job: Job) -> StageResult:
    """Compare both graphs with the original ``count`` times. Failures have sizes and seeds."""
    original = load_original(job)
    graphs = {name: GraphCheck(job, job.inputs[f"{name}.model"]) for name in GRAPHS}
    count, compared = job.options["count"], 0
    failures, skipped = [], []
    usual = set[tuple[str, str]]()  # outputs with infinite values, such as masked logits
    for index, dims in enumerate(islice(_sizes(job, original), count)):
        job.progress(f"{index + 1} of {count}")
        seed, extreme = job.options["seed"] + index, _EXTREMES[index % len(_EXTREMES)]
        place = {"run": index + 1, "dims": dims, "seed": seed, "extreme": extreme}
        differences: list[dict[str, Any]] = []
        problem = ""
        try:
            inputs = golden_inputs(job, dims, {"case": "min", "seed": seed})
            if extreme:
                changed = dict(value_cases(inputs, job.options["data"], {_CASES[extreme]}))
                inputs = changed.get(_CASES[extreme], inputs)
            golden = original.case(inputs, original.call(inputs, dims))
            special = not_finite(golden.outputs)
            if not extreme:
                usual |= special.keys()
            problem = next((t for v, t in special.items() if v not in usual), "")
        except StageError as error:  # the original refuses what the manifest allows
            problem = error.problem
        for name, graph in graphs.items() if not problem else ():
            try:
                checked = graph.compare({"": golden})[""]
            except StageError as error:
                differences.append({**place, "graph": name, "output": "", "problem": error.problem})
                continue
            wrong, reasons = wrong_outputs(checked), uninformative_outputs([checked.compared])
            if len(reasons) == len(checked.compared):
                problem = f"every output is uninformative: {next(iter(reasons.values()))}"
            elif wrong and graph.is_unstable(checked, golden):
                problem = UNSTABLE
            else:
                for output, comparison in wrong.items():
                    text = comparison.sentence("ONNX Runtime", ORIGINAL)
                    entry = {"graph": name, "output": output, "problem": text}
                    differences.append({**place, **entry})
        failures += differences
        if problem and not differences:
            skipped.append({**place, "problem": problem})
        else:
            compared += 1
    figures = {"count": count, "compared": compared, "skipped": skipped, "failures": failures}
    return StageResult(figures=figures)


def _sizes(job: Job, original: Original) -> Iterator[Dims]:
    """Yield suggested and drawn sizes in turns, forever."""
    spans, tested = job.options["spans"], list(job.options["cases"].values())
    suggested: list[Dims] = []
    if spans and original.module is not None:
        from buildsys.models.code_numbers import code_numbers

        numbers = code_numbers(original.module)
        suggested += sizes_with([(name, n) for n in numbers for name in spans], spans, tested)
    drawn = draw_sizes(spans, suggested, job.options["seed"]) if spans else iter([{}])
    return cycle(chain(suggested, islice(drawn, job.options["count"])))
