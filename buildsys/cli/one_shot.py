"""Builds of a source without a manifest: a hidden project with a proposed manifest.

The project is in ``.buildsys/sources/MODEL``; its root and its store are those of the folder, or of
the project around it. Verified engines and the report are copied into ``./MODEL/``.
"""

import json
import os
import re
import shutil
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, redirect_stdout, suppress
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

from buildsys.cli.command import (
    find_project,
    print_lines,
    project_name,
    shown_path,
    typed_path,
    unknown_name,
)
from buildsys.cli.commands.init import default_engines, preset_text, write_project
from buildsys.cli.commands.new import OWN_QUANTIZERS, flow, read_source, write_manifest
from buildsys.cli.engine_checks import required_checks
from buildsys.cli.session import BuildSession
from buildsys.cli.sources import LIBRARIES, SUFFIXES
from buildsys.errors import UsageError
from buildsys.manifest.backend_choices import QUANTIZED
from buildsys.manifest.yaml_reader import read_yaml
from buildsys.project.load import empty_project, load_models
from buildsys.stages.table import ENGINE, REPORT
from buildsys.system.files import locked, replace_file, sha256_of, stamp
from buildsys.system.user_modules import split_reference

_MARK = ".buildsys.json"  # in ./MODEL/: the source, and the stamps of the files that are ours
_DATA = "a folder of images, FILE.npz or FILE.py:CALLABLE"
_MOVE = "move it away, or build in another folder"
_Files = dict[str, list[int]]


def build_source(
    source: str, options: Namespace, build: Callable[[Callable[[], BuildSession]], int]
) -> int:
    """Build a source, and copy the engines; ``build`` runs the session that it gets."""
    shot = _OneShot(source, _model_name(source), options)
    options.names = [shot.model]

    def open_session() -> BuildSession:
        with redirect_stdout(sys.stderr if options.json else sys.stdout):
            return shot.open()

    with shot.lock():
        code = build(open_session)
        with redirect_stdout(sys.stderr if options.json else sys.stdout):
            shot.finish(code)
    return code


def _calibration_data(root: Path, text: str) -> dict[str, Any]:
    """Parse --calibration into data by input; "" is every input. Raises: UsageError."""
    if text.startswith("{"):
        return dict(read_yaml(Path("--calibration"), text.encode()))
    place, attribute = split_reference(text)
    path, name = typed_path(place), project_name(root, place)
    kind = "python" if attribute else "images" if path.is_dir() else "npz"
    if not path.exists() or (kind == "npz" and path.suffix != ".npz"):
        problem = f"--calibration {text} is not {_DATA}"
        raise UsageError(problem, "the path is relative to your folder")
    return {"": {kind: f"{name}:{attribute}" if attribute else name}}


def _with_data(manifest: str, data: Mapping[str, Any]) -> str:
    """Give inputs of a proposal their data, images the steps of its preprocessing.

    Golden inputs are of the same kind then: ranges of other data would not hold for them.
    Raises: UsageError: there is no such input.
    """
    inputs: dict[str, Any] = read_yaml(Path("proposal.yaml"), manifest.encode())["inputs"]
    for name in data.keys() - {"", *inputs}:
        raise unknown_name("input", name, inputs, f"inputs: {', '.join(inputs)}")
    for name, tensor in inputs.items():
        if values := data.get(name, data.get("")):
            steps = tensor.get("preprocess", {}) if "images" in values else {}
            line, new = (
                f"  {flow(name)}: {flow(fields)}\n"
                for fields in (tensor, {**tensor, "data": {**values, **steps}})
            )
            manifest = manifest.replace(line, new)
    return manifest


def _model_name(source: str) -> str:
    """Name a model after its source."""
    kind, attribute = source.partition(":")[0], split_reference(source)[1]
    if attribute and kind not in LIBRARIES:
        name = attribute.rpartition(".")[2]
    else:
        place = PurePosixPath(source.partition("@")[0].rpartition(":")[2])
        name = place.parent.name if place.suffix == ".json" else place.name
        name = name.removesuffix(place.suffix) if place.suffix in SUFFIXES else name
    return re.sub(r"[^A-Za-z0-9_.+-]+", "-", name).strip("_.+-")[:100] or "model"


