"""Time of the check of one manifest before a commit, known to the project or just edited.

An empty Python shows how fast the machine is.
"""

import statistics
import sys
import time

from _harness import (
    TIME_COLUMNS,
    alternate,
    copy_project,
    manifests,
    parse_options,
    publish,
    time_row,
    timed,
    workspace,
)

from buildsys.system.files import SETTLE_NS

LIMIT_S = 0.6


def main() -> None:
    options = parse_options(__doc__ or "", models=(), rounds=15)
    with workspace() as folder:
        project = copy_project(folder, options.models)
        file = manifests(project)[0]
        command = [sys.executable, "-m", "buildsys.cli.check_manifests"]
        count = len(manifests(project))

        def known() -> float:
            time.sleep(2 * SETTLE_NS / 1e9)
            timed(command, project)  # into the cache
            return timed([*command, str(file)], project)

        def edited() -> float:
            file.write_text(file.read_text() + "# edited\n")
            return timed([*command, str(file)], project)

        def empty() -> float:
            return timed([sys.executable, "-c", ""], project)

        sides = {"empty Python": empty, "known manifest": known, "edited manifest": edited}
        taken = alternate(sides, options.rounds)
    medians = {name: statistics.median(seconds) for name, seconds in taken.items()}
    unit = medians["empty Python"]
    rows = [time_row(name, taken[name], f"{medians[name] / unit:.1f}") for name in taken]
    figures = {"seconds": taken, "median": medians, "limit": LIMIT_S, "manifests": count}
    title = f"Check of one of {count} manifests, limit {LIMIT_S} s"
    publish(title, TIME_COLUMNS, rows, figures, options.json)


if __name__ == "__main__":
    main()
