"""Time of doit with nothing to do, compared with an empty dodo file."""

import statistics

from _harness import (
    TIME_COLUMNS,
    alternate,
    copy_project,
    doit_command,
    manifests,
    parse_options,
    publish,
    shorten_benchmarks,
    time_row,
    timed,
    workspace,
)

LIMIT = 2.5


def main() -> None:
    options = parse_options(__doc__ or "", models=(), rounds=20)
    with workspace() as folder:
        project, empty = copy_project(folder, options.models), folder / "empty"
        empty.mkdir()
        (empty / "dodo.py").touch()
        shorten_benchmarks(project)
        count = len(manifests(project))
        print(f"building {count} manifests once: {timed(doit_command(), project):.1f} s")
        sides = {"nothing to do": project, "empty dodo file": empty}
        for side in sides.values():
            timed(doit_command(), side)
        taken = alternate(
            {name: lambda side=side: timed(doit_command(), side) for name, side in sides.items()},
            options.rounds,
        )
    ours, theirs = (statistics.median(taken[name]) for name in sides)
    rows = [
        time_row("nothing to do", taken["nothing to do"], f"{ours / theirs:.2f} (limit {LIMIT})"),
        time_row("empty dodo file", taken["empty dodo file"]),
    ]
    figures = {"seconds": taken, "ratio": ours / theirs, "limit": LIMIT, "manifests": count}
    publish(f"Nothing to do, {count} manifests", TIME_COLUMNS, rows, figures, options.json)


if __name__ == "__main__":
    main()
