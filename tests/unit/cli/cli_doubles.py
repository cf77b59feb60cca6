"""A scripted executor and doit on it, for tests of the command line without stages."""

import io
import json
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from doit.doit_cmd import DoitMain

from buildsys.cli import main
from buildsys.cli.commands import COMMANDS
from buildsys.cli.loader import Loader
from buildsys.cli.main import parse, parser_of
from buildsys.cli.session import BuildSession
from buildsys.cli.tasks import ProjectTasks, doit_config
from buildsys.execution.freshness import Freshness
from buildsys.execution.run_records import Outcome
from buildsys.execution.stale_reasons import ASKED_FOR, UNREADABLE, StaleReason
from buildsys.plan.action import Action
from buildsys.project.load import Signing
from buildsys.project.model import ModelSpec
from buildsys.store.ledger import HistoryEntry

MANIFEST: dict[str, Any] = {
    "source": {"python": "net.py:make"},
    "inputs": {"x": {"shape": [1, 4]}},
    "engines": [
        {"backend": "onnxruntime", "name": "ort"},
        {"backend": "tensorrt_rtx", "name": "rtx"},
    ],
}


REQUESTED = StaleReason(ASKED_FOR)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class ScriptedExecutor:
    """Knows which targets are fresh; running one calls what the test gave for it."""

    def __init__(self, session: BuildSession) -> None:
        self._session = session
        self.models = self.ledger = self  # all that a session asks
        self.fresh: set[str] = set()
        self.forgotten: list[str] = []
        self.forced: list[str] = []
        self.actions: dict[str, Callable[[], Any]] = {}
        self.reasons: dict[str, str] = {}
        self.runs: dict[str, list[HistoryEntry]] = {}

    def up_to_date_status(self, target: str) -> str | None:
        if target not in self.fresh:
            return None
        return str(self._session.result(target).get("status", "passed"))

    def find(self, models: Mapping[str, str]) -> dict[str, dict[str, str]]:
        return {}  # no earlier run has found anything

    def check(
        self, models: Mapping[str, tuple[str, Sequence[Action]]]
    ) -> dict[str, dict[str, str]]:
        found = {}
        for model, (_, actions) in models.items():
            if all(action.target in self.fresh and self._is_whole(action) for action in actions):
                statuses = ((a.target, self.up_to_date_status(a.target)) for a in actions)
                found[model] = {target: status for target, status in statuses if status}
        return found

    def _is_whole(self, action: Action) -> bool:
        build = self._session.project.build
        return all(
            (build / output.path).exists()
            for output in action.outputs.values()
            if not output.optional
        )

    def run(self, target: str, *, force: bool = False, request: StaleReason = REQUESTED) -> Any:
        self.forced += [target] if force else []
        reason = str(request) if force else self.reasons.get(target, "")
        self._session.on_event(target, {"event": "stale", "reason": reason})
        self._session.on_event(target, {"event": "started", "pid": 1})
        outcome = self.actions.get(target, lambda: None)() or passed()
        fields = {name: getattr(outcome, name) for name in ("status", "reason", "hint")}
        write_result(self._session, target, **fields)
        return outcome

    def examine(self, target: str) -> Freshness:
        reason = StaleReason(UNREADABLE, self.reasons.get(target, ""))
        is_fresh = target in self.fresh
        return Freshness(target, is_fresh, reasons=() if is_fresh else (reason,))

    def replace_by_failure(
        self, target: str, write: Callable[[], tuple[Mapping[str, bytes], str]]
    ) -> None:
        for name, content in write()[0].items():
            path = self._session.project.build / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)

    def history(self, target: str, limit: int = 10) -> list[HistoryEntry]:
        return self.runs.get(target, [])

    def owned(self, target: str) -> set[str]:
        return set()

    def stop(self) -> None:
        pass

    def forget(self, target: str, *, keep_records: bool = False) -> None:
        self.forgotten.append(f"{target} kept" if keep_records else target)

    def close(self) -> None:
        pass


def run_in(root: Path, command: str, *names: str, **options: Any) -> int:
    """Run a command on a project, with the defaults of its other options."""
    module, parser = parser_of(command)
    defaults = vars(parse(parser, names))
    code: int = module.run(Namespace(**{**defaults, "root": root, **options}))
    return code


def passed(**changes: Any) -> Any:
    return Outcome(**{"target": "", "status": "passed", "seconds": 0.1, **changes})


