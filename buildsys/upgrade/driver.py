"""A driver after the fact: recorded builds before and after it changed.

Latencies were measured at different times, so small changes may have other causes.
"""

from collections.abc import Iterable, Sequence

from buildsys.errors import UsageError
from buildsys.history.builds import Build
from buildsys.history.compare import FASTER, INCOMPARABLE, SLOWER, compare_latencies
from buildsys.history.database import History
from buildsys.report import formatting as q
from buildsys.stages.table import BENCH, ENGINE_STAGES, VERIFY
from buildsys.upgrade import verdicts
from buildsys.upgrade.summary import Upgrade
from buildsys.upgrade.verdicts import EngineChange

DRIVER = "driver"
_LABEL = "device:gpu.driver"
_ENDED = ("passed", "noisy", "failed")


def compare_drivers(history: History, engines: Iterable[tuple[str, str]]) -> Upgrade:
    """Compare the last builds of engines (model, name) under the two newest drivers.

    Raises: UsageError: the history does not have two of them.
    """
    builds = {
        (model, engine): [
            (history.environment(build).get(_LABEL, ""), build)
            for build in history.builds(model=model)
            if build.variant == engine and build.stage in ENGINE_STAGES and build.status in _ENDED
        ]
        for model, engine in engines
    }
    recorded = [pair for pairs in builds.values() for pair in pairs if pair[0] not in ("", "none")]
    recorded.sort(key=lambda pair: -pair[1].position)
    machine = recorded[0][1].machine_id if recorded else ""
    recorded = [pair for pair in recorded if pair[1].machine_id == machine]
    drivers = [*dict.fromkeys(driver for driver, _ in recorded)][:2]
    if len(drivers) < 2:
        problem = f"the history has builds with {q.plural(len(drivers), 'driver')} on this machine"
        hint = "`buildsys build` measures engines again after the driver has changed"
        raise UsageError(problem, hint)
    new, old = drivers
    changes = []
    for (model, engine), pairs in builds.items():
        own = [pair for pair in pairs if pair[1].machine_id == machine and pair[0] in drivers]
        if own:
            changes.append(EngineChange(model, engine))
            sides = ([build for driver, build in own if driver == name] for name in (old, new))
            _judge(history, changes[-1], *sides)
    return Upgrade({DRIVER: (old, new)}, changes, packages=False)


def _judge(
    history: History, change: EngineChange, before: Sequence[Build], after: Sequence[Build]
) -> None:
    pairs = {}
    for stage in (VERIFY, BENCH):
        lasts = [next((b for b in side if b.stage == stage), None) for side in (before, after)]
        pairs[stage] = lasts
    first, second = pairs[VERIFY]
    if first and second and first.status == "passed" != second.status:
        change.add(verdicts.WRONG, f"{second.target}: {second.reason}")
        return
    if first and second:
        errors = [build.figures.get("relative") for build in (first, second)]
        verdicts.compare_errors(change, *errors)
    first, second = pairs[BENCH]
    if not (first and second):
        change.add(verdicts.INCOMPARABLE, "it was not timed under both drivers")
        return
    words = {SLOWER: verdicts.SLOWER, FASTER: verdicts.FASTER, INCOMPARABLE: verdicts.INCOMPARABLE}
    for latency in compare_latencies(history, first, second):
        times = {"before": latency.first_ms / 1e3, "after": latency.second_ms / 1e3}
        ends = latency.ratio_interval or (None, None)
        low, high = (None if end is None else end - 1 for end in ends)
        ratio = times["after"] / times["before"] - 1
        change.figures["latency"] = {**times, "change": ratio, "low": low, "high": high}
        if word := words.get(latency.verdict):
            pair = " → ".join(map(q.duration, times.values()))
            text = latency.reason or f"latency {pair} ({latency.case})"
            change.add(verdicts.UNDECIDED if latency.noisy else word, text)
