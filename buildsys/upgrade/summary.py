"""What an upgrade changes, as a table, Markdown, JSON, pins and engines to hold back."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from buildsys.report import formatting as q
from buildsys.report.markdown import code, escape, table
from buildsys.system.backend_registry import describe_backend
from buildsys.system.versions import builds_of
from buildsys.upgrade.verdicts import UNCHANGED, VERDICTS, EngineChange

SCHEMA = "buildsys/upgrade/1"
COLUMNS = ("engine", "verdict", "latency>", "change>", "interval>", "size>", "error>")
Versions = Mapping[str, tuple[str, str]]  # name -> old and new


@dataclass
class Upgrade:
    """An upgrade and what it changes."""

    versions: Versions
    engines: Sequence[EngineChange] = ()
    conflicts: Sequence[str] = ()
    packages: bool = True  # the versions are those of distributions
    affected: Mapping[str, Any] = field(default_factory=dict)  # stale target -> state and reasons

    @property
    def title(self) -> str:
        """The versions: ``onnxruntime 1.31.0 → 1.32.0``."""
        return ", ".join(f"{name} {' → '.join(pair)}" for name, pair in self.versions.items())

    @property
    def held(self) -> list[EngineChange]:
        """The engines that should keep the old version."""
        return [engine for engine in self.engines if engine.is_held]

    @property
    def pins(self) -> list[str]:
        """The new versions as lines of a constraints file."""
        pairs = self.versions.items() if self.packages else ()
        return [f"{name}=={new}" for name, (_, new) in pairs if new]

    def counts(self) -> str:
        """Count the engines by verdict."""
        counts = Counter(engine.verdict for engine in self.engines)
        if not counts:
            return "no engine is affected"
        return ", ".join(f"{counts[verdict]} {verdict}" for verdict in VERDICTS if counts[verdict])

    def rows(self) -> Iterator[tuple[str, ...]]:
        """Yield the cells of ``COLUMNS`` per engine, the worst first."""
        for engine in sorted(self.engines, key=lambda e: VERDICTS.index(e.verdict)):
            latency = engine.figures.get("latency", {})
            low, high = latency.get("low"), latency.get("high")
            span = "" if low is None or high is None else f"{q.change(low)} to {q.change(high)}"
            yield (
                engine.name,
                ", ".join(engine.verdicts) or UNCHANGED,
                _pair(latency, q.GATED_FIGURES["latency"]),
                q.change(latency["change"]) if latency else "",
                span,
                _pair(engine.figures.get("size", {}), q.size),
                _pair(engine.figures.get("error", {}), q.error),
            )

    def as_json(self) -> dict[str, Any]:
        """Convert to the document of ``--json``."""
        return {
            "schema": SCHEMA,
            "versions": {name: [*pair] for name, pair in self.versions.items()},
            "conflicts": [*self.conflicts],
            "affected": dict(self.affected),
            "engines": [{**asdict(engine), "verdict": engine.verdict} for engine in self.engines],
            "pins": self.pins,
            "hold": [engine.name for engine in self.held],
        }

    def markdown(self, specs: Mapping[str, Mapping[str, Any]]) -> str:
        """Write the summary for a pull request; ``specs`` are engines of manifests by name."""
        lines = [f"# {escape(self.title)}: {self.counts()}", ""]
        if self.engines:
            lines += table(COLUMNS, [tuple(map(escape, row)) for row in self.rows()])
        causes = [(engine.name, why) for engine in self.engines for why in engine.why]
        lines += ["", *(f"- {code(name)}: {escape(why)}" for name, why in causes)]
        lines += [f"- {escape(text)}" for text in self.conflicts]
        if self.held:
            lines += ["", "## Hold back", "", "```text", *self.instructions(specs), "```"]
        return "\n".join(lines) + "\n"

    def instructions(self, specs: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
        """Explain how the held engines keep the old versions: by a toolchain, if they can."""
        yield from (f"{engine.name}: {', '.join(engine.verdicts)}" for engine in self.held)
        olds = {name: old for name, (old, _) in self.versions.items() if old and self.packages}
        others = [e.name for e in self.held if not any(_needs(specs[e.name], n) for n in olds)]
        if others and olds:
            pins = " ".join(f"{name}=={old}" for name, old in olds.items())
            names = q.first_names(others, 3)
            yield f"{names}: keep {pins} for the project, as no toolchain exports or validates"
        for name, old in olds.items():
            own = [engine for engine in self.held if _needs(specs[engine.name], name)]
            chain = f"{name}-{old}"
            python = f".toolchains/{chain}/bin/python"
            if own:
                yield f"$ python -m venv .toolchains/{chain}"
                yield f"$ {python} -m pip install numpy {name}=={old}"
                yield f"configs/project.yaml: toolchains: {{{chain}: {{python: {python}}}}}"
            for engine in own:
                kept = specs[engine.name].get("toolchain")
                text = f"toolchain: {chain}" if not kept else f"another toolchain than {kept}"
                yield f"{engine.model}, engine {engine.engine}: {text}"


def _needs(spec: Mapping[str, Any], distribution: str) -> bool:
    """Check if a distribution runs an engine, so that a toolchain may have another version."""
    return distribution in builds_of(describe_backend(spec["backend"]).distribution)


def write_pins(text: str, pins: Sequence[str]) -> str:
    """Set versions in a constraints or requirements file; new ones are added at its end."""
    missing = []
    for pin in pins:
        name, _, version = pin.partition("==")
        spelled = re.sub("-", "[-_.]+", re.escape(name).replace("\\-", "-"))
        line = re.compile(rf"^({spelled}(?:\[[^]]*\])?\s*)===?\s*[^\s;#]+", re.M | re.I)
        text, count = line.subn(rf"\g<1>=={version}", text)
        missing += [] if count else [f"{pin}\n"]
    return text + ("\n" if missing and text and not text.endswith("\n") else "") + "".join(missing)


def _pair(figures: Mapping[str, Any], show: Any) -> str:
    if not figures:
        return ""
    before, after = (show(figures[name]) for name in ("before", "after"))
    return before if before == after else f"{before} → {after}"
