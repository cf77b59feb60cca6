"""Recorded builds by name: ``MODEL[:ENGINE][@WHEN]``, or ``@WHEN`` for every model.

WHEN is ``last``, ``previous``, the id of a build or a git revision.
"""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from buildsys.cli.command import unknown_name
from buildsys.cli.console.rows import time_ago
from buildsys.cli.git_revision import commits_until
from buildsys.cli.session import BuildSession
from buildsys.cli.target_names import ModelFilter
from buildsys.errors import UsageError
from buildsys.history.builds import Build
from buildsys.history.compare import builds_at, failures_at
from buildsys.history.database import History
from buildsys.history.recorder import machine_id
from buildsys.project.plan import model_of
from buildsys.report.formatting import first_names
from buildsys.stages.table import ENGINE, ENGINE_STAGES

LAST, PREVIOUS = "last", "previous"
SHOWN_REVISION = 8
_MOST_MODELS = 12
_ID = re.compile(r"[0-9a-f]{4,32}")


@dataclass(frozen=True)
class Side:
    """The recorded builds of a model or an engine at one time."""

    name: str  # as typed
    model: str
    engine: str  # "" for all
    moment: Build
    builds: Mapping[str, Build]  # by target, the last complete ones
    failures: Mapping[str, Build]  # by target, of the same run
    note: str = ""

    def of(self, stage: str, variant: str = "") -> Build | None:
        """Find the build of a target."""
        return self.builds.get(":".join(filter(None, (stage, self.model, variant))))

    def engines(self) -> list[str]:
        """List the recorded engines."""
        return [build.variant for build in self.builds.values() if build.stage == ENGINE]

    def as_json(self) -> dict[str, Any]:
        """Convert the side for ``--json``."""
        moment = self.moment
        return {
            "name": self.name, "model": self.model, "engine": self.engine, "build": moment.id,
            "started": moment.started, "revision": moment.revision, "dirty": moment.dirty,
            "machine": moment.machine, "note": self.note,
            "targets": {target: build.id for target, build in self.builds.items()},
        }  # fmt: skip

    def title(self) -> str:
        """Write the name with the time and revision of the last build."""
        revision = self.moment.revision[:SHOWN_REVISION]
        changed = " with uncommitted changes" if self.moment.dirty else ""
        details = filter(None, (time_ago(self.moment.started), revision and revision + changed))
        name = ":".join(filter(None, (self.model, self.engine)))
        return f"{name}, build {self.moment.short_id}, {', '.join(details)}"


