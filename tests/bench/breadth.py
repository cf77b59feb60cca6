"""The share of models that plain torch.onnx.export and ONNX Runtime run and that also pass here.

    python tests/bench/breadth.py --only 'timm/res*' --results /tmp/breadth
    python tests/bench/breadth.py --results /tmp/breadth --again 2026-11-22T13:00 --budget 400
    python tests/bench/breadth.py --results /tmp/breadth --page docs/breadth.md

Each model gets a project with a generated manifest. First a plain script exports it, with
torchscript or else dynamo, and runs the file in ONNX Runtime; then doit validates it and verifies
an engine, with the same exporter. A remedy of _breadth_models.py is tried where that fails. Both
sides run in processes that have the libraries loaded. Results are kept as JSON, so a run can be
continued, and several may share a folder. Models without a result come first, then the oldest and
fastest. Needs the extra ``[breadth]``.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import multiprocessing
import os
import re
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import textwrap
import time
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/bench"))

import _breadth_models as breadth_models  # noqa: E402 (the path has to be set first)

_PRELOADED = ("torch", "torchvision", "timm", "transformers", "onnxruntime", "onnxscript")
_NOTES = ("<!-- notes, kept by breadth.py -->", "<!-- end of notes -->")
_TIMED_OUT = "timed out"
_OUTCOME = {True: "yes", False: "no", None: "-"}


@dataclass(frozen=True)
class Limits:
    """Limits of each process of a model."""

    seconds: float
    memory: int  # bytes of private memory


def main() -> None:
    """Run the selected models, or write the page of all results."""
    start = time.monotonic()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--only", nargs="+", default=["*"], help="patterns of SUITE/MODEL (default: all)"
    )
    parser.add_argument("--results", type=Path, default=ROOT / ".buildsys/breadth")
    parser.add_argument(
        "--again",
        nargs="?",
        metavar="TIME",
        type=datetime.fromisoformat,
        const=datetime.max,
        default=datetime.min,
        help="run models with a result again, or only those with a result before TIME",
    )
    parser.add_argument(
        "--keep-plain", action="store_true", help="keep the plain script's results of such models"
    )
    parser.add_argument(
        "--budget", type=float, default=float("inf"), help="start no model after so many seconds"
    )
    parser.add_argument(
        "--timeout", type=float, default=900, help="seconds for the plain script, and for doit"
    )
    parser.add_argument("--memory", type=float, default=12, help="GB for a process of a model")
    parser.add_argument("--page", type=Path, help="write the results to this file")
    options = parser.parse_args()
    multiprocessing.set_start_method("forkserver")
    multiprocessing.set_forkserver_preload([*_PRELOADED])
    results, limits = options.results.resolve(), Limits(options.timeout, int(options.memory * 1e9))
    names = [f"{suite}/{name}" for suite, names in breadth_models.SUITES.items() for name in names]
    chosen = [name for name in names if any(fnmatch(name, each) for each in options.only)]
    for name in sorted(chosen, key=lambda name: _cost(results, name)):
        if time.monotonic() - start > options.budget:
            break
        run_model(name, results, limits, options.again, keep_plain=options.keep_plain)
    if options.page:
        before = options.page.read_text() if options.page.exists() else ""
        options.page.write_text(page(names, results, before))


def _cost(results: Path, name: str) -> tuple[str, float]:
    """Return the minute of a model's result and its seconds; empty without one."""
    file = results / f"{name}.json"
    if not file.exists():
        return "", 0.0
    found = json.loads(file.read_text())
    minute = datetime.fromtimestamp(file.stat().st_mtime).isoformat(timespec="minutes")
    return minute, sum(found[side]["seconds"] for side in ("plain", "here") if side in found)


def run_model(
    name: str, results: Path, limits: Limits, again: datetime, *, keep_plain: bool
) -> None:
    """Run one model, unless it has a newer result or another process runs it."""
    folder, file = results / name, results / f"{name}.json"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        if file.exists() and datetime.fromtimestamp(file.stat().st_mtime) >= again:
            return
        print(name, end=" ", flush=True)
        if file.exists() and keep_plain:
            plain = json.loads(file.read_text())["plain"]
        else:
            plain = plain_result(name, folder, limits)
        found: dict[str, Any] = {"model": name, "plain": plain}
        if exporter := plain["exporter"]:
            found["here"] = result_here(name, folder, exporter, limits)
            changes = breadth_models.REMEDIES.get(name)
            if changes and not found["here"]["passed"]:
                remedied = result_here(name, folder, exporter, limits, changes)
                found["remedy"] = {"changes": changes, **remedied}
        if any(side.get("problem") == _TIMED_OUT for side in (plain, found.get("here", {}))):
            print(_TIMED_OUT, flush=True)  # not known on a busy machine
            return
        part = file.with_suffix(".part")
        part.write_text(json.dumps(found, indent=1))
        part.replace(file)
        here = found.get("here", {})
        print(
            f"plain: {plain['exporter'] or 'no'}; here: {_OUTCOME[here.get('passed')]}",
            f"({plain['seconds']:.0f} + {here.get('seconds', 0):.0f} s)",
            flush=True,
        )


