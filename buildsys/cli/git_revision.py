"""The state of a git checkout, and the project at a git revision.

A revision is checked out into a temporary folder, because `git worktree add` would write into the
repository, which may be read-only.
"""

import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from buildsys.errors import ManifestErrors, UsageError
from buildsys.project.load import Project, empty_project, load_project
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
    Raises: UsageError: there is no repository, or no git.
    """
    root, top = root.resolve(), _top(root).resolve()
    folders = (folder.resolve() for folder in unversioned)
    others = [os.path.relpath(folder, top) for folder in folders if folder.is_relative_to(top)]
    paths = (":/", *(f":(top,exclude){name}" for name in others))
    status = ("status", "--porcelain=v2", "--branch", "--", *paths)
    lines = _git(root, *status, problem="git status failed").splitlines()
    facts = dict(line[2:].split(" ", 1) for line in lines if line[:2] == "# ")
    commit = facts.get("branch.oid", "").replace("(initial)", "")
    project = ""
    with suppress(UsageError):  # no remote
        project = _remote_name(_git(root, "remote", "get-url", "origin", problem="no remote"))
        inside = root.relative_to(top).as_posix()
        project += "" if inside == "." else f"//{inside}"
    return Checkout(project, commit, any(line[:2] != "# " for line in lines))


def commits_until(root: Path, revision: str) -> list[str]:
    """List a revision's commit and its ancestors, newest first.

    Raises: UsageError: there is no repository, or no such revision.
    """
    problem = f"there is no build or git revision {revision!r}"
    commit = _git(root, *commit_query(revision), problem=problem)
    return _git(root, "rev-list", "--max-count=1000", commit, problem=problem).splitlines()


def commits_between(root: Path, first: str, last: str) -> list[str]:
    """List the commits after ``first`` up to ``last``, oldest first, [] if it is no ancestor."""
    if run_git(root, "merge-base", "--is-ancestor", first, last).returncode:
        return []
    listing = ("rev-list", "--first-parent", "--reverse", f"{first}..{last}", "--", ".")
    return _git(root, *listing, problem=f"git cannot list {first}..{last}").splitlines()


def subject_of(root: Path, commit: str) -> str:
    """Read the first line of a commit's message."""
    return _git(root, "show", "-s", "--format=%s", commit, problem=f"there is no commit {commit}")


def _remote_name(url: str) -> str:
    """Make one name for a remote's URLs, without user and password."""
    _, scheme, address = url.rpartition("://")
    host, slash, path = address.partition("/")
    host = host.rpartition("@")[2]
    if not scheme:
        host = host.replace(":", "/", 1)  # git@host:path
    return f"{host}{slash}{path}".rstrip("/").removesuffix(".git")


@contextmanager
def project_at(project: Project, revision: str) -> Iterator[Revision]:
    """Yield the project as it was at a revision.

    Files ignored by git (weights, data) are linked, as git has no other version of them.

    Raises: UsageError: no git repository, an unknown revision, or wrong shared manifests in it.
    """
    top = _top(project.root)
    problem = f"git knows no revision {revision!r}"
    hint = "`git log` and `git tag` list revisions"
    commit = _git(top, *commit_query(revision), problem=problem, hint=hint)
    with tempfile.TemporaryDirectory(prefix="buildsys-since-", ignore_cleanup_errors=True) as name:
        folder = Path(name).resolve()
        tree = _mirror(top.resolve(), folder / "files")
        root = Path(os.path.normpath(tree / os.path.relpath(project.root.resolve(), top)))
        root.mkdir(parents=True)
        index, failed = folder / "index", f"git cannot check out {revision}"
        for command in (("read-tree", commit), ("checkout-index", "-a", f"--prefix={tree}/")):
            _git(top, *command, problem=failed, hint="set TMPDIR to another folder", index=index)
        _link_ignored(project, top, tree)
        there = empty_project(root).configs  # by its settings then, unless a variable names it
        if os.environ.get("BUILDSYS_CONFIGS"):
            there = Path(os.path.normpath(root / os.path.relpath(project.configs, project.root)))
        if not there.is_relative_to(tree) or not (there / "models").is_dir():
            problem = (
                f"{revision} has no manifests: no folder {os.path.relpath(there, root)}/models"
            )
            raise UsageError(problem, "name another revision")
        try:
            old = load_project(root, remember=False, configs=there, links_into=project.root)
        except ManifestErrors as error:  # of files that all models share
            problem = f"{plural(len(error.errors), 'error')} in the manifests of {revision}"
            raise UsageError(f"{problem}\n{error}".replace(f"{root}{os.sep}", "")) from None
        yield Revision(revision, commit, old)


def _mirror(top: Path, folder: Path) -> Path:
    """Link all around the repository into a folder, so that paths out of it lead there."""
    for parent in reversed(top.parents):
        place = folder / parent.relative_to("/")
        place.mkdir(parents=True, exist_ok=True)
        with suppress(OSError):  # a folder that may not be listed
            for path in parent.iterdir():
                if path not in (top, *top.parents):
                    (place / path.name).symlink_to(path)
    return folder / top.relative_to("/")


def _link_ignored(project: Project, top: Path, tree: Path) -> None:
    """Link the files and whole folders ignored by git into a tree."""
    own = {folder.resolve() for folder in (project.build, project.state)}
    listing = ("--others", "--ignored", "--exclude-standard", "--directory")
    names = _git(project.root, "ls-files", "-z", *listing, problem="git ls-files failed")
    for name in filter(None, names.split("\0")):
        path = Path(os.path.normpath(project.root.resolve() / name))
        place = tree / path.relative_to(top)
        if path in own or path.name in ("__pycache__", ".git") or place.exists():
            continue
        # not through a link out of the tree
        if Path(os.path.realpath(place.parent)).is_relative_to(tree):
            place.parent.mkdir(parents=True, exist_ok=True)
            place.symlink_to(path)


def _top(folder: Path) -> Path:
    problem = f"{folder} is not in a git repository"
    return Path(_git(folder, "rev-parse", "--show-toplevel", problem=problem))


def _git(
    folder: Path, *arguments: str, problem: str, hint: str = "", index: Path | None = None
) -> str:
    """Run git and return its output. Raises: UsageError: ``problem``, as it failed."""
    try:
        done = run_git(folder, *arguments, index=index)
    except FileNotFoundError:
        raise UsageError("git is not installed", "install git") from None
    if done.returncode:
        message = os.fsdecode(done.stderr).strip().rpartition("\n")[2]
        if "not a git repository" in message:
            raise UsageError(problem)
        raise UsageError(problem, f"git: {message}" if message else hint)
    return os.fsdecode(done.stdout).strip()
