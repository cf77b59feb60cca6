"""What two builds of a model come to, for people and for programs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from buildsys.cli.repro.artifacts import DIFFERENT, EQUAL, ONE_SIDED, Artifact
from buildsys.cli.repro.two_builds import Built

SCHEMA = "buildsys/repro/1"
_SHOUTED = {DIFFERENT: "DIFFERENT", ONE_SIDED: "IN ONE BUILD ONLY"}


@dataclass(frozen=True)
class Verdict:
    """Two builds of one model, file by file."""

    model: str
    builds: Sequence[Built]
    artifacts: Sequence[Artifact]
    kept: Path | None  # the folder that both lie in, where it stays

    @property
    def broken(self) -> list[Artifact]:
        """Return the artifacts that should be byte-equal and are not."""
        return [artifact for artifact in self.artifacts if artifact.broken]

    @property
    def failed(self) -> dict[str, str]:
        """Return the targets that could not be built, with the first reason."""
        return {
            target: reason
            for built in reversed(self.builds)
            for target, reason in built.failed().items()
        }

    @property
    def exit_code(self) -> int:
        """Return 2 where something could not be built, 1 where something differs that should not, else 0."""
        return 2 if self.failed else 1 if self.broken else 0

    def as_text(self) -> str:
        """Return a line per artifact, then what they come to."""
        return "\n".join((*self._lines(), self._sentence())) + "\n"

    def as_json(self) -> str:
        """Return the same for programs."""
        return json.dumps(self._figures(), indent=2, ensure_ascii=False) + "\n"

    def _lines(self) -> Iterator[str]:
        took = " and ".join(f"{built.seconds:.1f} s" for built in self.builds)
        yield f"{self.model}: two builds in clean folders, {took}"
        rows = [
            (_SHOUTED.get(a.state, a.state), a.target, a.file, _told(a)) for a in self.artifacts
        ]
        widths = [max((len(row[column]) for row in rows), default=0) for column in range(3)]
        for row in rows:
            cells = (text.ljust(width) for text, width in zip(row, widths, strict=False))
            yield f"  {'  '.join((*cells, row[3]))}"
        for target, reason in self.failed.items():
            yield f"  {target} could not be built: {reason}"
        for target, end in (self.builds[0].targets if self.builds else {}).items():
            if end["status"] == "unavailable":
                yield f"  {target} is unavailable here: {end['reason']}"
        if self.kept:
            yield f"kept: {', '.join(str(built.root) for built in self.builds)}"

    def _sentence(self) -> str:
        expected = [artifact for artifact in self.artifacts if not artifact.why]
        if self.broken:
            first = self.broken[0]
            return (
                f"not reproducible: {len(self.broken)} of {len(expected)} artifacts that should be byte-equal are not, "
                f"first {first.target} {first.file}"
            )
        if self.failed:
            return f"no verdict: {len(self.failed)} targets could not be built"
        return f"reproducible: all {len(expected)} artifacts that should be byte-equal are"

    def _figures(self) -> dict[str, Any]:
        status = "failed" if self.failed else "different" if self.broken else "reproducible"
        return {
            "schema": SCHEMA,
            "model": self.model,
            "status": status,
            "artifacts": [_figures(artifact) for artifact in self.artifacts],
            "builds": [
                {
                    "seconds": round(built.seconds, 3),
                    "hash_seed": built.conditions.hash_seed,
                    "folder": str(built.root) if self.kept else None,
                    "targets": {target: end["status"] for target, end in built.targets.items()},
                }
                for built in self.builds
            ],
            "failed": self.failed,
        }


def _told(artifact: Artifact) -> str:
    sizes = ["none" if size is None else f"{size} bytes" for size in artifact.sizes]
    if artifact.state == EQUAL:
        return sizes[0]
    text = sizes[0] if sizes[0] == sizes[1] else " / ".join(sizes)
    if artifact.first_byte is not None:
        text += f", first differing byte {artifact.first_byte}"
    if artifact.difference:
        text += f": {artifact.difference}"
    return text + (f" ({artifact.why})" if artifact.why else "")


def _figures(artifact: Artifact) -> dict[str, Any]:
    return {
        "target": artifact.target,
        "file": artifact.file,
        "state": artifact.state,
        "expected": not artifact.why,
        "why": artifact.why,
        "bytes": list(artifact.sizes),
        "first_byte": artifact.first_byte,
        "difference": artifact.difference,
        "field": artifact.field,
    }
