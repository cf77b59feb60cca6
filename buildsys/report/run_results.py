"""Results of one run of doit, as JUnit XML and as one screen of Markdown for comments.

The XML (suites for models, cases for targets) is valid against the schemas of Ant (windyroad) and
of Jenkins (junit-10), which know different elements. A build error is therefore a ``failure`` too
(one has no ``error``).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from xml.etree import ElementTree

from buildsys.report.formatting import NOTHING, duration, first_names, fold, plural
from buildsys.report.markdown import code, escape, section, table
from buildsys.system.printable import printable, printable_line

PASSED, RESTORED, UP_TO_DATE = "passed", "restored", "up-to-date"
UNAVAILABLE, NOISY, FAILED = "unavailable", "noisy", "failed"
IGNORED, NOT_RUN = "ignored", "not-run"
FINISHED, RUNNING, INTERRUPTED, REFUSED = "finished", "running", "interrupted", "refused"
STATUSES = (PASSED, RESTORED, UP_TO_DATE, UNAVAILABLE, NOISY, FAILED, IGNORED, NOT_RUN)


@dataclass(frozen=True)
class TargetResult:
    """The end of one target."""

    target: str
    model: str
    stage: str
    variant: str
    status: str  # one of STATUSES
    seconds: float = 0.0
    why: str = ""  # why it was stale
    figure: str = ""  # its key figure
    # failure with its hint, or why it is unavailable, noisy or was not run
    reason: str = ""
    error: str = ""  # type of the failure
    log: str = ""  # this run's log, relative to the project
    owner: str = ""
    first_failure: str = ""  # why a flaky target was repeated
    last_passed: str = ""  # start of the run that passed before this failure, ISO
    regressed: bool = False  # the run before this one passed, or a gate refused it


@dataclass(frozen=True)
class BrokenManifest:
    """A manifest with errors."""

    file: str
    errors: tuple[str, ...]


@dataclass(frozen=True)
class RunResults:
    """One run of doit."""

    started: str  # ISO, UTC
    seconds: float
    host: str
    status: str = FINISHED  # RUNNING also after a kill, REFUSED if nothing could be run
    error: str = ""  # why it is running or refused
    targets: tuple[TargetResult, ...] = ()
    manifests: tuple[BrokenManifest, ...] = ()

    @property
    def failed(self) -> list[TargetResult]:
        """Failed targets without an earlier success, or failed before."""
        return self._where(lambda end: end.status == FAILED and not end.regressed)

    @property
    def regressed(self) -> list[TargetResult]:
        """Targets failed or unavailable after a successful run."""
        return self._where(lambda end: end.regressed)

    @property
    def never_ran(self) -> list[TargetResult]:
        """Requested targets not reached by this run."""
        return self._where(lambda end: end.status in (NOT_RUN, IGNORED))

    @property
    def never_ran_by_reason(self) -> dict[str, list[TargetResult]]:
        """Targets not reached, by the reason."""
        targets: dict[str, list[TargetResult]] = {}
        for target in self.never_ran:
            targets.setdefault(target.reason, []).append(target)
        return targets

    @property
    def flaky(self) -> list[TargetResult]:
        """Targets passed only on repetition."""
        return self._where(lambda end: bool(end.first_failure) and end.status != FAILED)

    @property
    def noisy(self) -> list[TargetResult]:
        """Benchmarks without a trustworthy figure."""
        return self._where(lambda end: end.status == NOISY)

    @property
    def built(self) -> list[TargetResult]:
        """Targets built or restored by this run."""
        return self._where(lambda end: end.status in (PASSED, RESTORED))

    def count(self, status: str) -> int:
        """Count the targets with a status."""
        return sum(target.status == status for target in self.targets)

    def _where(self, accepts: Callable[[TargetResult], bool]) -> list[TargetResult]:
        return [target for target in self.targets if accepts(target)]


def regression(runs: Sequence[tuple[str, str]], since: str) -> tuple[str, bool]:
    """Return the start of the last success before ``since``, and whether it was the last run.

    ``runs`` are status and start of a target's runs without noisy ones, newest first.
    """
    before = [run for run in runs if run[1] < since]
    if len(before) == len(runs):  # not in this run
        return "", False
    passed = [run for run in before if run[0] in (PASSED, RESTORED)]
    return (passed[0][1] if passed else ""), before[:1] == passed[:1] != []


_MOST_ROWS = 25
_MOST_NAMES = 5


def run_summary(run: RunResults, title: str) -> str:
    """Write the summary of a run as Markdown."""
    return "\n".join((f"# {escape(title)}: {escape(outcome(run))}", *_lines(run))) + "\n"


def outcome(run: RunResults) -> str:
    """Describe a run's outcome: ``1 failed, 2 never ran`` or ``passed``."""
    if run.status == REFUSED:
        return "nothing could run"
    if run.status == RUNNING:
        return "not finished"
    counts = (
        (len(run.manifests), "broken manifest", "broken manifests"),
        (len(run.failed), "failed", "failed"),
        (len(run.regressed), "regressed", "regressed"),
        (len(run.never_ran), "never ran", "never ran"),
    )
    parts = [INTERRUPTED] if run.status == INTERRUPTED else []
    parts += [plural(count, single, several) for count, single, several in counts if count]
    parts = parts or ["passed"]
    parts += [f"{count} {s}" for s in (UNAVAILABLE, NOISY) if (count := run.count(s))]
    return ", ".join(parts)


