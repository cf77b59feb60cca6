"""Libraries and devices of the machines of executors.

They are in the keys of what runs there. The machines were asked for them (``describe-machine``),
and the answers are remembered: a run with nothing to do asks nobody.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from buildsys.execution.environment_parts import EnvironmentParts, Parts
from buildsys.plan.action import Action, ToolchainRef
from buildsys.system.text_cache import TextCache

UNKNOWN = "machines:"  # label of a part whose machines were not asked yet
NOT_ASKED = "not known yet"
_NOT_DECIDING = ("jobs", "linger", "remember")  # settings that choose no other machine
Executors = Mapping[str, Mapping[str, Any]]  # of project.yaml: name -> settings
NO_EXECUTORS: Executors = MappingProxyType({})


class RemoteEnvironments:
    """The answers of executors' machines."""

    def __init__(self, executors: Executors, texts: TextCache) -> None:
        self._texts = texts
        self._names = {name: _cache_name(name, settings) for name, settings in executors.items()}
        self._remember_s = {name: each["remember"] for name, each in executors.items()}
        self._known: dict[str, dict[str, Parts]] = {}

    @property
    def identity(self) -> str:
        """The identity of the executors, for comparison."""
        return repr(sorted(self._names.values())) if self._names else ""

    def of_action(self, action: Action) -> Parts:
        """Return the parts for an action's libraries, devices and variables."""
        known = self._answers(action.executor).get(question_of(action))
        return {f"{UNKNOWN}{action.executor}": NOT_ASKED} if known is None else known

    def unanswered(self, executor: str, actions: Iterable[Action]) -> list[str]:
        """Return the unanswered questions to an executor."""
        known = self._answers(executor)
        return sorted({question_of(action) for action in actions} - known.keys())

    def remember(self, executor: str, answers: Mapping[str, Mapping[str, str]]) -> None:
        """Add answers of an executor's machines."""
        known = {**self._answers(executor), **{q: dict(parts) for q, parts in answers.items()}}
        self._known[executor] = known
        content = {"asked": time.time(), "answers": known}
        self._texts.set(self._names[executor], json.dumps(content, sort_keys=True))

    def forget(self, executor: str) -> None:
        """Drop the answers of an executor's machines: the next run asks again."""
        self._known[executor] = {}
        self._texts.set(self._names[executor], "")

    def _answers(self, executor: str) -> dict[str, Parts]:
        if executor not in self._known:
            text = self._texts.get(self._names[executor])
            found: dict[str, Any] = json.loads(text) if text else {"asked": 0.0, "answers": {}}
            is_old = time.time() - found["asked"] > self._remember_s[executor]
            self._known[executor] = {} if is_old else found["answers"]
        return self._known[executor]


def question_of(action: Action) -> str:
    """Return what decides the environment of an action, as JSON."""
    wanted: list[object] = [
        action.tools, action.peer_tools, action.toolchain, action.devices, action.environment,
    ]  # fmt: skip
    wanted += [action.probes] if action.probes else []
    return json.dumps(wanted, separators=(",", ":"))


def answer_questions(questions: Iterable[str], environment: EnvironmentParts) -> dict[str, Parts]:
    """Return the parts of this machine for each question.

    Raises: ValueError, TypeError: a text is no question.
    """
    return {question: environment.of_action(_action_of(question)) for question in questions}


def _action_of(question: str) -> Action:
    tools, peer_tools, toolchain, devices, environment, *probes = json.loads(question)
    if toolchain is not None:
        name, python, env = toolchain
        toolchain = ToolchainRef(name, python, tuple((key, value) for key, value in env))
    return Action(
        target="", stage="", model="", variant="", options={}, inputs={}, outputs={},
        tools=tuple(tools), peer_tools=tuple(peer_tools), toolchain=toolchain,
        devices=tuple(devices), environment=tuple(environment),
        probes=tuple(tuple(each) for found in probes for each in found),
    )  # fmt: skip


def _cache_name(name: str, settings: Mapping[str, Any]) -> str:
    deciding = {field: value for field, value in settings.items() if field not in _NOT_DECIDING}
    content = json.dumps([name, deciding], sort_keys=True, default=str)
    return f"machines/1:{hashlib.sha256(content.encode()).hexdigest()}"
