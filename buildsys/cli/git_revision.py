"""The project at a git revision, and the stored builds of revisions.

A revision is checked out into a temporary folder, because `git worktree add` would write into the
repository, which may be read-only.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from buildsys.errors import BuildsysError, ManifestErrors, UsageError
from buildsys.execution.key_parts import builder_versions
from buildsys.execution.reachable_builds import PlannedBuilds, RecordsOf, planned_builds
from buildsys.project.load import Project, load_project
from buildsys.project.plan import ProjectPlan
from buildsys.report.formatting import plural
from buildsys.system.git import Checkout, commit_query, run_git


class Revision(NamedTuple):
    """The project at a revision, while its work tree exists."""

    name: str  # as typed
    commit: str
    project: Project


def read_checkout(root: Path, unversioned: Iterable[Path]) -> Checkout:
    """Read the state of the git checkout around ``root``.

    Changes in the ``unversioned`` folders do not count.
    Raises: UsageError: there is no repository. OSError: there is no git.
    """
    git, root = _Git(root), root.resolve()
    top = git.top.resolve()
    folders = (folder.resolve() for folder in unversioned)
    others = [os.path.relpath(folder, top) for folder in folders if folder.is_relative_to(top)]
    paths = (":/", *(f":(top,exclude){name}" for name in others))
    lines = git.text("status", "--porcelain=v2", "--branch", "--", *paths, problem="git status")
    facts = dict(line[2:].split(" ", 1) for line in lines.splitlines() if line[:2] == "# ")
    commit = facts.get("branch.oid", "").replace("(initial)", "")
    is_dirty = any(line[:2] != "# " for line in lines.splitlines())
    project = ""
    with suppress(UsageError):  # no remote
        project = _remote_name(git.text("remote", "get-url", "origin", problem="no remote"))
        inside = root.relative_to(top).as_posix()
        project += "" if inside == "." else f"//{inside}"
    return Checkout(project, commit, is_dirty)


def commits_until(root: Path, revision: str) -> list[str]:
    """Return a revision's commit and its ancestors, newest first.

    Raises: UsageError: there is no repository, or no such revision.
    """
    git = _Git(root)
    problem = f"there is no model, engine, build or git revision {revision!r}"
    hint = "`buildsys history` lists builds"
    commit = git.text(*commit_query(revision), problem=problem, hint=hint)
    return git.text("rev-list", "--max-count=1000", commit, problem=problem).splitlines()


def _remote_name(url: str) -> str:
    """Return one name for a remote's URLs, without user and password."""
    _, scheme, address = url.rpartition("://")
    host, slash, path = address.partition("/")
    host = host.rpartition("@")[2]
    if not scheme:
        host = host.replace(":", "/", 1)  # git@host:path
    return f"{host}{slash}{path}".rstrip("/").removesuffix(".git")


@contextmanager
def project_at(project: Project, revision: str, *, leave_out: bool = False) -> Iterator[Revision]:
    """Yield the project as it was at a revision.

    Files ignored by git (weights, data) are linked, as git has no other version of them. With
    ``leave_out``, broken manifests are left out.

    Raises: UsageError: no git repository, an unknown revision, or wrong manifests in it.
    """
    if shutil.which("git") is None:
        raise UsageError("`--since` needs git, which is not installed", "install git")
    git = _Git(project.root)
    commit = git.text(
        *commit_query(revision),
        problem=f"git knows no revision {revision!r}",
        hint="`git log` and `git tag` list revisions",
    )
    if not project.configs.resolve().is_relative_to(git.top):
        raise UsageError(
            f"{project.configs} is outside the git repository {git.top}",
            "put the manifests under version control",
        )
    inside = os.path.relpath(project.root.resolve(), git.top)
    relative_configs = os.path.relpath(project.configs, project.root)
    with git.checkout(commit) as tree:
        root = Path(os.path.normpath(tree / inside))
        root.mkdir(parents=True, exist_ok=True)
        configs = Path(os.path.normpath(root / relative_configs))
        if not configs.is_relative_to(tree):
            raise UsageError(
                f"{project.configs} is outside the git repository {git.top}",
                "put the manifests under version control",
            )
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
            raise UsageError(
                f"{revision} has no manifests: no folder {relative_configs}/models",
                "name another revision",
            )
        try:
            old = load_project(
                root,
                remember=False,
                configs=configs,
                links_into=project.root,
                leave_out=leave_out,
            )
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
                    message = os.fsdecode(done.stderr).strip().partition("\n")[0]
                    raise UsageError(f"git {command[0]} failed: {message}", hint)
            yield tree
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def ignored(self) -> list[Path]:
        """List the files and whole folders ignored by git."""
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
            message = os.fsdecode(done.stderr).strip().rpartition("\n")[2]
            raise UsageError(
                problem,
                "" if "not a git repository" in message else f"git: {message}" if message else hint,
            )
        return os.fsdecode(done.stdout).strip()

    def _run(
        self, *arguments: str, index: Path | None = None
    ) -> subprocess.CompletedProcess[bytes]:
        return run_git(self._folder if index is None else self.top, *arguments, index=index)


class Reached(NamedTuple):
    """Builds reached by manifests."""

    plans: tuple[PlannedBuilds, ...]

    def records(self, records: RecordsOf) -> set[tuple[str, str]]:
        """List target and key of all reached builds among ``records``."""
        return {name for plan in self.plans for name in plan.matching(records)}


def reached_by(root: Path, revisions: Sequence[str]) -> Reached:
    """Return the builds reached here or at one of the revisions.

    Raises: ManifestErrors: the manifests here are wrong.
    UsageError: a revision is unknown, or its manifests are wrong.
    """
    project = load_project(root)
    plans = [_planned(project, project.state)]
    for revision in revisions:
        with project_at(project, revision) as at:
            plans.append(_planned(at.project, project.state))
    return Reached(tuple(plans))


def _planned(project: Project, state: Path) -> PlannedBuilds:
    actions = ProjectPlan(project.models, builder_versions(project.root, state))
    return planned_builds(project.root, project.build, actions)