def plain_result(name: str, folder: Path, limits: Limits) -> dict[str, Any]:
    """Return the result of the plain script: exporter, seconds, problem."""
    found = folder / "plain.json"
    found.unlink(missing_ok=True)
    process = multiprocessing.Process(target=_run_plain_in, args=(name, folder, limits))
    start = time.perf_counter()
    process.start()
    process.join(limits.seconds)
    seconds = round(time.perf_counter() - start, 1)
    if process.is_alive():
        process.kill()
        process.join()
        return {"exporter": "", "seconds": seconds, "problem": _TIMED_OUT}
    if found.exists():
        return {**json.loads(found.read_text()), "seconds": seconds}
    last = (folder / "plain.log").read_text().strip().splitlines()[-1:]
    return {"exporter": "", "seconds": seconds, "problem": last[0] if last else "crashed"}


def _run_plain_in(name: str, folder: Path, limits: Limits) -> None:
    """Write the result of the plain script into ``folder``."""
    os.chdir(folder)
    resource.setrlimit(resource.RLIMIT_DATA, (limits.memory,) * 2)
    with Path("plain.log").open("w") as log:
        for stream in (1, 2):
            os.dup2(log.fileno(), stream)
    warnings.simplefilter("ignore")
    found = run_plain(*name.split("/"))
    Path("plain.json").write_text(json.dumps(found))


def run_plain(suite: str, name: str) -> dict[str, Any]:
    """Export with torchscript or dynamo, run the file with two batch sizes; return the result."""
    import numpy as np
    import onnxruntime as ort
    import torch

    inputs = breadth_models.inputs_of(suite, name)
    dims = breadth_models.dims_of(inputs)
    torch.manual_seed(0)
    network = breadth_models.make(suite, name).eval()
    if call := breadth_models.call_of(suite):
        network = breadth_models.Called(network, call, tuple(inputs))
    problems = {}
    for exporter in ("torchscript", "dynamo"):
        try:
            arguments = tuple(tensors(inputs, dims, "opt"))
            axes = {
                key: {axis: size for axis, size in enumerate(tensor["shape"]) if size in dims}
                for key, tensor in inputs.items()
            }
            ranges: dict[str, Any] = {}
            if exporter == "dynamo":
                shapes = tuple(axes.values())
                is_variadic = call is not None or suite == "transformers"
                ranges = {"dynamic_shapes": (shapes,) if is_variadic else shapes} if dims else {}
            elif dims:
                ranges = {"dynamic_axes": axes}
            torch.onnx.export(
                network, arguments, "plain.onnx", dynamo=exporter == "dynamo",
                opset_version=breadth_models.OPSET[exporter], input_names=list(inputs), **ranges,
            )  # fmt: skip
            session = ort.InferenceSession("plain.onnx", providers=["CPUExecutionProvider"])
            for point in ("opt", "min"):
                feeds = dict(zip(inputs, tensors(inputs, dims, point), strict=True))
                known = {port.name for port in session.get_inputs()}
                arrays = {key: np.asarray(value) for key, value in feeds.items() if key in known}
                session.run(None, arrays)
        except Exception as error:
            problems[exporter] = f"{type(error).__name__}: {str(error).strip()[:300]}"
        else:
            return {"exporter": exporter, "problem": "", "problems": problems}
    return {"exporter": "", "problem": problems["torchscript"], "problems": problems}


def tensors(inputs: dict[str, Any], dims: dict[str, Any], point: str) -> Iterator[Any]:
    """Yield an example of each input, at a point of the dimensions."""
    import torch

    for tensor in inputs.values():
        shape = [dims[size][point] if isinstance(size, str) else size for size in tensor["shape"]]
        if tensor.get("dtype") == "int64":
            data = tensor["data"]
            yield (
                torch.full(shape, data["constant"])
                if "constant" in data
                else torch.randint(data["low"], data["high"], shape)
            )
        else:
            yield torch.rand(shape) if "data" in tensor else torch.randn(shape)