class BuildNames:
    """Names of builds on the command line."""

    def __init__(self, session: BuildSession, history: History) -> None:
        self._session = session
        self._history = history
        self._builds: dict[str, list[Build]] = {}

    def pairs(self, names: Sequence[str], only: ModelFilter) -> list[tuple[Side, Side]]:
        """List the pairs of sides to compare, one per model.

        Raises: UsageError: an unknown name, or nothing is recorded of it; ``only`` with a model.
        """
        points = [self._split(name) for name in names]
        if len(points) == 1:
            ((scope, when),) = points
            points = [(scope, when or PREVIOUS), (scope, LAST)]
        (first, start), (second, end) = points or [("", PREVIOUS), ("", LAST)]
        first, second = first or second, second or first
        if first and only:
            raise UsageError(f"compare takes {first} or {only}, not both", "name one of them")
        if first:
            return [(self.side(first, start or LAST), self.side(second, end or LAST))]
        pairs = []
        problem = UsageError("the history has no builds", "`buildsys build` builds every model")
        for model in filter(self.of_model, only.models(self._session.project.models)):
            try:
                pairs.append((self.side(model, start), self.side(model, end)))
            except UsageError as error:
                problem = error
        if not pairs:
            raise problem
        return pairs

    def _split(self, name: str) -> tuple[str, str]:
        """Split a name into model or engine and point in time. Raises: UsageError: unknown."""
        scope, at, when = name.partition("@")
        if not at or scope:
            return self.scope(scope), when
        build = self._with_id(when)
        if build is None:
            return "", when
        engine = f":{build.variant}" if build.stage in ENGINE_STAGES else ""
        return build.model + engine, when

    def full_name(self, name: str) -> str:
        """Find the full name of a target or group, recorded or planned, "" for another name.

        Raises: UsageError: the name is ambiguous.
        """
        is_recorded = bool(self._history.builds(target=name, limit=1))
        return self._session.full_name(name) or (name if is_recorded else "")

    def scope(self, name: str) -> str:
        """Recognize MODEL or MODEL:ENGINE. Raises: UsageError: an unknown or ambiguous name."""
        full = self.full_name(name)
        stage, _, rest = full.partition(":")
        if (stage == "build" and rest) or (stage in ENGINE_STAGES and ":" in rest):
            return rest
        if rest:
            return model_of(full)
        model, _, engine = name.partition(":")  # perhaps no longer in the manifests
        recorded = self.of_model(model)
        if recorded and (not engine or any(b.target == f"{ENGINE}:{name}" for b in recorded)):
            return name
        self._session.refuse_broken(name)
        models = dict.fromkeys((*self._session.project.models, *self._history.models()))
        engines = [target.partition(":")[2] for target in self._history.targets(ENGINE)]
        listed = f"models: {first_names(list(models), _MOST_MODELS) or 'none yet'}"
        raise unknown_name("model or engine", name, [*models, *engines], listed)

    def of_model(self, model: str) -> list[Build]:
        """List the recorded builds of a model, newest first."""
        if model not in self._builds:
            self._builds[model] = self._history.builds(model=model) if model else []
        return self._builds[model]

    def of_target(self, target: str, output: str, when: str) -> tuple[Build, str]:
        """Find the recorded build of a target at a point in time, and a note on it.

        ``previous`` is the last build with another ``output`` than the last one.
        Raises: UsageError: there is none.
        """
        hint = f"`buildsys history {target}` lists its builds"
        builds = [b for b in self._history.builds(target=target) if output in b.outputs]
        if not builds:
            hint = f"`buildsys build {target}` builds it"
            raise UsageError(f"the history has no builds of {target}", hint)
        if when == PREVIOUS:
            others = [build for build in builds if build.outputs != builds[0].outputs]
            if not others:
                raise UsageError(f"the history has only one {output} of {target}", hint)
            return others[0], ""
        all_targets = self.of_model(builds[0].model)
        moment, note = self._moment(target, all_targets, when)
        build = builds_at(all_targets, moment).get(target)
        if build is None or output not in build.outputs:
            raise UsageError(f"the history has no build of {target} at {when}", hint)
        return build, note

    def side(self, scope: str, when: str) -> Side:
        """Find the builds of a model or an engine. Raises: UsageError: there are none."""
        model, _, engine = scope.partition(":")
        builds = [
            build
            for build in self.of_model(model)
            if not engine or build.stage not in ENGINE_STAGES or build.variant == engine
        ]
        if not builds:
            hint = f"`buildsys build {scope}` builds it"
            raise UsageError(f"the history has no builds of {scope}", hint)
        moment, note = self._moment(scope, builds, when)
        then = builds_at(builds, moment), failures_at(builds, moment)
        return Side(f"{scope}@{when}", model, engine, moment, *then, note)

    def _moment(self, scope: str, builds: Sequence[Build], when: str) -> tuple[Build, str]:
        """Find the last build at a point in time, with a note."""
        here = [build for build in builds if build.machine_id == machine_id()] or builds
        if when == LAST:
            return here[0], ""
        if when == PREVIOUS:
            earlier = next((build for build in here if build.run != here[0].run), None)
            if earlier is None:
                hint = "`buildsys history` lists the builds"
                raise UsageError(f"the history has only one run of {scope}", hint)
            return earlier, ""
        model = scope.partition(":")[0]
        if build := self._with_id(when):
            if build.model != model:
                problem = f"the build {when} is one of {build.model}, not of {model}"
                raise UsageError(problem, f"`buildsys history {model}` lists those of {model}")
            return build, ""
        commits = commits_until(self._session.project.root, when)
        recorded = {build.revision: build for build in reversed(here)}
        nearest_commit = next((commit for commit in commits if commit in recorded), None)
        if nearest_commit is None:
            hint = f"`git switch --detach {when}` and `buildsys build {scope}` build it"
            raise UsageError(f"the history has no build of {scope} at {when}", hint)
        note = f"{when} was not built; shown is its ancestor {nearest_commit[:SHOWN_REVISION]}"
        return recorded[nearest_commit], "" if nearest_commit == commits[0] else note

    def _with_id(self, name: str) -> Build | None:
        if _ID.fullmatch(name):
            with suppress(UsageError):  # a revision
                return self._history.find(name)
        return None
