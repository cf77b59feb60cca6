"""Assemble the report from a model's manifest and results."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from buildsys.report.benchmarks import bench_notes, timings
from buildsys.report.checks import checks_of, contradictions
from buildsys.report.engines import engine_lines, layer_lines
from buildsys.report.formatting import error_text, first_names
from buildsys.report.key_figures import key_figure, read_results
from buildsys.report.ranking import rank_engines, recommend
from buildsys.report.report_types import (
    BuildVerdict,
    Check,
    FileLine,
    Provenance,
    Report,
    TargetLine,
    TensorLine,
)
from buildsys.report.result_files import (
    ABSENT,
    FAILED,
    NOISY,
    PASSED,
    STALE,
    UNAVAILABLE,
    AnyResult,
    Content,
    Result,
    of_type,
)
from buildsys.report.stage_lines import (
    command_lines,
    gate_lines,
    graph_history,
    search_lines,
)
from buildsys.stages.export.result import ExportResult
from buildsys.stages.reference.result import ReferenceResult
from buildsys.stages.simplify.result import SimplifyResult
from buildsys.stages.surgery.result import SurgeryResult
from buildsys.stages.table import ENGINE, ENGINE_STAGES, EXPORT, REPORT, VALIDATE, VERIFY, target_of

Manifest = Mapping[str, Any]
_WARNINGS = ("warnings", "messages", "noisy")
_SOURCE_KINDS = (
    "torchvision", "timm", "transformers", "exported_program", "python", "onnx", "numpy",
    "tensorrt",
)  # fmt: skip
_MOST_NAMES = 4  # in the verdict


@dataclass(frozen=True)
class TargetProblem:
    """The reason for a target not being up to date."""

    reason: str
    failed: bool = False  # else it did not run


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
            reason, _, hint = problem.reason.partition("\n")
            status = FAILED if problem.failed else previous
            result = Result(result.target, status, {}, reason, hint, result.file)
        results.append(result)
    own = problems.get(target_of(REPORT, model))
    own_status = PASSED if own is None else FAILED if own.failed else ABSENT
    report = _assemble(model, manifest, results, {}, own_status)
    verdict = report.verdict
    if verdict.status != FAILED:
        count = f"{len(problems)} of {len(results) + 1} targets"
        verdict = BuildVerdict(STALE, f"STALE: {count} are not up to date")
        if problems and all(result.status == ABSENT for result in results):
            verdict = BuildVerdict(ABSENT, "NOT BUILT: there are no results yet")
        for target, problem in problems.items():
            if problem.failed:  # only the report target itself can be left
                verdict = BuildVerdict(FAILED, f"FAILED: {target}: {problem.reason}")
                break
    return replace(report, verdict=verdict, notice=notice)


def opt_sizes(manifest: Manifest) -> dict[str, int]:
    """Read the opt sizes of the dynamic dimensions."""
    return {name: span["opt"] for name, span in _section(manifest, "dims").items() if "opt" in span}


def _assemble(
    model: str,
    manifest: Manifest,
    results: Sequence[AnyResult],
    graphs: Mapping[str, Mapping[str, Any]],
    own_status: str = PASSED,
) -> Report:
    export, simplify = _first(results, ExportResult), _first(results, SimplifyResult)
    reference = _first(results, ReferenceResult)
    checks = checks_of(results)
    doubts = tuple(contradictions(checks))
    engines, bench = engine_lines(results, manifest), timings(results)
    source = _section(manifest, "source")
    report = Report(
        model=model,
        description=str(manifest.get("description") or ""),
        source=_source_text(source),
        weights=export.get("weights") or reference.get("weights") or _weights(source),
        verdict=_verdict(results, doubts),
        summary=_target_lines(model, results, checks, own_status),
        tensors=tuple(_tensor_lines(manifest, results, export)),
        dims={
            name: f"{span.get('min')} to {span.get('max')}, optimized for {span.get('opt')}"
            + (f", in steps of {span['multiple_of']}" if span.get("multiple_of", 1) != 1 else "")
            for name, span in _section(manifest, "dims").items()
        },
        graph=graph_history(export, simplify, graphs, opt_sizes(manifest)),
        checks=checks,
        engines=engines,
        bench=bench,
        bench_notes=bench_notes(results),
        gates=gate_lines(results),
        warnings=(
            *doubts,
            *(
                f"{result.target}: {message}"
                for result in results
                for field in _WARNINGS
                for message in result.content.get(field, [])
                if not result.reason.startswith(message)  # which is shown with the target
            ),
        ),
        provenance=_provenance(manifest, results),
        layers=layer_lines(results),
        searches=search_lines(results),
        commands=command_lines(results),
    )
    if not engines:
        return report
    ranking = rank_engines(report)
    return replace(report, ranking=ranking, recommendation=recommend(report, ranking))


def _first(results: Sequence[AnyResult], kind: type[Content]) -> Content:
    """Read the result of a stage with one target per model, empty without one."""
    return next((result.content for result in of_type(results, kind)), kind())


def _verdict(results: Sequence[AnyResult], contradictions: Sequence[str]) -> BuildVerdict:
    """Decide the verdict: ``passed`` only if all results passed.

    The report itself counts as a target, as it does in the console.
    """
    total = len(results) + 1
    failed = [result for result in results if result.status == FAILED]
    noisy = [result.target for result in results if result.status == NOISY]
    other = [r for r in results if r.status not in (FAILED, NOISY, PASSED)]
    unavailable = [result.target for result in other if result.status == UNAVAILABLE]
    missing = [result.target for result in other if result.status != UNAVAILABLE]
    passed = total - len(failed) - len(noisy) - len(other)
    causes = [f"{result.target}: {result.reason or 'failed'}" for result in failed]
    causes += contradictions
    if causes:
        more = f" (and {len(causes) - 1} more)" if len(causes) > 1 else ""
        return BuildVerdict("failed", f"FAILED: {causes[0]}{more}")
    if other or noisy:
        counted = f"{passed} of {total} targets passed"
        groups = ((missing, "did not run"), (unavailable, UNAVAILABLE), (noisy, "noisy"))
        named = [
            f"{len(targets)} {what}: {first_names(targets, _MOST_NAMES)}"
            for targets, what in groups
            if targets
        ]
        return BuildVerdict("partial", "; ".join((f"PARTIAL: {counted}", *named)))
    if not results:
        return BuildVerdict("partial", "PARTIAL: there are no results to report")
    return BuildVerdict("passed", f"PASSED: all {total} targets passed")


def _target_lines(
    model: str, results: Sequence[AnyResult], checks: Sequence[Check], own_status: str
) -> tuple[TargetLine, ...]:
    """List the line of each target; without an engine, the reason is the engine's."""
    worst = {check.target: _worst_error(check) for check in checks}
    gone = {r.variant: r for r in results if (r.stage, r.status) == (ENGINE, UNAVAILABLE)}
    lines = []
    for result in results:
        outcome = key_figure(result.stage, result.content)
        if result.stage not in (VALIDATE, VERIFY):  # their key figure
            outcome = "; ".join(filter(None, (outcome, worst.get(result.target))))
        engine = gone.get(result.variant) if result.stage in ENGINE_STAGES else None
        cause = engine if engine and result.status == UNAVAILABLE else result
        line = TargetLine(
            target=result.target,
            stage=result.stage,
            variant=result.variant,
            status=result.status,
            seconds=result.content.get("seconds"),
            outcome=outcome if result.status in (PASSED, FAILED) else "",
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


def _worst_error(check: Check) -> str:
    """Describe the largest relative error of a check, "" without any."""
    errors = [
        (line.relative, f"{line.case} {line.output}")
        for line in check.comparisons
        if line.relative is not None
    ]
    return error_text(max(errors, key=lambda e: (math.isnan(e[0]), e[0]), default=None))


def _tensor_lines(
    manifest: Manifest, results: Sequence[AnyResult], export: ExportResult
) -> Iterator[TensorLine]:
    """Yield the inputs and outputs after the last surgery that changed them."""
    surgery = [result.content for result in of_type(results, SurgeryResult)]
    ports: Mapping[str, Any] = next((s for s in reversed(surgery) if "inputs" in s), export)
    for role in ("input", "output"):
        tensors = ports.get(f"{role}s", [])
        if "reference" in _section(manifest, "source"):  # defined by hand
            declared = _section(manifest, f"{role}s").items()
            tensors = [{**tensor, "name": name} for name, tensor in declared]
        for tensor in tensors:
            shape = tuple("?" if size is None else str(size) for size in tensor.get("shape") or ())
            yield TensorLine(role, str(tensor["name"]), str(tensor.get("dtype") or "?"), shape)


def _section(manifest: Manifest, name: str) -> Mapping[str, Any]:
    return manifest.get(name) or {}


def _source_text(source: Mapping[str, Any]) -> str:
    """Describe a source with its reference: ``torchvision resnet18``."""
    own = " ".join(f"{kind} {source[kind]}" for kind in _SOURCE_KINDS if kind in source)
    reference = source.get("reference")
    return f"{own}, verified against {_source_text(reference)}" if reference else own


def _weights(source: Mapping[str, Any]) -> str:
    if not source:
        return ""
    weights = source.get("weights")
    if isinstance(weights, Mapping):
        return f"from {weights.get('file')}"
    if weights or "onnx" in source:
        return str(weights or "as in the file")
    return f"not loaded; seed {source.get('seed', 0)}"


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
        devices=tuple(sorted({f"CPU: {r.content['cpu']}" for r in results if "cpu" in r.content})),
        files=tuple(_files(results)),
        started=min(filter(None, started), default=""),
    )


def _files(results: Sequence[AnyResult]) -> Iterator[FileLine]:
    for stage, prefix in ((EXPORT, ""), (ENGINE, "engine_")):
        for result in results:
            content = result.content
            if result.stage != stage or not content.get(f"{prefix}sha256"):
                continue
            name = "model.onnx"
            if stage == ENGINE:
                name = next(iter(content.get("files", {})), "engine.engine")
            path = f"{result.file.rpartition('/')[0]}/{name}"
            yield FileLine(path, content[f"{prefix}sha256"], content.get(f"{prefix}bytes"))
