"""Time of the check of one manifest before a commit, known to the project or just edited."""

from __future__ import annotations

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

LIMIT_S = 0.3


def main() -> None:
    options = parse_options(__doc__ or "", models=(), rounds=15)
    with workspace(keep=options.keep) as folder:
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

        taken = alternate({"known": known, "edited": edited}, options.rounds)
    rows = [time_row(f"{name} manifest", taken[name], f"limit {LIMIT_S} s") for name in taken]
    medians = {name: statistics.median(seconds) for name, seconds in taken.items()}
    figures = {"seconds": taken, "median": medians, "limit": LIMIT_S, "manifests": count}
    publish(f"Check of one of {count} manifests", TIME_COLUMNS, rows, figures, options.json)


if __name__ == "__main__":
    main()