def make_session(root: Path, *models: str, **fields: Any) -> tuple[BuildSession, ScriptedExecutor]:
    resolved = {
        name: ModelSpec.model_validate({**MANIFEST, "model": name, **fields})
        for name in models or ("net",)
    }
    project = SimpleNamespace(
        code=(),
        root=root,
        configs=root / "configs",
        build=root / "build",
        state=root / ".buildsys",
        models={name: _resolved(spec) for name, spec in resolved.items()},
        broken={},
        signing=lambda: Signing(None, (), (), "refuse"),
        store_limit=lambda: None,
    )
    session = BuildSession(project)  # type: ignore[arg-type]
    executor = ScriptedExecutor(session)
    vars(session)["executor"] = executor
    return session, executor


def _resolved(spec: ModelSpec) -> Any:
    return SimpleNamespace(
        data=spec.model_dump(mode="json", by_alias=True),
        text=spec.model_dump_json(by_alias=True),
        file=f"configs/models/{spec.model}.yaml",
    )


def write_result(session: BuildSession, target: str, **fields: Any) -> None:
    for output in session.actions[target].outputs.values():
        path = session.project.build / output.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(fields))
    session.log(target).write_text("what the stage printed")


_OF_DOIT = {"run", "list", "clean"}  # commands that doit has as well


class _NamespaceLoader(Loader):
    """Our loader without a dodo file."""

    def __init__(self, namespace: dict[str, Any]) -> None:
        super().__init__()
        self.namespace = namespace

    def setup(self, opt_values: Mapping[str, Any]) -> None:
        self._options = opt_values


class Doit:
    """A project and doit's command line on it; every call is a new session."""

    def __init__(self, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.root = root
        self.executor: ScriptedExecutor
        self.session: BuildSession
        self._capsys = capsys
        self.fresh: set[str] = set()
        self.actions: dict[str, Callable[[], Any]] = {}
        self.reasons: dict[str, str] = {}
        self.models: tuple[str, ...] = ("net",)
        self.others: dict[str, Callable[[], Any]] = {}  # creators of further tasks
        self.tags: dict[str, list[str]] = {}  # by model
        self.owners: dict[str, str] = {}  # by model
        self.flaky: dict[str, list[str]] = {}
        self.runs: dict[str, list[HistoryEntry]] = {}  # in the ledger, by target

    def __call__(self, *arguments: str) -> tuple[int, str]:
        """Return the exit code and all that was printed."""
        is_ours = arguments[:1] and arguments[0] in COMMANDS.keys() - _OF_DOIT
        return self.run_buildsys(*arguments) if is_ours else self.run_doit(*arguments)

    def _open(self) -> None:
        self.session, self.executor = make_session(self.root, *self.models)
        for model, tags in self.tags.items():
            self.session.project.models[model].data["tags"] = tags
        for model, owner in self.owners.items():
            self.session.project.models[model].data["owner"] = owner
        for model, stages in self.flaky.items():
            self.session.project.models[model].data["flaky"] = stages
        self.executor.runs = self.runs
        self.executor.fresh, self.executor.actions, self.executor.reasons = (
            self.fresh,
            self.actions,
            self.reasons,
        )
        self.session.project.state.mkdir(exist_ok=True)

    def run_doit(self, *arguments: str) -> tuple[int, str]:
        """Run doit's own command line."""
        self._open()
        out = io.StringIO()  # doit's run keeps the stdout that it found when it was imported
        config = {**doit_config(self.session), "outfile": out}
        namespace = {"DOIT_CONFIG": config, "task_targets": ProjectTasks(self.session)}
        namespace |= self.others
        backend = {"BACKEND": {"buildsys": "buildsys.cli.doit_backend:Backend"}}
        try:
            code = DoitMain(_NamespaceLoader(namespace), extra_config=backend).run([*arguments])
        except SystemExit as error:
            code = error.code
        printed = self._capsys.readouterr()
        return code or 0, out.getvalue() + printed.out + printed.err

    def run_buildsys(self, *arguments: str) -> tuple[int, str]:
        """Run ``buildsys``."""
        self._open()
        (self.root / "dodo.py").write_text("import buildsys")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(BuildSession, "read_only", lambda *_: self.session)
            patch.setattr(BuildSession, "load", lambda *_, **__: self.session)
            code = main.run(arguments)
        printed = self._capsys.readouterr()
        return code, printed.out + printed.err

    def build_all(self) -> None:
        """Make every target fresh, with its files."""
        code, _ = self("build")
        assert code == 0
        self.fresh.update(self.session.actions)


def fail(error: BaseException) -> Callable[[], Any]:
    def raise_it() -> Any:
        raise error

    return raise_it