class _OneShot:
    """The hidden project of a source, and the folder of its engines."""

    def __init__(self, source: str, model: str, options: Namespace) -> None:
        """Check the command line. Raises: UsageError: it is wrong, or ./MODEL/ is not ours."""
        self.model = model
        self._text, self._options = source.removeprefix("./"), options
        self._user = empty_project(options.root)  # of the user, or a folder without manifests
        state = self._user.state / "sources" / model
        configs, build = state / "configs", state / "build"
        self._project = replace(self._user, configs=configs, build=build, state=state)
        self._manifest = configs / "models" / f"{model}.yaml"
        self._proposal, self._request = state / "proposal.yaml", state / "request.json"
        self._folder = typed_path(model)
        self._source, self._inputs = read_source(options.root, source, options)
        self._read_mark()
        models = self._user.configs / "models"
        self._is_in_project = models.is_dir() and find_project(options.root) is not None
        self._shared = dict(self._shared_files())
        self._calibrated: list[str] = []  # engines with measured ranges
        self._engines = self._choose_engines()
        text = options.calibration
        self._data = _calibration_data(options.root, text) if text else {}
        self._session: BuildSession | None = None
        if not os.environ.get("BUILDSYS_STORE"):  # workers and trials get it, too
            os.environ["BUILDSYS_STORE"] = str(self._user.state / "store")

    def _shared_files(self) -> Iterator[tuple[str, bytes]]:
        for name, default in (("engines.yaml", preset_text()), ("project.yaml", b"{}\n")):
            file = self._user.configs / name
            yield name, file.read_bytes() if self._is_in_project and file.is_file() else default

    def _choose_engines(self) -> list[str]:
        """List the chosen presets. Raises: UsageError: one is unknown."""
        content = self._shared["engines.yaml"]
        presets: dict[str, Any] = read_yaml(self._user.configs / "engines.yaml", content) or {}
        names = self._options.engine or [name for name in default_engines() if name in presets]
        for name in names:
            if name not in presets:
                raise unknown_name("engine", name, presets, f"engines: {', '.join(presets)}")
            preset = presets[name]
            while "precision" not in preset and preset.get("use") in presets:
                preset = presets[preset["use"]]
            if preset.get("precision") in QUANTIZED and preset.get("quantization") != "dynamic":
                self._calibrated.append(name)
        return [*dict.fromkeys(names)]

    def lock(self) -> AbstractContextManager[None]:
        """Hold the project of the source; a second process waits."""
        self._project.state.mkdir(parents=True, exist_ok=True)
        if not self._is_in_project:
            _write(self._user.state / ".gitignore", b"*\n")
        path = self._project.state / "lock"
        try:
            with locked(path, timeout_s=0):
                pass
        except BlockingIOError:
            sys.stderr.write(f"waiting for another process that builds {self.model}\n")
        return locked(path)

    def open(self) -> BuildSession:
        """Propose the manifest, unless an earlier call did.

        Raises: UsageError: an engine lacks calibration data. BuildsysError: another problem.
        """
        for name, content in self._shared.items():
            _write(self._project.configs / name, content)
        self._propose()
        proposal = self._proposal.read_text(encoding="utf-8")
        if self._calibrated and not self._data and f"\n{OWN_QUANTIZERS}" not in proposal:
            problem = f"{self._calibrated[0]} needs calibration data"
            raise UsageError(problem, f"add --calibration {_DATA}")
        manifest = _with_data(proposal, self._data)
        section = "calibration: {}  # with the data of the inputs\n" if self._data else ""
        head, _, proposed = manifest.rpartition("\nengines: ")
        engines = f"[{', '.join(self._engines)}]" if self._engines else proposed.strip()
        text = f"{head}\n{section}engines: {engines}\n".encode()
        _write(self._manifest, text)
        project = load_models(self._project)
        project.require_all()
        if self._options.save:
            self._save(text)
        self._session = BuildSession(project)
        self._session.has_manifest = False
        return self._session

    def _propose(self) -> None:
        file = self._proposal
        request = json.dumps([self._source, self._inputs, _digest(self._user.root, self._source)])
        if self._options.force or not (_has(self._request, request.encode()) and file.is_file()):
            print_lines([f"{self.model}: trial runs of {self._text}"])
            self._request.unlink(missing_ok=True)
            notes = write_manifest(self._project, self.model, self._source, self._inputs)
            print_lines(notes)
            replace_file(file, self._manifest.read_bytes())
            replace_file(self._request, request.encode())

    def _save(self, manifest: bytes) -> None:
        """Write the manifest into the project, or make one. Raises: UsageError: it exists."""
        file = self._user.configs / "models" / self._manifest.name
        if not self._is_in_project:
            write_project(self._user.root, self.model, manifest)
        elif not file.exists():
            replace_file(file, manifest)
            print_lines([f"wrote {shown_path(file)}"])
        elif not _has(file, manifest):
            hint = "move it away, or leave out --save"
            raise UsageError(f"{shown_path(file)} exists, and differs", hint)

    def finish(self, code: int) -> None:
        """Copy verified engines and the report, and say where they are."""
        session = self._session
        if session is None or session.interrupted:
            return
        if code:  # the proposal may be the reason
            self._request.unlink(missing_ok=True)
        outputs, recorded = dict(self._outputs(session)), self._read_mark()
        stamps = {name: _stamp(path) for name, path in outputs.items()}
        self._write_mark({**stamps, **recorded})  # an interrupted copy leaves files that are ours
        for name, path in outputs.items():
            target = self._folder / name
            if _stamp(target) not in ([], recorded.get(name), stamps[name]):
                raise UsageError(f"{target} is not of an earlier build", _MOVE)
            if _stamp(target) != stamps[name]:
                target.parent.mkdir(parents=True, exist_ok=True)
                temporary = target.with_name(f".{target.name}.{os.getpid()}")
                shutil.copy2(path, temporary)
                temporary.replace(target)
        for name in recorded.keys() - outputs.keys() if not code else ():
            (self._folder / name).unlink(missing_ok=True)
            with suppress(OSError):  # of an engine that was not chosen again
                (self._folder / name).parent.rmdir()
        self._write_mark({**recorded, **stamps} if code else stamps)
        print_lines(self._closing([*outputs], is_new=recorded != stamps))

    def _write_mark(self, files: Mapping[str, list[int]]) -> None:
        if files:
            mark = {"source": self._text, "files": files}
            _write(self._folder / _MARK, json.dumps(mark, indent=1).encode())

    def _closing(self, files: list[str], *, is_new: bool) -> Iterator[str]:
        """Say where the files are, and what to do next."""
        engines = list(dict.fromkeys(name.partition("/")[0] for name in files if "/" in name))
        if files:
            reports = [name for name in files if name in ("report.md", "report.html")]
            what = "has" if is_new else "is up to date:"
            yield f"{self._folder}/ {what} {', '.join([*engines, *reports])}"
        if self._options.save:
            yield f"next: buildsys build {self.model}, then buildsys run {self.model}"
        elif engines:
            load = f'buildsys.load_engine("{self._folder / engines[0]}")'
            yield f"next: {load} in Python, or --save, which keeps the manifest"

    def _outputs(self, session: BuildSession) -> Iterator[tuple[str, Path]]:
        """Yield the files of verified engines and of the report, by their names in the folder."""
        build = session.project.build
        for action in session.actions.of(self.model).values():
            result = build / action.outputs["result"].path
            if action.stage == REPORT:
                paths = [build / output.path for output in action.outputs.values()]
                yield from ((path.name, path) for path in paths if path.is_file())
            needed = (action.target, *required_checks(session, action))
            if action.stage == ENGINE and all(session.has_passed(target) for target in needed):
                for path in filter(Path.is_file, sorted(result.parent.rglob("*"))):
                    if path != result.with_suffix(".log"):
                        yield f"{action.variant}/{path.relative_to(result.parent)}", path
        page = build / "report" / f"{self.model}.html"
        if page.is_file():
            yield "report.html", page

    def _read_mark(self) -> _Files:
        """Read what is in the folder. Raises: UsageError: it is not ours, or of another source."""
        folder = self._folder
        try:
            mark = json.loads((folder / _MARK).read_bytes())
            source, files = str(mark["source"]), dict(mark["files"])
        except (OSError, ValueError, TypeError, LookupError):
            if os.path.lexists(folder) and not (folder.is_dir() and not any(folder.iterdir())):
                problem = f"{folder} exists, and engines would be written there"
                raise UsageError(problem, _MOVE) from None
            return {}
        if source != self._text:
            raise UsageError(f"{folder} has the engines of {source}", _MOVE)
        return files


def _stamp(path: Path) -> list[int]:
    status = stamp(path)
    return [status.mtime_ns, status.size] if status else []


def _has(path: Path, content: bytes) -> bool:
    return path.is_file() and path.read_bytes() == content


def _write(path: Path, content: bytes) -> None:
    """Write a file unless it has the content: stamps of unchanged files stay."""
    if not _has(path, content):
        replace_file(path, content)


def _digest(root: Path, source: Mapping[str, Any]) -> str:
    """Digest the file of a source: a change of it may change the inputs."""
    names = [source[kind] for kind in ("onnx", "exported_program", "python") if kind in source]
    files = [root / split_reference(name)[0] for name in names]
    return sha256_of(*(file for file in files if file.is_file()))
