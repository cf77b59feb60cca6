"""The project at a git revision, and the stored builds of revisions.

A revision is checked out into a temporary folder, because `git worktree add` would write into the
repository, which may be read-only.

To find builds, manifest fields and sources are compared, as a repository has them. Versions of
libraries, devices and buildsys itself are not: builds from other machines are kept as well.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from buildsys.errors import BuildsysError, ManifestErrors, UsageError
from buildsys.execution.action_key import ABSENT, KeyBuilder
from buildsys.execution.builder_versions import builder_versions
from buildsys.manifest.project import Project, load_project
from buildsys.plan.action import Action
from buildsys.plan.project_plan import ProjectPlan, model_of
from buildsys.report.formatting import plural
from buildsys.store.file_digests import DigestCache
from buildsys.store.ledger import ActionRecord
from buildsys.store.state_db import StateDb

_FROM_REPOSITORY = ("config", "source", "weights", "inputs", "outputs")  # kinds of key parts
_INPUT = "input:"
Parts = frozenset[tuple[str, str]]
# set when a git hook calls us
_GIT_VARIABLES = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX")


class Revision(NamedTuple):
    """The project at a revision, while its work tree exists."""

    name: str  # as typed
    commit: str
    project: Project


@contextmanager
def project_at(project: Project, revision: str) -> Iterator[Revision]:
    """Yield the project as it was at a revision.

    Files ignored by git (weights, data) are linked, as git has no other version of them.

    Raises: UsageError: no git repository, an unknown revision, or wrong manifests in it.
    """
    if shutil.which("git") is None:
        raise UsageError("`--since` needs git, which is not installed")
    git = _Git(project.root)
    commit = git.text(
        *("rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}"),
        problem=f"git knows no revision {revision!r}",
        hint="`git log` and `git tag` list revisions",
    )
    if not project.configs.resolve().is_relative_to(git.top):
        raise UsageError(f"{project.configs} is outside the git repository {git.top}")
    inside = os.path.relpath(project.root.resolve(), git.top)
    relative_configs = os.path.relpath(project.configs, project.root)
    with git.checkout(commit) as tree:
        root = Path(os.path.normpath(tree / inside))
        root.mkdir(parents=True, exist_ok=True)
        configs = Path(os.path.normpath(root / relative_configs))
        if not configs.is_relative_to(tree):
            raise UsageError(f"{project.configs} is outside the git repository {git.top}")
        ours = {folder.resolve() for folder in (project.build, project.state)}
        for path in git.ignored():
            place = tree / path.relative_to(git.top)
            if path in ours or path.name in ("__pycache__", ".git") or place.exists():
                continue
            # not through a link out of the tree
            if Path(os.path.realpath(place.parent)).is_relative_to(tree):
                place.parent.mkdir(parents=True, exist_ok=True)
                place.symlink_to(path)
        if not (configs / "models").is_dir():
            raise UsageError(f"{revision} has no manifests: no folder {relative_configs}/models")
        try:
            old = load_project(root, remember=False, configs=configs, links_into=project.root)
        except ManifestErrors as error:
            problem = f"{plural(len(error.errors), 'error')} in the manifests of {revision}"
            raise UsageError(f"{problem}\n{error}".replace(f"{root}{os.sep}", "")) from None
        yield Revision(revision, commit, old)


class _Git:
    """The git repository around a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        problem = f"{folder} is not in a git repository"
        self.top = Path(self.text("rev-parse", "--show-toplevel", problem=problem))

    @contextmanager
    def checkout(self, commit: str) -> Iterator[Path]:
        """Yield a temporary folder with the files of a commit."""
        hint = "set TMPDIR to another folder"
        try:
            folder = Path(tempfile.mkdtemp(prefix="buildsys-since-")).resolve()
        except OSError as error:
            problem = f"cannot make a temporary folder: {error.strerror}"
            raise BuildsysError(f"{problem}; {hint}") from None
        tree, index = folder / "tree", folder / "index"
        tree.mkdir()
        try:
            for command in (("read-tree", commit), ("checkout-index", "-a", f"--prefix={tree}/")):
                done = self._run(*command, index=index)
                if done.returncode:
                    found = os.fsdecode(done.stderr).strip().partition("\n")[0]
                    raise UsageError(f"git {command[0]} failed: {found}", hint)
            yield tree
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def ignored(self) -> list[Path]:
        """Return the files and whole folders ignored by git."""
        listing = ("--others", "--ignored", "--exclude-standard", "--directory")
        done = self._run("ls-files", "-z", *listing)
        here = self._folder.resolve()
        names = (os.fsdecode(name) for name in done.stdout.split(b"\0") if name)
        return [Path(os.path.normpath(here / name)) for name in names]

    def text(self, *arguments: str, problem: str, hint: str = "") -> str:
        """Return the output of a git command.

        Raises: UsageError: ``problem``, as the command failed.
        """
        done = self._run(*arguments)
        if done.returncode:
            found = os.fsdecode(done.stderr).strip().rpartition("\n")[2]
            raise UsageError(
                problem,
                "" if "not a git repository" in found else f"git: {found}" if found else hint,
            )
        return os.fsdecode(done.stdout).strip()

    def _run(
        self, *arguments: str, index: Path | None = None
    ) -> subprocess.CompletedProcess[bytes]:
        kept = {name: value for name, value in os.environ.items() if name not in _GIT_VARIABLES}
        environment = {**kept, "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}
        if index is not None:
            environment["GIT_INDEX_FILE"] = str(index)
        folder = self._folder if index is None else self.top
        # a sparse work tree would leave files out
        command = ["git", "-c", "core.sparseCheckout=false", "-C", str(folder), *arguments]
        return subprocess.run(command, env=environment, capture_output=True, check=False)


class Reached(NamedTuple):
    """Records and timing caches reached by manifests."""

    records: Callable[[ActionRecord], bool]
    pins: frozenset[str]  # digests of pinned timing caches


def reached_by(root: Path, revisions: Sequence[str]) -> Reached:
    """Return the builds reached here or at one of the revisions.

    Raises: ManifestErrors: the manifests here are wrong.
    UsageError: a revision is unknown, or its manifests are wrong.
    """
    project = load_project(root)
    reached, pins = set(_repository_parts(project)), _pins(project)
    for revision in revisions:
        with project_at(project, revision) as at:
            reached |= set(_repository_parts(at.project))
            pins |= _pins(at.project)
    return Reached(
        lambda record: (record.target, _select(record.parts)) in reached, frozenset(pins)
    )


def builds_of(
    project: Project, revision: str, target: str, records: Callable[[str], Sequence[ActionRecord]]
) -> list[ActionRecord] | None:
    """Return the recorded builds matching a target at a git revision.

    The fields and sources of all targets upstream must match as well. None: the revision has no
    such target. ``records`` returns the builds of a target, in the order of the answer.

    Raises: UsageError: the revision is unknown, or its manifests are wrong.
    """
    with project_at(project, revision) as at:
        versions = builder_versions(at.project.root, project.state)
        actions = ProjectPlan(at.project.models, versions).of(model_of(target))
        if target not in actions:
            return None
        parts = dict(_repository_parts(at.project, actions))
    matching: dict[str, list[ActionRecord]] = {}

    def matches(target: str) -> list[ActionRecord]:
        if target not in matching:
            upstream = [record for name in actions[target].after for record in matches(name)]
            made = {
                (f"{_INPUT}{path}", file.digest)
                for record in upstream
                for path, file in record.files.items()
            }
            matching[target] = [
                record
                for record in records(target)
                if _select(record.parts) == parts[target]
                and all(
                    part in made
                    for part in record.parts.items()
                    if part[0].startswith(_INPUT) and part[1] != ABSENT
                )
            ]
        return matching[target]

    return matches(target)


def _pins(project: Project) -> set[str]:
    """Return the digests of timing caches pinned by engines."""
    engines = (engine for model in project.models.values() for engine in model.data["engines"])
    pinned = (engine.get("timing_cache") or {} for engine in engines)
    return {str(cache["pin"]) for cache in pinned if cache.get("pin")}


def _repository_parts(
    project: Project, actions: Mapping[str, Action] | None = None
) -> Iterator[tuple[str, Parts]]:
    if actions is None:
        actions = ProjectPlan(project.models, builder_versions(project.root, project.state))
    with tempfile.TemporaryDirectory(prefix="buildsys-") as folder:
        db = StateDb(Path(folder) / "state.db")
        keys = KeyBuilder(project.root, project.build, DigestCache(db), db)
        for target, action in actions.items():
            yield target, _select(keys.build(action).parts)
        db.close()


def _select(parts: Mapping[str, str]) -> Parts:
    return frozenset(
        part for part in parts.items() if part[0].partition(":")[0] in _FROM_REPOSITORY
    )
