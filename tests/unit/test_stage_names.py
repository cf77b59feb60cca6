"""The names of stages stand in the table of stages and in the folders of stages."""

import ast
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

import buildsys
from buildsys.stages.table import STAGE_INFO, STAGES, StageInfo

PACKAGE = Path(buildsys.__file__).parent
MOST_MODULES = 4  # outside the folders


def literals_of_stages(code: str) -> Iterator[ast.Constant]:
    """Yield string literals that name stages.

    These are beginnings of targets, comparisons with stages, lists of stages, and constants such
    as ``ENGINE = "engine"``. Fields, titles and messages may have the same words.
    """
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            stage, colon, rest = node.value.partition(":")
            if stage in STAGE_INFO and colon and not rest.startswith(" "):
                yield node
        elif isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            if any("stage" in ast.unparse(side) for side in sides):
                yield from (name for side in sides for name in _names(side))
        elif isinstance(node, (ast.Tuple, ast.List, ast.Set)) and len(node.elts) > 1:
            if all(map(_is_stage, node.elts)):
                yield from _names(node)
        elif isinstance(node, ast.Dict) and len(node.keys) > 1:
            if all(key is not None and _is_stage(key) for key in node.keys):
                yield from (name for key in node.keys if key for name in _names(key))
        elif isinstance(node, ast.Assign) and _is_stage(node.value):
            names = {ast.unparse(target).strip("_") for target in node.targets}
            assert isinstance(node.value, ast.Constant)
            if names & {str(node.value.value).upper(), "STAGE"}:
                yield node.value
        elif isinstance(node, ast.keyword) and node.arg == "stage" and _is_stage(node.value):
            yield from _names(node.value)


def _is_stage(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value in STAGE_INFO


def _names(node: ast.expr) -> Iterator[ast.Constant]:
    inner = node.elts if isinstance(node, (ast.Tuple, ast.List, ast.Set)) else [node]
    yield from (one for one in inner if isinstance(one, ast.Constant) and _is_stage(one))


def test_the_names_of_stages_stand_in_their_folders() -> None:
    places: dict[str, list[str]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).as_posix()
        if not name.startswith("stages/"):
            literals = {(n.lineno, n.value) for n in literals_of_stages(path.read_text("utf-8"))}
            places |= {name: [f"{line}: {value!r}" for line, value in sorted(literals)]}
    offenders = {name: lines for name, lines in places.items() if lines}
    for name, lines in offenders.items():
        print(f"buildsys/{name}", *lines, sep="\n  ")
    assert len(offenders) <= MOST_MODULES


def test_the_probe_sees_names_and_no_other_words() -> None:
    code = """
_GATE = "gate"
Stage = Literal["export", "bench"]
for target in (f"engine:{model}", "gate:m:e"): ...
if action.stage == "bench" or line.stage in ("verify", "report"): ...
FIGURES = {"export": 1, "convert": 2}
job = Job(stage="search")
"""
    names = "2 gate, 3 export, 3 bench, 4 engine:, 4 gate:m:e, 5 bench, 5 verify, 5 report,"
    names += " 6 export, 6 convert, 7 search"
    found = {f"{name.lineno} {name.value}" for name in literals_of_stages(code)}
    assert found == {*names.split(", ")}
    code = """
titles = ("engine", "status", "report")
path = folder / "report" / record["engine"]
if "operators" in options or contender == "engine": ...
raise UsageError("verify: there is no engine")
"""
    assert not list(literals_of_stages(code))


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.name)
def test_the_row_of_a_stage_agrees_with_its_folder(stage: StageInfo) -> None:
    files = {path.stem for path in (PACKAGE / "stages" / stage.name).glob("*.py")}
    assert {"plan", "stage"} <= files
    assert ("report" in files) is ("result" in files) is bool(stage.result)
    assert ("checks" in files) is stage.has_checks
    assert ("fields" in files) is bool(stage.sections)
    if stage.sections:
        fields = import_module(f"{stage.package}.fields").Sections.model_fields.items()
        assert tuple(info.alias or name for name, info in fields) == stage.sections
