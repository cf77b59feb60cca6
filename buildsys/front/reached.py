"""Which stored results the manifests reach: those here, and those of git revisions.

What a result was made from is compared as far as a repository can say it: manifest fields, and the content of the
user's files. Versions of libraries, devices and buildsys itself are not: what another machine built stays as well.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from buildsys.graph.project_plan import ProjectPlan
from buildsys.manifest.project import Project, load_project
from buildsys.snapshot import Surveyor
from buildsys.store.digest import DigestMemo
from buildsys.store.ledger import ImportMemo, Record
from buildsys.store.state import StateDb

_GIVEN = ("config", "source", "weights", "inputs", "outputs")  # kinds of parts that come from the repository
Given = frozenset[tuple[str, str]]


def reached_by(root: Path, revisions: Sequence[str]) -> Callable[[Record], bool]:
    """Return what tells whether a record is one of the manifests here or at one of the revisions.

    Raises: ManifestErrors: the manifests here are wrong.
    UsageError: a revision is not known, or its manifests are wrong.
    """
    from buildsys.front.revision import project_at

    project = load_project(root)
    reached = set(_given(project))
    for revision in revisions:
        with project_at(project, revision) as at:
            reached |= set(_given(at.project))
    return lambda record: (record.target, _given_of(record.parts)) in reached


def _given(project: Project) -> Iterable[tuple[str, Given]]:
    actions = ProjectPlan(project.models)
    with tempfile.TemporaryDirectory(prefix="buildsys-") as folder:
        db = StateDb(Path(folder) / "state.db")
        survey = Surveyor(project.root, project.build, DigestMemo(db), ImportMemo(db))
        yield from ((target, _given_of(survey.snapshot(action).parts)) for target, action in actions.items())
        db.close()


def _given_of(parts: Mapping[str, str]) -> Given:
    return frozenset((label, value) for label, value in parts.items() if label.partition(":")[0] in _GIVEN)
