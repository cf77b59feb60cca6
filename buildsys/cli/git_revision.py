"""The project as it was at a git revision, laid out in a temporary folder; work tree and index are not touched."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from buildsys.errors import BuildsysError, ManifestErrors, UsageError
from buildsys.manifest.project import Project, load_project

_NO_LOCKS = {"GIT_OPTIONAL_LOCKS": "0"}
_GIT_PLACES = (
    "GIT_DIR",
    "GIT_WORK_TREE",
    "GIT_INDEX_FILE",
    "GIT_PREFIX",
)  # set when a git hook calls us
_NO_WORD = re.compile(r"[\s\"'{}\[\],]+")
_FILE_MODES = ("100644", "100755", "120000")


class Revision(NamedTuple):
    """A revision of the project, for as long as its temporary folder exists."""

    name: str  # as asked for
    commit: str
    project: Project


@contextmanager
def project_at(project: Project, revision: str) -> Iterator[Revision]:
    """Yield the project as it was at a revision.

    Laid out are the manifests, all Python files and every file whose name occurs in a manifest. Files that git ignores
    are taken as they are now: git knows of no other.

    Raises: UsageError: this is no git repository, the revision is not known, or its manifests are wrong.
    """
    if shutil.which("git") is None:
        raise UsageError("`--since` needs git, which is not installed")
    git = _Git(project.root)
    commit = git.commit(revision)
    inside = os.path.relpath(project.root.resolve(), git.top)
    configs = os.path.normpath(os.path.join(inside, os.path.relpath(project.configs, project.root)))  # noqa: PTH118
    if configs.startswith("..") or not project.configs.resolve().is_relative_to(git.top):
        raise UsageError(
            f"{project.configs} lies outside of the git repository {git.top}, which knows nothing of it"
        )
    with _temporary_folder() as folder:
        tree = folder / "tree"
        git.lay_out(commit, tree, folder / "index", configs)
        root = Path(os.path.normpath(tree / inside))
        _link_ignored(git, project, root)
        yield Revision(
            revision, commit, _load(project, root, Path(os.path.normpath(tree / configs)), revision)
        )


def _load(project: Project, root: Path, configs: Path, revision: str) -> Project:
    if not (configs / "models").is_dir():
        shown = os.path.relpath(project.configs, project.root)
        raise UsageError(f"{revision} has no manifests: there is no folder {shown}/models in it")
    try:
        return load_project(root, remember=False, configs=configs, links_into=project.root)
    except ManifestErrors as error:
        count = len(error.errors)
        found = str(error).replace(f"{root}{os.sep}", "")
        raise UsageError(
            f"{count} error{'s' * (count != 1)} in the manifests of {revision}\n{found}"
        ) from None


class _Git:
    """The git repository around a folder, read without leaving a trace in it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.top = Path(
            self._text("rev-parse", "--show-toplevel", problem=f"{folder} is in no git repository")
        )

    def commit(self, revision: str) -> str:
        """Return the full name of the commit that a revision stands for."""
        return self._text(
            *("rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}"),
            problem=f"git knows no revision {revision!r}",
            hint="`git log` and `git tag` tell what there is",
        )

    def lay_out(self, commit: str, tree: Path, index: Path, configs: str) -> None:
        """Write the files of a commit that manifests and what they name can consist of."""
        listed = self._run("ls-tree", "-r", "-z", "--full-tree", commit)
        files = list(_tracked_files(listed))
        self._run("read-tree", commit, index=index)
        manifests: set[str] = set()
        folders = [configs]
        while folders:
            folder = folders.pop()
            found = [path for path in files if _is_below(path, folder) and path not in manifests]
            self._check_out(found, tree, index)
            manifests.update(found)
            links = (tree / path for path in found if (tree / path).is_symlink())
            folders += [os.path.relpath(os.path.realpath(link), tree) for link in links]
        named = _Words(tree / path for path in manifests)
        others = [path for path in files if path.endswith(".py") or named.have(_base(path))]
        self._check_out(set(others) - manifests, tree, index)

    def ignored(self) -> list[str]:
        """Return files and whole folders that git ignores, relative to the top."""
        listed = self._run(
            "ls-files", "-z", "--others", "--ignored", "--exclude-standard", "--directory"
        )
        here = self._folder.resolve()
        return [
            os.path.relpath(here / os.fsdecode(path), self.top)
            for path in listed.split(b"\0")
            if path
        ]

    def _check_out(self, paths: Iterable[str], tree: Path, index: Path) -> None:
        tree.mkdir(exist_ok=True)
        asked = b"".join(os.fsencode(path) + b"\0" for path in paths)
        self._run("checkout-index", "-z", "--stdin", f"--prefix={tree}/", index=index, feed=asked)

    def _text(self, *arguments: str, problem: str, hint: str = "") -> str:
        done = self._start(*arguments)
        if done.returncode:
            told = os.fsdecode(done.stderr).strip().partition("\n")[0]
            raise UsageError(
                problem,
                "" if "not a git repository" in told else f"git says: {told}" if told else hint,
            )
        return os.fsdecode(done.stdout).strip()

    def _run(self, *arguments: str, index: Path | None = None, feed: bytes = b"") -> bytes:
        done = self._start(*arguments, index=index, feed=feed)
        if done.returncode:
            told = os.fsdecode(done.stderr).strip().partition("\n")[0]
            raise UsageError(
                f"git {arguments[0]} failed: {told}", "TMPDIR names another place" if index else ""
            )
        return done.stdout

    def _start(
        self, *arguments: str, index: Path | None = None, feed: bytes = b""
    ) -> subprocess.CompletedProcess[bytes]:
        environment = {
            name: value for name, value in os.environ.items() if name not in _GIT_PLACES
        } | _NO_LOCKS
        environment["LC_ALL"] = "C"
        if index is not None:
            environment["GIT_INDEX_FILE"] = str(index)
        folder = self.top if index is not None else self._folder
        # a sparse work tree would leave files out
        command = ["git", "-c", "core.sparseCheckout=false", "-C", str(folder), *arguments]
        return subprocess.run(
            command, env=environment, input=feed, capture_output=True, check=False
        )


