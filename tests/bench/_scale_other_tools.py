"""Equally large projects of trivial steps for other tools.

Each step reads one small file and writes one.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from _harness import doit_command, environment, timed

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
_SNAKEFILE = """\
rule all:
    input: expand("out/{{n}}.txt", n=range({count}))

rule step:
    input: "in/{{n}}.txt"
    output: "out/{{n}}.txt"
    shell: "cp {{input}} {{output}}"
"""


def plain_doit(folder: Path, count: int) -> list[str]:
    """Build ``count`` tasks with one file_dep and config_changed each; return doit's command."""
    _write_inputs(folder, count)
    (folder / "dodo.py").write_text(_DODO.format(count=count), encoding="utf-8")
    timed(doit_command(), folder)
    return doit_command()


def dvc(folder: Path, count: int, program: Path) -> list[str]:
    """Record ``count`` stages with `dvc commit`, which runs nothing; return DVC's command."""
    _write_inputs(folder, count)
    steps = "".join(
        f"  s{number}:\n    cmd: cp in/{number}.txt out/{number}.txt\n    deps: [in/{number}.txt]\n"
        f"    outs: [{{out/{number}.txt: {{cache: false}}}}]\n"
        for number in range(count)
    )
    (folder / "dvc.yaml").write_text(f"stages:\n{steps}", encoding="utf-8")
    for number in range(count):
        (folder / f"out/{number}.txt").write_text(str(number), encoding="utf-8")
    for command in (["init", "--no-scm", "-q"], ["commit", "-f", "-q"], ["repro", "-q"]):
        _run([str(program), *command], folder)
    return [str(program), "repro", "-q"]


def snakemake(folder: Path, count: int, program: Path) -> list[str]:
    """Build ``count`` jobs; return Snakemake's command."""
    _write_inputs(folder, count)
    (folder / "Snakefile").write_text(_SNAKEFILE.format(count=count), encoding="utf-8")
    for number in range(count):
        (folder / f"out/{number}.txt").write_text(str(number), encoding="utf-8")
    command = [str(program), "-c1", "-q"]
    _run([*command, "--touch"], folder)
    _run(command, folder)
    return command


def _write_inputs(folder: Path, count: int) -> None:
    for name in ("in", "out"):
        (folder / name).mkdir(parents=True)
    for number in range(count):
        (folder / f"in/{number}.txt").write_text(str(number), encoding="utf-8")


def _run(command: list[str], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, env=environment(), capture_output=True, text=True)
    if done.returncode:
        output = (done.stdout + done.stderr)[-3000:]
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}\n{output}")
