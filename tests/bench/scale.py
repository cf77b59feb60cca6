"""doit on a generated project of a thousand manifests, compared with plain doit.

Queries are measured on a second project, with two engines per model, that was never built. All
sides alternate; doit on an empty dodo file is one of them, as a measure of the machine's speed.
"""

import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path

from _harness import (
    TIME_COLUMNS,
    alternate,
    doit_command,
    forget_everything,
    log,
    parse_options,
    publish,
    time_row,
    timed,
    workspace,
)
from _scale_project import fill, model_name, write_manifests

MANIFESTS, TARGETS_PER_MODEL = 1000, 8
_DODO = """\
from doit.tools import config_changed

DOIT_CONFIG = {{"backend": "sqlite3"}}


def work(number):
    open(f"out/{{number}}.txt", "w").write(str(number))


def task_step():
    for number in range({count}):
        yield {{
            "name": str(number),
            "actions": [(work, [number])],
            "file_dep": [f"in/{{number}}.txt"],
            "targets": [f"out/{{number}}.txt"],
            "uptodate": [config_changed({{"number": number}})],
        }}
"""


def make_plain_project(folder: Path, count: int) -> Path:
    """Build ``count`` tasks with one file_dep and config_changed each."""
    for name in ("in", "out"):
        (folder / name).mkdir(parents=True)
    for number in range(count):
        (folder / f"in/{number}.txt").write_text(str(number), encoding="utf-8")
    (folder / "dodo.py").write_text(_DODO.format(count=count), encoding="utf-8")
    timed(doit_command(), folder)
    return folder


def sides_of(folder: Path) -> dict[str, tuple[Callable[[], float], str]]:
    """Prepare all sides: name -> measurement and limit."""
    built, unbuilt, empty = folder / "built", folder / "unbuilt", folder / "empty"
    empty.mkdir()
    (empty / "dodo.py").touch()
    write_manifests(built, MANIFESTS)
    log(f"filling {built}")
    fill(built)
    write_manifests(unbuilt, MANIFESTS, engines="ort-cpu, ort-fp16")
    targets = MANIFESTS * TARGETS_PER_MODEL
    plain = make_plain_project(folder / "plain", targets)
    one = f"build:{model_name(MANIFESTS // 2)}"

    def first_list() -> float:
        forget_everything(unbuilt)
        return timed(doit_command("list"), unbuilt)

    run = partial(timed, doit_command())
    return {
        "empty dodo file": (lambda: run(empty), ""),
        f"nothing to do, {targets} targets": (lambda: run(built), "1.0 s"),
        f"plain doit, {targets} tasks": (lambda: run(plain), "at least ours"),
        "one model": (lambda: timed(doit_command(one), built), ""),
        "never built: the first list": (first_list, ""),
        "never built: list": (lambda: timed(doit_command("list"), unbuilt), "1.0 s"),
        "never built: plan one": (lambda: timed(doit_command("plan", one), unbuilt), "0.6 s"),
        "never built: plan": (lambda: timed(doit_command("plan"), unbuilt), "4 s"),
    }


def main() -> None:
    """Print a row per side."""
    options = parse_options(__doc__ or "", models=(), rounds=7)
    with workspace() as folder:
        sides = sides_of(folder)
        for side, _ in sides.values():  # fill the caches of the disk
            side()
        taken = alternate({name: side for name, (side, _) in sides.items()}, options.rounds)
    rows = [time_row(name, taken[name], limit) for name, (_, limit) in sides.items()]
    columns = (*TIME_COLUMNS[:-1], "limit")
    medians = {name: statistics.median(seconds) for name, seconds in taken.items()}
    figures = {"seconds": taken, "medians": medians}
    publish(f"Scale, {MANIFESTS} manifests", columns, rows, figures, options.json)


if __name__ == "__main__":
    main()
