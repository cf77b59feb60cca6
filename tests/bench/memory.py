"""Peak memory of the doit process, building from scratch and with nothing to do."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from _harness import (
    copy_project,
    doit_command,
    environment,
    forget_everything,
    log,
    parse_options,
    publish,
    shorten_benchmarks,
    workspace,
)

LIMIT_MB = 120
_PEAK = re.compile(r"^VmHWM:\s+(\d+) kB$", re.MULTILINE)


def peak_mb(command: Sequence[str], folder: Path) -> float:
    """Run a command and return its peak resident memory, without its children.

    The peak is polled until the process ends, because rusage includes finished children.
    """
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    status = Path("/proc") / str(process.pid) / "status"
    peak_kb = 0
    while process.poll() is None:
        found = _PEAK.search(status.read_text())  # missing for a zombie
        peak_kb = int(found[1]) if found else peak_kb
        time.sleep(0.005)
    if process.returncode != 0:
        message = process.stderr.read().decode() if process.stderr else ""
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}\n{message[-4000:]}")
    return peak_kb * 1024 / 1e6


def main() -> None:
    options = parse_options(__doc__ or "", models=(), rounds=1)
    figures: dict[str, list[float]] = {}
    with workspace(keep=options.keep) as folder:
        project = copy_project(folder, options.models)
        shorten_benchmarks(project)
        for _ in range(options.rounds):
            forget_everything(project)
            for name, command in (
                ("from scratch", doit_command()),
                ("nothing to do", doit_command()),
                ("from scratch, -n 2", doit_command("-n", "2")),
            ):
                if "-n" in command:
                    forget_everything(project)
                figures.setdefault(name, []).append(peak_mb(command, project))
                log(f"{name}: {figures[name][-1]:.1f} MB")
    rows = [(name, str(len(taken)), f"{max(taken):.1f}") for name, taken in figures.items()]
    columns = ("doit", "runs>", f"peak (MB), limit {LIMIT_MB}>")
    publish(
        "Peak memory of the doit process",
        columns,
        rows,
        {"peak_mb": figures, "limit_mb": LIMIT_MB},
        options.json,
    )


if __name__ == "__main__":
    main()
