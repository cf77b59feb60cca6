"""Common parts of the bench scripts: a project copy, timed processes, alternation, a table."""

import argparse
import json
import os
import platform
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import yaml  # noqa: E402 (the path has to be set first)

from buildsys.cli.commands import COMMANDS  # noqa: E402
from buildsys.report.markdown import table  # noqa: E402

EIGHT_MODELS = (
    "resnet18", "resnet50", "vgg11", "mobilenet_v3_small", "efficientnet_b0", "efficientnet_v2_s",
    "regnet_x_1_6gf", "swin_t",
)  # fmt: skip
_TENSORRT = re.compile(r", trt-\w+")  # in lists of engines
_COPIED = ("dodo.py", "pyproject.toml", "configs", "plugins")


def parse_options(about: str, *, models: Sequence[str], rounds: int) -> argparse.Namespace:
    """Parse the command line; ``models`` and ``rounds`` are defaults, no models means all."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument(
        "--models",
        type=lambda text: tuple(filter(None, text.split(","))),
        default=",".join(models),
        help="names, separated by commas (default: %(default)s)",
    )
    parser.add_argument(
        "--rounds",
        type=int,
        default=rounds,
        help="measurements of each side (default: %(default)s)",
    )
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    return parser.parse_args()


@contextmanager
def workspace() -> Iterator[Path]:
    """Yield a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="buildsys-bench-", ignore_cleanup_errors=True) as name:
        yield Path(name)


def copy_project(folder: Path, models: Sequence[str] = ()) -> Path:
    """Copy the project into ``folder``; if ``models`` are given, only their manifests.

    Without TensorRT engines, which only a machine with a GPU builds.
    """
    project = folder / "project"
    project.mkdir()
    for name in _COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, project / name, ignore=shutil.ignore_patterns("__pycache__"))
        elif source.exists():
            shutil.copy2(source, project / name)
    for file in (project / "configs/project.yaml", *(project / "configs/models").rglob("*.yaml")):
        file.write_text(_TENSORRT.sub("", file.read_text(encoding="utf-8")), encoding="utf-8")
    if models:
        _keep_only(project, models)
    return project


def _keep_only(project: Path, models: Sequence[str]) -> None:
    files = {file.stem: file for file in manifests(project)}
    unknown = sorted(set(models) - set(files))
    if unknown:
        raise SystemExit(f"no manifest of {', '.join(unknown)}; choose among {', '.join(files)}")
    for name, file in files.items():
        if name not in models:
            file.rename(file.with_name(f"_{file.name}"))  # can be extended, but is not a model
    for file in manifests(project):
        edit_manifest(file, lambda content: _rename_bases(content, set(files) - set(models)))


def _rename_bases(content: dict[str, Any], renamed: set[str]) -> None:
    bases = content.get("extends", [])
    named = [bases] if isinstance(bases, str) else bases
    if named:
        content["extends"] = [f"_{base}" if Path(base).stem in renamed else base for base in named]


def manifests(project: Path) -> list[Path]:
    """Return the manifests of models, without files for `extends` only."""
    files = (project / "configs" / "models").rglob("*.yaml")
    return sorted(file for file in files if not file.name.startswith("_"))


def read_manifest(file: Path) -> dict[str, Any]:
    """Read a shipped manifest as plain YAML 1.1, which makes no difference for these."""
    content: dict[str, Any] = yaml.safe_load(file.read_text(encoding="utf-8"))
    return content


def edit_manifest(file: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Apply ``change`` to the data of a manifest."""
    content = read_manifest(file)
    change(content)
    file.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")


def shorten_benchmarks(project: Path) -> None:
    """Make the bench stage of every model as short as possible."""
    shortest = {"duration": 0.01, "warmup": 0, "min_samples": 1, "noise": None, "cold_start": 0}
    for file in manifests(project):
        edit_manifest(file, lambda content: content.update(bench=shortest))


def doit_command(*arguments: str) -> list[str]:
    """Return the command line of doit, or of buildsys for a command of its own."""
    is_ours = {*arguments[:1]} & (COMMANDS.keys() - {"build", "list", "clean"})
    return [sys.executable, "-m", "buildsys" if is_ours else "doit", *arguments]


def environment() -> dict[str, str]:
    """Return the environment of both sides' processes."""
    # without bytecode every process would compile its modules, as no installed one does
    dropped = ("BUILDSYS_", "PYTHONDONTWRITEBYTECODE")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
    # servers live until the next run, but do not disturb later measurements
    return {**kept, "PYTHONPATH": str(ROOT), "BUILDSYS_WORKER_IDLE": "30s"}


def timed(command: Sequence[str], folder: Path) -> float:
    """Run a command; return its wall time in seconds. A failure ends the script."""
    start = time.perf_counter()
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    seconds = time.perf_counter() - start
    if done.returncode != 0:
        print(done.stdout[-4000:], done.stderr[-4000:], sep="\n", file=sys.stderr)
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}")
    return seconds


def forget_everything(project: Path) -> None:
    """Remove everything buildsys has written in a project."""
    for name in ("build", ".buildsys"):
        shutil.rmtree(project / name, ignore_errors=True)


def log(text: str) -> None:
    """Print progress to stderr."""
    print(f"  {text}", file=sys.stderr, flush=True)


def alternate(sides: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Measure all sides alternately, reversing the order every round.

    Data of one side is flushed before the next one starts.
    """
    taken: dict[str, list[float]] = {name: [] for name in sides}
    order = list(sides)
    for number in range(rounds):
        for name in order:
            os.sync()
            taken[name].append(sides[name]())
            log(f"round {number + 1} of {rounds}: {name} {taken[name][-1]:.3f} s")
        order.reverse()
    return taken


def time_row(name: str, seconds: Sequence[float], ratio: str = "") -> tuple[str, ...]:
    """Return one row of a table of wall times."""
    spread = f"{min(seconds):.3f} to {max(seconds):.3f}"
    return name, str(len(seconds)), f"{statistics.median(seconds):.3f}", spread, ratio


TIME_COLUMNS = ("side", "runs>", "median (s)>", "range (s)>", "ratio>")


def publish(
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    figures: Any,
    file: Path | None,
) -> None:
    """Print a Markdown table; write the figures to ``file`` if given."""
    machine = {
        "machine": platform.platform(),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
    }
    print(f"\n**{title}** ({', '.join(f'{name} {value}' for name, value in machine.items())})\n")
    print("\n".join(table(columns, rows)))
    if file:
        file.write_text(
            json.dumps({"title": title, **machine, "figures": figures}, indent=2) + "\n",
            encoding="utf-8",
        )
