"""Assemble the report from a model's manifest and results."""

import hashlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from buildsys.onnx_graphs.result_types import Doubt
from buildsys.report.checks import checks_of, contradictions
from buildsys.report.engines import bench_notes, engine_lines, layer_lines, timings
from buildsys.report.formatting import first_names, fold, plural
from buildsys.report.graph_tables import graph_facts, graph_tables
from buildsys.report.key_figures import key_figure, read_results, stage_report
from buildsys.report.ranking import rank_engines, recommend
from buildsys.report.report_types import BuildVerdict, Check, Provenance, Report, Table, TargetLine
from buildsys.report.result_files import (
    ABSENT,
    FAILED,
    NOISY,
    PASSED,
    STALE,
    UNAVAILABLE,
    AnyResult,
    Result,
)
from buildsys.stages.table import ENGINE, ENGINE_STAGES, REPORT, target_of

Manifest = Mapping[str, Any]
_WARNINGS = ("warnings", "messages", "noisy")
_SOURCE_KINDS = (
    "torchvision", "timm", "transformers", "exported_program", "python", "onnx", "numpy",
    "tensorrt",
)  # fmt: skip
NEVER = "never built"
_MOST_NAMES = 4  # in the verdict
_MOST_PLACES = 3
_FIXED = {"branch": ("branch", "branches"), "value": ("value", "values")}


@dataclass(frozen=True)
class TargetProblem:
    """The reason for a target not being up to date."""

    reason: str
    failed: bool = False  # else it did not run
    hint: str = ""


def assemble(
    model: str,
    manifest: Manifest,
    inputs: Mapping[str, Path],
    graphs: Mapping[str, Mapping[str, Any]],
) -> Report:
    """Assemble the report on ``model`` from its manifest and result files.

    ``inputs`` maps targets to result files, ``graphs`` targets to the facts of the graphs that they
    wrote (``inspection.graph_facts``), in the order of the stages.
    """
    return _assemble(model, manifest, read_results(inputs), graphs)


def assemble_after_failure(
    model: str,
    manifest: Manifest,
    inputs: Mapping[str, Path],
    problems: Mapping[str, TargetProblem],
    notice: str,
) -> Report:
    """Assemble the report on an unsuccessful run, without stale results."""
    results = []
    for result in read_results(inputs):
        problem = problems.get(result.target)
        # a failed check has published its numbers
        if problem and not (problem.failed and result.status == FAILED):
            previous = STALE if result.status == PASSED else ABSENT
            reason, _, rest = problem.reason.partition("\n")
            hint = "\n".join(filter(None, (rest, problem.hint)))
            status = FAILED if problem.failed else previous
            result = Result(result.target, status, {}, reason, hint, result.file)
        results.append(result)
    target = target_of(REPORT, model)
    own = problems.get(target)
    own_status = PASSED if own is None else FAILED if own.failed else ABSENT
    report = _assemble(model, manifest, results, {}, own_status)
    verdict, count = report.verdict, f"{len(problems)} of {len(results) + 1} targets"
    if verdict.status != FAILED:
        verdict = BuildVerdict(STALE, f"STALE: {count} are not up to date")
        if problems and all(problem.reason == NEVER for problem in problems.values()):
            verdict, notice = BuildVerdict("partial", f"INCOMPLETE: {count} were never built"), ""
        if own is not None and own.failed:
            verdict = BuildVerdict(FAILED, f"FAILED: {target}: {fold(own.reason)[0]}")
        elif problems and all(result.status == ABSENT for result in results):
            verdict = BuildVerdict(ABSENT, "NOT BUILT: there are no results yet")
    return replace(report, verdict=verdict, notice=notice)


def _assemble(
    model: str,
    manifest: Manifest,
    results: Sequence[AnyResult],
    graphs: Mapping[str, Mapping[str, Any]],
    own_status: str = PASSED,
) -> Report:
    checks = checks_of(results)
    broken = tuple(contradictions(checks))
    accepted = (manifest.get("validate") or {}).get("accepted") or ()
    doubts = list(_doubts_of(results, accepted))
    summary = _doubts_text([doubt for _, doubt in doubts], checks)
    engines, bench = engine_lines(results, manifest), timings(results)
    report = Report(
        model=model,
        description=str(manifest.get("description") or ""),
        source=_source_text(manifest.get("source") or {}),
        verdict=_verdict(results, broken, summary),
        summary=_target_lines(model, results, own_status),
        checks=checks,
        engines=engines,
        bench=bench,
        bench_notes=bench_notes(results),
        warnings=(
            *broken[1:],  # the first is in the verdict
            *_grouped((target, doubt["text"]) for target, doubt in doubts),
            *_grouped(
                (result.target, message)
                for result in results
                for field in _WARNINGS
                for message in result.content.get(field, [])
                if not result.reason.startswith(message)  # which is shown with the target
            ),
        ),
        provenance=_provenance(manifest, results),
        layers=layer_lines(results),
        tables=tuple(table for table in _stage_tables(results) if table.rows),
        graph_facts=graph_facts(results),
        graph_tables=graph_tables(manifest, results, graphs),
    )
    if not engines:
        return report
    ranking = rank_engines(report)
    return replace(report, ranking=ranking, recommendation=recommend(report, ranking))