def result_here(
    name: str, folder: Path, exporter: str, limits: Limits, changes: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the result of doit: passed, seconds, problem."""
    suite, _, model = name.partition("/")
    manifest = {**breadth_models.manifest_of(suite, model, exporter), **(changes or {})}
    target = manifest["model"]
    write_project(folder, manifest)
    process = subprocess.Popen(
        ["doit", "validate:" + target, f"verify:{target}:ort"],
        cwd=folder,
        # nothing is benchmarked
        env={**os.environ, "BUILDSYS_MACHINE_LOCK": str(folder.parents[1] / "locks")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (limits.memory,) * 2),
    )
    start = time.perf_counter()
    timed_out = False
    try:
        output, _ = process.communicate(timeout=limits.seconds)
    except subprocess.TimeoutExpired:
        timed_out = True
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate()
    seconds = round(time.perf_counter() - start, 1)
    (folder / "doit.log").write_text(output)
    if timed_out:
        return {"passed": False, "seconds": seconds, "problem": _TIMED_OUT}
    # the first failure, up to the next target
    failure = re.search(r"^failed .*(\n +.*)*", output, re.MULTILINE)
    problem = failure[0] if failure else output[-500:]
    passed = process.returncode == 0
    if passed:  # hundreds of megabytes
        for built in ("build", ".buildsys", "plain.onnx", "plain.onnx.data"):
            path = folder / built
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    return {"passed": passed, "seconds": seconds, "problem": "" if passed else problem}


def write_project(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Write a project with one manifest."""
    for name in ("dodo.py", "pyproject.toml"):
        (folder / name).write_bytes((ROOT / name).read_bytes())
    models = ROOT / "tests/bench/_breadth_models.py"
    (folder / "breadth_models.py").write_bytes(models.read_bytes())
    (folder / "configs/models").mkdir(parents=True, exist_ok=True)
    file = folder / f"configs/models/{manifest['model']}.yaml"
    file.write_text(json.dumps(manifest, indent=1))  # JSON is YAML


def page(names: list[str], results: Path, before: str = "") -> str:
    """Return the page of all results, with the notes of the page before."""
    from importlib.metadata import version

    found: dict[str, dict[str, Any]] = {}
    for name in names:
        file = results / f"{name}.json"
        if file.exists():
            found[name] = json.loads(file.read_text())
    libraries = ("torch", "torchvision", "timm", "transformers", "onnx", "onnxruntime")
    versions = ", ".join(f"{library} {version(library)}" for library in libraries)
    lines = [
        "# Breadth",
        "",
        "Models with random weights in small configurations: does plain `torch.onnx.export` with",
        "ONNX Runtime run them (torchscript, else dynamo, at two batch sizes), and do they pass",
        "`validate` and `verify` here with the same exporter and an ONNX Runtime engine? The",
        "target is 95 % of those that the plain script runs.",
        "",
        "```bash",
        "pip install -e '.[breadth]'",
        "python tests/bench/breadth.py --page docs/breadth.md",
        "```",
        "",
        *textwrap.wrap(f"Versions: {versions}.", 100),
        "",
        "Seconds are wall times on a busy machine with two cores. The plain script runs the graph",
        "at two sizes and compares nothing. The weights of torchvision's models but mvit are",
        "[drawn](weights.md#random-weights); all others are the initial ones. All models are in",
        "`tests/bench/_breadth_models.py`.",
        "",
        "| suite | models | plain runs | pass here | share | plain, median s | here, median s |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    suites = dict.fromkeys(name.partition("/")[0] for name in names)
    lines += [_totals(suite, found, f"{suite}/") for suite in suites]
    lines += [_totals("**all**", found, ""), ""]
    if missing := len(names) - len(found):
        lines += [f"{missing} of {len(names)} models have not been run yet.", ""]
    start, end = _NOTES
    notes = before.partition(start)[2].partition(end)[0].strip()
    lines += [start, *([notes] if notes else []), end, ""]
    lines += ["## Failures", ""]
    first = len(lines)
    for name, each in found.items():
        if each["plain"]["exporter"] and not each["here"]["passed"]:
            problem = " ".join(each["here"]["problem"].partition("; details:")[0].split())
            lines += [f"- **{name}**:", *_indented(problem)]
            if remedy := each.get("remedy"):
                changes = json.dumps(remedy["changes"]).replace('"', "")
                outcome = "it passes" if remedy["passed"] else "it fails as well"
                lines += ["", *_indented(f"With `{changes}` {outcome}.")]
    lines += [
        *(() if len(lines) > first else ("None.",)),
        "",
        "## Not run by the plain script",
        "",
        "| model | torchscript | dynamo |",
        "|---|---|---|",
    ]
    for name, each in found.items():
        if not each["plain"]["exporter"]:
            problems = each["plain"].get("problems") or {"torchscript": each["plain"]["problem"]}
            cells = (_cell(problems.get(exporter, "")) for exporter in ("torchscript", "dynamo"))
            lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _totals(title: str, found: dict[str, dict[str, Any]], prefix: str) -> str:
    """Return the row of a suite."""
    members = [each for name, each in found.items() if name.startswith(prefix)]
    plain = [each for each in members if each["plain"]["exporter"]]
    passed = sum(each["here"]["passed"] for each in plain)
    if not plain:
        return f"| {title} | {len(members)} | 0 | 0 | - | - | - |"
    medians = (
        statistics.median(each[side]["seconds"] for each in plain) for side in ("plain", "here")
    )
    seconds = " | ".join(f"{median:.0f}" for median in medians)
    share = f"{100 * passed / len(plain):.1f} %"
    return f"| {title} | {len(members)} | {len(plain)} | {passed} | {share} | {seconds} |"


def _indented(text: str) -> list[str]:
    return textwrap.wrap(text, 98, initial_indent="  ", subsequent_indent="  ")


def _cell(problem: str) -> str:
    plain = re.sub(r"\x1b\[[0-9;]*m", "", problem)  # colors
    return plain.replace("|", "\\|").partition("\n")[0][:160]


if __name__ == "__main__":
    main()
