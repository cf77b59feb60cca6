"""Mutation score of the modules that decide about results.

Runs mutmut on a copy of the project, once per module of modules.toml with that module's tests
only. Surviving mutants are printed, except the equivalent ones of equivalent.toml. A score below
90 % fails. Mutants that only reword a sentence are not counted: tests assert the parts of a
message that matter.

    python tests/mutation/run.py freshness
"""

import argparse
import ast
import difflib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).parent
LEAST_SCORE = 0.9
_COPIED = ("buildsys", "configs", "docs", "dodo.py", "plugins", "pyproject.toml", "tests")
_SURVIVED, _UNTESTED = 0, 33  # exit codes in mutmut's results; others mean killed
_STRING = re.compile(r""""[^"\n]*"|'[^'\n]*'""")


class Mutant(NamedTuple):
    """A change of one function and the result of the tests."""

    function: str
    was: str
    becomes: str
    killed: bool

    def __str__(self) -> str:
        return f"{self.function}:\n    - {self.was}\n    + {self.becomes}"


def run_mutants(source: str, tests: list[str], processes: int) -> list[Mutant]:
    """Run ``tests`` against every mutant of the files that match ``source``."""
    sources = sorted(str(path.relative_to(ROOT)) for path in ROOT.glob(source))
    with tempfile.TemporaryDirectory(prefix="buildsys-mutation-") as folder:
        project = Path(folder)
        for name in _COPIED:
            path, copy = ROOT / name, project / name
            if path.is_dir():
                shutil.copytree(path, copy, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy2(path, copy)
        settings = {
            "source_paths": sources,
            "also_copy": _COPIED,
            "pytest_add_cli_args": ["-n", "0", "-p", "no:cacheprovider"],
            "pytest_add_cli_args_test_selection": tests,
            "use_git_change_detection": False,
        }
        with (project / "pyproject.toml").open("a", encoding="utf-8") as file:
            file.write("\n[tool.mutmut]\n")
            file.writelines(f"{key} = {json.dumps(value)}\n" for key, value in settings.items())
        mutated = project / "mutants"
        mutated.mkdir()  # an import path that does not exist when Python starts stays unused
        run = subprocess.run(
            ["mutmut", "run", "--max-children", str(processes)],
            cwd=project,
            env=os.environ | {"PYTHONPATH": str(mutated)},  # also for the tests' own processes
            capture_output=True,
            text=True,
            check=False,
        )
        if run.returncode:
            sys.exit(f"mutmut failed:\n{run.stdout[-3000:]}{run.stderr[-3000:]}")
        mutants: list[Mutant] = []
        for file in sources:
            results = json.loads((mutated / f"{file}.meta").read_text(encoding="utf-8"))
            code = (mutated / file).read_text(encoding="utf-8")
            mutants += _read_mutants(code, results["exit_code_by_key"])
        return mutants


def _read_mutants(code: str, results: dict[str, int]) -> Iterator[Mutant]:
    lines = code.split("\n")  # ast.get_source_segment splits the whole file for each function
    functions = {
        node.name: "\n".join(lines[node.lineno - 1 : node.end_lineno])
        for node in ast.walk(ast.parse(code))
        if isinstance(node, ast.FunctionDef)
    }
    for key, result in results.items():
        name = key.rpartition(".")[2]
        mangled = name.rpartition("__mutmut_")[0]
        function = mangled.removeprefix("x_").replace("xǁ", "").replace("ǁ", ".")
        before, after = (
            functions[each].replace(each, function).splitlines()
            for each in (f"{mangled}__mutmut_orig", name)
        )
        changes = [*difflib.unified_diff(before, after, n=0, lineterm="")][2:]
        was, becomes = (
            " ".join(line[1:].strip() for line in changes if line[0] == sign) for sign in "-+"
        )
        yield Mutant(function, was, becomes, result not in (_SURVIVED, _UNTESTED))


def rewords(mutant: Mutant) -> bool:
    """Return True if only the text of a sentence changes."""
    before, after = _STRING.findall(mutant.was), _STRING.findall(mutant.becomes)
    if len(before) != len(after) or _STRING.sub("", mutant.was) != _STRING.sub("", mutant.becomes):
        return False
    return all(" " in old for old, new in zip(before, after, strict=True) if old != new)


def report(name: str, mutants: list[Mutant], equivalent: list[dict[str, Any]]) -> bool:
    """Print the score and the survivors of a module; return True if the score suffices."""
    known = {(each["function"], each["was"], each["becomes"]) for each in equivalent}
    counted = [each for each in mutants if each[:3] not in known and not rewords(each)]
    survivors = [each for each in counted if not each.killed]
    for mutant in survivors:
        print(mutant)
    score = 1 - len(survivors) / len(counted)
    skipped = len(mutants) - len(counted)
    print(f"{name}: {len(counted) - len(survivors)} of {len(counted)} killed ({score:.1%}), "
          f"{skipped} reworded or equivalent")  # fmt: skip
    return score >= LEAST_SCORE


def main() -> int:
    """Run the named modules, all by default."""
    modules = tomllib.loads((HERE / "modules.toml").read_text(encoding="utf-8"))
    equivalent = tomllib.loads((HERE / "equivalent.toml").read_text(encoding="utf-8"))
    parser = argparse.ArgumentParser(description="Mutation score of the modules that decide.")
    parser.add_argument("module", nargs="*", help=", ".join(modules))
    parser.add_argument("-n", "--processes", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    names = options.module or [*modules]
    passed = True
    for name in names:
        mutants = run_mutants(modules[name]["source"], modules[name]["tests"], options.processes)
        passed &= report(name, mutants, equivalent.get(name, []))
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
