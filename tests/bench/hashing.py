"""Throughput of digests, compared with `cat` of the same files, cold (not in memory) and warm.

Also the time to check a file of 2 GB again while its stat is the same.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from _harness import publish, workspace

from buildsys.store.file_digests import DigestCache
from buildsys.store.state_db import StateDb

KINDS = {"64 KiB": 1 << 16, "4 MiB": 1 << 22, "256 MiB": 1 << 28}
LARGE_BYTES = 2 << 30
CHECKS = 1000


def make_files(folder: Path, each: int, total: int) -> list[str]:
    """Write files of random bytes and flush them."""
    folder.mkdir()
    paths = []
    for number in range(max(1, total // each)):
        path = folder / f"{number:05d}.bin"
        with path.open("wb") as file:
            for _ in range(max(1, each >> 22)):
                file.write(os.urandom(min(each, 1 << 22)))
            file.flush()
            os.fsync(file.fileno())
        paths.append(str(path))
    return paths


def drop_from_memory(paths: Sequence[str]) -> None:
    """Drop files from the page cache."""
    for path in paths:
        handle = os.open(path, os.O_RDONLY)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(handle)


def seconds(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def digest_all(paths: Sequence[str], state: Path) -> float:
    """Return the time to digest files with an empty cache."""
    state.unlink(missing_ok=True)
    db = StateDb(state)
    db.read("SELECT 1")
    taken = seconds(lambda: DigestCache(db).digests(paths))
    db.close()
    return taken


def cat_all(paths: Sequence[str]) -> float:
    return seconds(lambda: subprocess.run(["cat", *paths], stdout=subprocess.DEVNULL, check=True))


def measure(paths: Sequence[str], rounds: int, folder: Path) -> dict[str, list[float]]:
    """Return GB/s of both sides, cold and warm, measured alternately."""
    volume = sum(Path(path).stat().st_size for path in paths) / 1e9
    found: dict[str, list[float]] = {}
    sides = {
        "digests": lambda: digest_all(paths, folder / "state.db"),
        "cat": lambda: cat_all(paths),
    }
    for number in range(rounds):
        for name in list(sides) if number % 2 else list(reversed(sides)):
            drop_from_memory(paths)
            found.setdefault(f"{name}, cold", []).append(volume / sides[name]())
            found.setdefault(f"{name}, warm", []).append(volume / sides[name]())
    return found


def check_again(folder: Path) -> tuple[float, float]:
    """Return the seconds of the first and of a later check of a file of 2 GB."""
    path = folder / "large.bin"
    with path.open("wb") as file:
        file.truncate(LARGE_BYTES)
    time.sleep(0.1)
    db = StateDb(folder / "large.db")
    first = seconds(lambda: DigestCache(db).digest(str(path)))
    later = DigestCache(db)  # as in another process
    again = seconds(lambda: [later.digest(str(path)) for _ in range(CHECKS)]) / CHECKS
    db.close()
    return first, again


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--total", type=int, default=512, help="MiB per file size (default: %(default)s)"
    )
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    figures: dict[str, dict[str, list[float]]] = {}
    with workspace(keep=False) as folder:
        for kind, each in KINDS.items():
            paths = make_files(folder / str(each), each, given.total << 20)
            figures[f"{len(paths)} of {kind}"] = measure(paths, given.rounds, folder)
            print(f"  {kind} done", file=sys.stderr, flush=True)
        first, again = check_again(folder)
    rows = []
    for kind, found in figures.items():
        medians = {name: statistics.median(values) for name, values in found.items()}
        shown = [
            f"{medians[f'{side}, {state}']:.2f}"
            for state in ("cold", "warm")
            for side in ("digests", "cat")
        ]
        rows.append((kind, *shown))
    columns = ("files", "digests, cold (GB/s)>", "cat, cold>", "digests, warm>", "cat, warm>")
    publish(
        "Digesting files",
        columns,
        rows,
        {"gb_per_s": figures, "large_s": [first, again]},
        given.json,
    )
    print(f"\na sparse file of 2 GB: first check {first:.2f} s, later ones {again * 1e6:.0f} µs")


if __name__ == "__main__":
    main()