def _grouped(warnings: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Write each warning once, with the targets that have it."""
    targets: dict[str, list[str]] = {}
    for target, text in warnings:
        targets.setdefault(text, []).append(target)
    yield from (f"{first_names(names, _MOST_NAMES)}: {text}" for text, names in targets.items())


def _stage_tables(results: Sequence[AnyResult]) -> Iterator[Table]:
    """Yield the tables of the stages that have one."""
    for stage in dict.fromkeys(result.stage for result in results):
        own = [result for result in results if result.stage == stage]
        if describe := stage_report(stage, "table"):
            yield describe(own)
        if describe := stage_report(stage, "details"):
            yield from describe(own)


def _verdict(
    results: Sequence[AnyResult], contradictions: Sequence[str], doubts: str
) -> BuildVerdict:
    """Decide the verdict: ``passed`` only if all results passed.

    The report itself counts as a target, as it does in the console. ``doubts`` go to the front.
    """
    prefix = f", {doubts}" if doubts else ""
    targets: dict[str, list[str]] = {}
    for result in results:
        targets.setdefault(result.status, []).append(result.target)
    total, failed = len(results) + 1, targets.get(FAILED, [])
    causes = [f"{len(failed)} of {total} targets failed: {first_names(failed, _MOST_NAMES)}"]
    causes = [*(causes if failed else []), *contradictions[:1]]
    if causes:
        return BuildVerdict("failed", f"FAILED: {'; '.join(causes)}")
    if not results:
        return BuildVerdict("partial", "PARTIAL: there are no results to report")
    passed = len(targets.pop(PASSED, ())) + 1
    if not targets:
        return BuildVerdict("passed", f"PASSED{prefix}: all {total} targets passed", doubts)
    words = {ABSENT: "did not run", STALE: "did not run"}
    named = [
        f"{len(names)} {words.get(status, status)}: {first_names(names, _MOST_NAMES)}"
        for status, names in targets.items()
    ]
    text = "; ".join((f"PARTIAL{prefix}: {passed} of {total} targets passed", *named))
    return BuildVerdict("partial", text, doubts)


def _target_lines(
    model: str, results: Sequence[AnyResult], own_status: str
) -> tuple[TargetLine, ...]:
    """List the line of each target; without an engine, the reason is the engine's."""
    gone = {r.variant: r for r in results if (r.stage, r.status) == (ENGINE, UNAVAILABLE)}
    lines = []
    for result in results:
        has_ended = result.status in (PASSED, NOISY, FAILED)
        engine = gone.get(result.variant) if result.stage in ENGINE_STAGES else None
        cause = engine if engine and result.status == UNAVAILABLE else result
        line = TargetLine(
            target=result.target,
            stage=result.stage,
            variant=result.variant,
            status=result.status,
            seconds=result.content.get("seconds"),
            outcome=key_figure(result.stage, result.content) if has_ended else "",
            reason=cause.reason,
            hint=cause.hint,
            file=result.file,
            log=result.log,
        )
        lines.append(line)
    if results:  # the report itself
        own, files = target_of(REPORT, model), ("report/report.json", "report/report.log")
        lines.append(TargetLine(own, REPORT, "", own_status, None, "", "", "", *files))
    return tuple(lines)


def _source_text(source: Mapping[str, Any]) -> str:
    """Describe a source with its reference: ``torchvision resnet18``."""
    own = " ".join(f"{kind} {source[kind]}" for kind in _SOURCE_KINDS if kind in source)
    reference = source.get("reference")
    return f"{own}, verified against {_source_text(reference)}" if reference else own


def _provenance(manifest: Manifest, results: Sequence[AnyResult]) -> Provenance:
    canonical = json.dumps(manifest, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    started = (result.content.get("started", "") for result in results)
    versions: dict[str, dict[str, None]] = {}  # all in use, with the names of toolchains
    for result in results:
        toolchain = dict(result.content.get("toolchain", {}))
        owner = toolchain.pop("name", "")
        for name, version in toolchain.items():
            versions.setdefault(f"{name} ({owner})" if owner else name, {})[version] = None
    return Provenance(
        manifest=manifest,
        manifest_sha256=hashlib.sha256(canonical.encode()).hexdigest(),
        versions={name: " and ".join(used) for name, used in sorted(versions.items())},
        started=min(filter(None, started), default=""),
    )


def _doubts_of(
    results: Iterable[AnyResult], accepted: Collection[str]
) -> Iterator[tuple[str, Doubt]]:
    """Yield the target and the doubt, of passed results and places that are not accepted."""
    for result in results:
        for doubt in result.content.get("doubts", []) if result.status == PASSED else ():
            if doubt["place"] not in accepted:
                yield result.target, doubt


def _doubts_text(doubts: Sequence[Doubt], checks: Iterable[Check]) -> str:
    """Summarize as in ``1 branch fixed at net.py:12, 9 of 10 cases compared``, "" without any."""
    places: dict[str, dict[str, None]] = {}
    for doubt in doubts:
        places.setdefault(doubt["kind"], {})[doubt["place"]] = None
    parts = [
        f"{plural(len(places[kind]), *nouns)} fixed at {first_names([*places[kind]], _MOST_PLACES)}"
        for kind, nouns in _FIXED.items()
        if kind in places
    ]
    if "state" in places:
        names = first_names([*filter(None, places["state"])], _MOST_PLACES)
        parts.append(f"state lost{' at' if names else ''} {names}".rstrip())
    if left_out := places.get("uncompared"):
        cases = {line.case for check in checks for line in check.comparisons} | left_out.keys()
        parts.append(f"{len(cases) - len(left_out)} of {len(cases)} cases compared")
    if weights := places.get("weights"):
        parts.append(f"no weights for {', '.join(weights)}")
    if outputs := places.get("output"):
        parts.append(f"no informative case for {first_names([*outputs], _MOST_PLACES)}")
    return ", ".join(parts)
