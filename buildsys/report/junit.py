"""JUnit XML of a run: suites for models, cases for targets.

The file is valid against the schemas of Ant (windyroad) and of Jenkins (junit-10), which know
different elements. A build error is therefore a ``failure`` too (one has no ``error``), and logs of
targets that passed are in the output of their suite (one has no output of a test case).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from xml.etree import ElementTree

from buildsys.report.run_results import (
    FAILED,
    FINISHED,
    IGNORED,
    NOISY,
    NOT_RUN,
    PASSED,
    RESTORED,
    UNAVAILABLE,
    RunResults,
    TargetResult,
)
from buildsys.system.printable import printable, printable_line

_MESSAGE_LENGTH = 500  # the attribute is cut, the text is complete


def junit_xml(run: RunResults, *, strict: bool = False) -> bytes:
    """Write a run's JUnit XML; with ``strict``, ignored targets are failures."""
    root = ElementTree.Element("testsuites")
    suites: list[tuple[str, Sequence[TargetResult]]] = []
    problems = [
        TargetResult(
            manifest.file, "manifests", "manifest", "", FAILED, reason="\n".join(manifest.errors),
            error="ManifestError",
        )
        for manifest in run.manifests
    ]  # fmt: skip
    if run.status != FINISHED:  # a report without failures would look green
        problems.append(
            TargetResult("run", "run", "run", "", FAILED, reason=run.error, error=run.status)
        )
    suites += [
        (name, list(own))
        for name, own in groupby((*problems, *run.targets), lambda target: target.model)
    ]
    for number, (name, targets) in enumerate(suites):
        _add_suite(root, number, name, targets, run, strict=strict)
    ElementTree.indent(root)
    content: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return content + b"\n"


def _add_suite(
    root: ElementTree.Element,
    number: int,
    name: str,
    targets: Sequence[TargetResult],
    run: RunResults,
    *,
    strict: bool,
) -> None:
    cases = [_case(target, strict=strict) for target in targets]

    def count(kind: str) -> str:
        return str(sum(case.find(kind) is not None for case in cases))

    suite = ElementTree.SubElement(
        root,
        "testsuite",
        id=str(number),
        name=printable_line(name),
        package="buildsys",
        timestamp=run.started.removesuffix("Z"),
        hostname=printable_line(run.host) or "localhost",
        tests=str(len(cases)),
        failures=count("failure"),
        errors="0",
        skipped=count("skipped"),
        time=_seconds(sum(target.seconds for target in targets)),
    )
    properties = ElementTree.SubElement(suite, "properties")
    for owner in dict.fromkeys(target.owner for target in targets if target.owner):
        ElementTree.SubElement(properties, "property", name="owner", value=printable_line(owner))
    suite.extend(cases)
    ElementTree.SubElement(suite, "system-out").text = printable("\n".join(_output(targets)))
    ElementTree.SubElement(suite, "system-err")


def _case(target: TargetResult, *, strict: bool) -> ElementTree.Element:
    case = ElementTree.Element(
        "testcase",
        name=printable_line(target.target),
        classname=printable_line(f"{target.model}.{target.stage}"),
        time=_seconds(target.seconds),
    )
    if target.status in (UNAVAILABLE, NOISY, IGNORED, NOT_RUN, FAILED):
        failed = (
            target.status == FAILED or target.regressed or (strict and target.status == IGNORED)
        )
        message = printable(" ".join(target.reason.split("\n")[0].split()))[:_MESSAGE_LENGTH]
        problem = ElementTree.SubElement(
            case, "failure" if failed else "skipped", message=message or target.status
        )
        if failed:  # the schema of Ant knows no type of "skipped"
            problem.set("type", target.error or target.status)
        lines = [target.reason, f"log: {target.log}" if target.log else ""]
        problem.text = printable("\n".join(line for line in lines if line))
    return case


def _output(targets: Iterable[TargetResult]) -> Iterable[str]:
    """Yield lines beyond test cases: reasons, figures and logs."""
    for target in targets:
        if target.status in (PASSED, RESTORED):
            parts = [f"{target.target}: {target.status}", target.figure]
            parts += [f"stale: {target.why}" if target.why else ""]
            parts += [f"failed at first: {target.first_failure}" if target.first_failure else ""]
            parts += [f"log: {target.log}" if target.log else ""]
            yield "; ".join(" ".join(part.split()) for part in parts if part)


def _seconds(value: float) -> str:
    return f"{max(0.0, value):.3f}"