@contextmanager
def _temporary_folder() -> Iterator[Path]:
    try:
        folder = Path(tempfile.mkdtemp(prefix="buildsys-since-")).resolve()
    except OSError as error:
        raise BuildsysError(
            f"no temporary folder can be made: {error.strerror}; TMPDIR names another place"
        ) from None
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _tracked_files(listed: bytes) -> Iterator[str]:
    for entry in listed.split(b"\0"):
        if entry:
            described, _, path = entry.partition(b"\t")
            if described[:6].decode() in _FILE_MODES:  # not a submodule
                yield os.fsdecode(path)


def _link_ignored(git: _Git, project: Project, root: Path) -> None:
    """Link what git ignores (weights, data) into the folder, so that manifests find it."""
    top = git.top
    ours = {os.path.relpath(folder.resolve(), top) for folder in (project.build, project.state)}
    tree = _tree_of(root, project, top)
    for path in git.ignored():
        place = Path(os.path.normpath(tree / path))
        if path in ours or _base(path) in ("__pycache__", ".git") or place.exists():
            continue
        if Path(os.path.realpath(place.parent)).is_relative_to(
            tree
        ):  # not behind a link out of the folder
            place.parent.mkdir(parents=True, exist_ok=True)
            place.symlink_to(top / path)


def _tree_of(root: Path, project: Project, top: Path) -> Path:
    """Return the folder in which the whole repository is laid out."""
    depth = len(project.root.resolve().relative_to(top).parts)
    return root.parents[depth - 1] if depth else root


class _Words:
    """What in manifests may be the name of a file."""

    def __init__(self, files: Iterable[Path]) -> None:
        self._text = "\n".join(
            file.read_text(encoding="utf-8", errors="replace") for file in files if file.is_file()
        )
        self._words = frozenset(
            word.partition(":")[0].rpartition("/")[2] for word in _NO_WORD.split(self._text)
        )

    def have(self, name: str) -> bool:
        """Return whether a file name occurs."""
        return name in self._words or (_NO_WORD.search(name) is not None and name in self._text)


def _is_below(path: str, folder: str) -> bool:
    return folder == "." or PurePosixPath(path).is_relative_to(folder)


def _base(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]