def _lines(run: RunResults) -> Iterator[str]:
    counts = [f"{count} {s.replace('-', ' ')}" for s in STATUSES if (count := run.count(s))]
    targets = ", ".join(counts) or "no targets"
    when = run.started.replace("T", " ").removesuffix("Z")
    yield from ("", f"{targets} in {duration(run.seconds)}, on {escape(run.host)} from {when} UTC.")
    if run.error:
        yield from ("", escape(run.error))
    if run.manifests:
        yield from section("## Broken manifests")
        for manifest in run.manifests[:_MOST_ROWS]:
            yield from (f"- {escape(error)}" for error in manifest.errors[:_MOST_ROWS])
        yield from _more(len(run.manifests))
    for heading, columns, rows in _tables(run):
        if rows:
            yield from section(f"## {heading}")
            yield from table(columns, rows[:_MOST_ROWS])
            yield from _more(len(rows))


def _tables(run: RunResults) -> Iterator[tuple[str, Sequence[str], Sequence[tuple[str, ...]]]]:
    """Yield heading, columns and rows, first what needs somebody."""
    columns = ("target", "owner", "reason")
    for heading, targets in (
        ("Failed", run.failed),
        ("Regressed", run.regressed),
        ("Noisy", run.noisy),
        ("Flaky: passed when repeated", run.flaky),
    ):
        yield heading, columns, [(code(t.target), escape(t.owner), _reason(t)) for t in targets]
    missed = []
    for why, targets in run.never_ran_by_reason.items():
        owners = ", ".join(dict.fromkeys(t.owner for t in targets if t.owner))
        names = first_names([code(target.target) for target in targets], _MOST_NAMES)
        missed.append((names, escape(owners), escape(why)))
    yield "Never ran", ("targets", "owner", "reason"), missed
    built = [
        (
            code(target.target),
            duration(target.seconds) if target.seconds else NOTHING,
            escape(target.figure),
            escape(target.why),
        )
        for target in run.built
    ]
    yield "Built", ("target", "time>", "key figure", "reason"), built


def _reason(target: TargetResult) -> str:
    is_flaky = bool(target.first_failure) and target.status != FAILED
    text = target.first_failure if is_flaky else target.reason.split("\n")[0]
    parts = [escape(fold(text)[0])]
    parts += [f"last passed {target.last_passed[:10]}"] if target.last_passed else []
    parts += [f"log: {code(target.log)}"] if target.log else []
    return "; ".join(part for part in parts if part)


def _more(count: int) -> Sequence[str]:
    return ("", f"and {count - _MOST_ROWS} more") if count > _MOST_ROWS else ()


def junit_xml(run: RunResults, *, strict: bool = False) -> bytes:
    """Write a run's JUnit XML; with ``strict``, ignored targets are failures."""
    root = ElementTree.Element("testsuites")
    problems = [
        TargetResult(
            manifest.file, "manifests", "manifest", "", FAILED, reason="\n".join(manifest.errors),
            error="ManifestError",
        )
        for manifest in run.manifests
    ]  # fmt: skip
    if run.status != FINISHED:  # a report without failures would look green
        end = TargetResult("run", "run", "run", "", FAILED, reason=run.error, error=run.status)
        problems.append(end)
    suites = groupby((*problems, *run.targets), lambda target: target.model)
    for number, (name, group) in enumerate(suites):
        targets = list(group)
        cases = [_case(target, strict=strict) for target in targets]
        failures, skipped = (
            sum(case.find(kind) is not None for case in cases) for kind in ("failure", "skipped")
        )
        suite = ElementTree.SubElement(
            root,
            "testsuite",
            id=str(number),
            name=printable_line(name),
            package="buildsys",
            timestamp=run.started.removesuffix("Z"),
            hostname=printable_line(run.host) or "localhost",
            tests=str(len(cases)),
            failures=str(failures),
            errors="0",
            skipped=str(skipped),
            time=_seconds(sum(target.seconds for target in targets)),
        )
        properties = ElementTree.SubElement(suite, "properties")
        for owner in filter(None, dict.fromkeys(target.owner for target in targets)):
            fields = {"name": "owner", "value": printable_line(owner)}
            ElementTree.SubElement(properties, "property", fields)
        suite.extend(cases)
        ElementTree.SubElement(suite, "system-out")
        ElementTree.SubElement(suite, "system-err")
    ElementTree.indent(root)
    content: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return content + b"\n"


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
        message = fold(printable(target.reason.split("\n")[0]))[0]
        problem = ElementTree.SubElement(
            case, "failure" if failed else "skipped", message=message or target.status
        )
        if failed:  # the schema of Ant knows no type of "skipped"
            problem.set("type", target.error or target.status)
        lines = [target.reason, f"log: {target.log}" if target.log else ""]
        problem.text = printable("\n".join(line for line in lines if line))
    return case


def _seconds(value: float) -> str:
    return f"{max(0.0, value):.3f}"
