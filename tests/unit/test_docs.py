"""Documentation compared with the code: fields, defaults, commands, exit codes, links."""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator
from test_reference_pages import load

import buildsys
from buildsys import errors
from buildsys.backends.tensorrt.options import TensorRtBase
from buildsys.cli.commands import COMMANDS
from buildsys.execution import stale_reasons
from buildsys.manifest.default_limits import AGREEMENT_LIMITS, DEFAULT_LIMITS
from buildsys.manifest.schema import base
from buildsys.manifest.schema.base import Spec
from buildsys.manifest.schema.engines import EngineBase, GateLimit
from buildsys.manifest.schema.project import ExecutorBase, ProjectSpec
from buildsys.manifest.yaml_reader import read_yaml
from buildsys.project.json_schema import schema_texts
from buildsys.project.load import load_project
from buildsys.project.model import ModelSpec
from buildsys.project.plan import plan_model

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
MANIFEST_PAGE = (ROOT / "docs/manifest.md").read_text(encoding="utf-8")
FIELDS_PAGE: str = load("fields").page()
GENERATED = (
    "fields.md",
    "commands.md",
    "errors.md",
    "contributing.md",
    "changelog.md",
)  # by docs/reference, not in the repository
PRECISION_PAGE = (ROOT / "docs/precision.md").read_text(encoding="utf-8")
PAGES = sorted(
    page
    for page in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"))
    if page.parent != ROOT / "docs/reference"
)


def sections(base: type[Spec]) -> list[type[Spec]]:
    """Return the sections of the imported schemas, bases first."""
    below = [spec for child in base.__subclasses__() for spec in (child, *sections(child))]
    ours = (ModelSpec.__module__[:-6], "buildsys.backends.")
    return [spec for spec in below if spec.__module__.startswith(ours)]


ABSTRACT = (base.Tolerance, GateLimit, EngineBase, ExecutorBase, TensorRtBase)
schema_texts()  # imports all sections
SPECS = [spec for spec in sections(Spec) if spec not in ABSTRACT and spec.__name__[0] != "_"]


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.__name__)
def test_every_field_has_a_description_in_the_reference(spec: type[Spec]) -> None:
    root = {ModelSpec: "## Models", ProjectSpec: "## project.yaml"}.get(spec)
    heading = root or f" {{#{spec.__name__.lower()}}}"
    section = FIELDS_PAGE.partition(f"{heading}\n")[2].partition("\n##")[0]
    rows = re.findall(r"^\| `([^`]+)` \| .+? \| .+? \| (.+) \|$", section, re.MULTILINE)
    described = {name for name, meaning in rows if len(meaning) > 5}
    names = {info.alias or name for name, info in spec.model_fields.items()}
    assert names <= described, f"{spec.__name__}: no description of {names - described}"


def test_the_page_of_the_manifest_names_every_field_of_a_model() -> None:
    overview = MANIFEST_PAGE.partition("## The whole file")[2].partition("\n## ")[0]
    named = set(re.findall(r"`(\w+)`", overview))
    preprocessed = {"extends", "matrix", "dynamic_axes"}
    assert named == {*(info.alias or name for name, info in ModelSpec.model_fields.items())} | (
        preprocessed
    )


def test_the_examples_of_the_manifest_have_existing_fields() -> None:
    schemas = [json.loads(text) for text in schema_texts().values()]
    for schema in schemas:
        schema.pop("required", None)  # an example is a part of a file
    blocks = re.findall(r"^```yaml\n(?!# yaml-)(.*?)^```$", MANIFEST_PAGE, re.MULTILINE | re.DOTALL)
    examples = [read_yaml(Path(), block.encode()) for block in blocks]
    assert len(examples) > 10
    for example in examples:
        errors = [list(Draft202012Validator(schema).iter_errors(example)) for schema in schemas]
        assert [] in errors, f"{example}: {min(errors, key=len)[0].message}"


@pytest.mark.parametrize("precision", sorted(DEFAULT_LIMITS.keys() - {"validate", "quantized"}))
def test_the_default_limits_are_documented(precision: str) -> None:
    row = next(line for line in FIELDS_PAGE.splitlines() if line.startswith(f"| `{precision}` |"))
    limits = ", ".join(f"{name} {limit:g}" for name, limit in DEFAULT_LIMITS[precision].items())
    assert limits in row


def test_the_limits_of_quantized_networks_are_documented() -> None:
    limits = DEFAULT_LIMITS["quantized"]
    assert f"`rtol` {limits['rtol']:g}, `cosine` {limits['cosine']:g}" in PRECISION_PAGE
    assert AGREEMENT_LIMITS["quantized"] == AGREEMENT_LIMITS["int8"]


def test_the_limits_of_agreement_are_documented() -> None:
    for name, limit in AGREEMENT_LIMITS["int8"].items():
        row = next(line for line in PRECISION_PAGE.splitlines() if line.startswith(f"| `{name}`"))
        limits = [AGREEMENT_LIMITS[precision][name] for precision in ("fp16", "bf16", "int8")]
        percent = name == "class_agreement"
        texts = [f"{value:.0%}".replace("%", " %") if percent else f"{value:g}" for value in limits]
        assert row.startswith(f"| `{name}` | {' | '.join(texts)} |")
        assert AGREEMENT_LIMITS["fp8"][name] == AGREEMENT_LIMITS["int4"][name] == limit


def test_the_example_of_the_precision_page_is_a_manifest(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "precision.md").read_text(encoding="utf-8")
    example = re.search(r"```yaml\n(.*?)```", page, re.DOTALL)
    assert example is not None
    (tmp_path / "configs/models").mkdir(parents=True)
    (tmp_path / "configs/models/example.yaml").write_text(example[1], encoding="utf-8")
    (tmp_path / "configs/engines.yaml").write_bytes((ROOT / "configs/engines.yaml").read_bytes())
    for folder in ("golden", "calibration"):
        (tmp_path / "data" / folder).mkdir(parents=True)
    model = load_project(tmp_path).models["resnet18-int8"].data
    calibrate = next(action for action in plan_model(model) if action.stage == "calibrate")
    assert calibrate.options["dims"]["batch"] * calibrate.options["calibration"]["batches"] == 128
    assert "the first 128 images" in page


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_has_a_target(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if target.startswith("http"):
            continue
        file, _, anchor = target.partition("#")
        linked = (page.parent / file) if file else page
        if linked.parent.name == "reference" and linked.name in GENERATED:
            continue  # .ci/docs checks these
        assert linked.exists(), f"{page.name} links to {target}"
        if anchor:
            headings = re.findall(
                r"^#+ (.+)$", linked.read_text(encoding="utf-8"), flags=re.MULTILINE
            )
            assert anchor in [
                re.sub(r"[^\w\- ]", "", heading).lower().replace(" ", "-") for heading in headings
            ]


@pytest.mark.parametrize("name", ["architecture.md", "development.md"])
def test_the_files_and_names_of_a_page_about_the_code_exist(name: str) -> None:
    page = (ROOT / "docs" / name).read_text(encoding="utf-8")
    places = set(re.findall(r"`((?:tests/|\.ci/|docs/)?[\w.]+/[\w./]*)`", page))
    files = {place: _code_place(place) for place in places if not place.startswith(("site", "/"))}
    assert len(files) > 5
    assert [place for place, file in files.items() if not file.exists()] == []
    for first, second, place in re.findall(
        r"`(_?[A-Z]\w+)`(?: or `(_?[A-Z]\w+)`)? in\s+`([\w/]+\.py)`", page
    ):
        code = _code_place(place).read_text(encoding="utf-8")
        assert [word for word in (first, second) if not re.search(rf"\b{word}\b", code)] == []


def _code_place(place: str) -> Path:
    folder = (
        ROOT if place.startswith(("tests/", ".ci/", "docs/", "buildsys/")) else ROOT / "buildsys"
    )
    return folder / place


def test_the_readme_has_the_two_commands() -> None:
    lines = README.splitlines()
    assert "pip install -e '.[rtx]' && doit build:resnet50" in lines
    assert "pip install -e '.[test]' && pytest" in lines


def test_ci_runs_the_command_of_the_readme() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    pattern = re.search(r"grep -E '([^']+)' README.md", script.read_text(encoding="utf-8"))
    assert pattern is not None
    found = [line for line in README.splitlines() if re.search(pattern[1], line)]
    assert found == ["pip install -e '.[test]' && pytest"]
    subprocess.run(["bash", "-n", str(script)], check=True)


def test_the_readme_has_every_exit_code() -> None:
    listed = {int(code) for code in re.findall(r"^\| (\d+) \|", README, flags=re.MULTILINE)}
    kinds = [errors.BuildsysError, *errors.BuildsysError.__subclasses__(), errors.CheckFailed]
    assert {kind.exit_code for kind in kinds} <= listed


def test_all_files_about_the_project_name_its_version() -> None:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    citation = read_yaml(Path(), (ROOT / "CITATION.cff").read_bytes())
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f'version = "{buildsys.__version__}"' in project
    assert citation["version"] == buildsys.__version__
    assert re.findall(r"^## (.*)$", changelog, re.MULTILINE)[0] == buildsys.__version__


def test_the_versions_of_the_readme_are_those_that_are_installed() -> None:
    section = README.partition("## Status and versions")[2].partition("\n## ")[0]
    requirements = re.findall(r"`([\w-]+[<>=][^`]+)`", section)
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert len(requirements) > 5
    assert [text for text in requirements if f'"{text}"' not in project] == []


@pytest.mark.parametrize("kind", ["bug", "feature"])
def test_an_issue_has_a_template(kind: str) -> None:
    text = (ROOT / f".github/ISSUE_TEMPLATE/{kind}.md").read_text(encoding="utf-8")
    header = read_yaml(Path(), text.split("---\n")[1].encode())
    assert {"name", "about", "labels"} <= header.keys()


def test_every_kind_of_reason_is_documented() -> None:
    page = (ROOT / "docs" / "explain.md").read_text(encoding="utf-8")
    listed = re.search(r"or one of\s([^.]+)\.", page)
    assert listed is not None
    assert set(re.findall(r"`([a-z-]+)`", listed[1])) == set(stale_reasons.TEXTS)


def test_every_command_is_documented() -> None:
    page = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    shown = set(re.findall(r"^(?:\| )?`(?:doit|buildsys) ([\w-]+)", page, flags=re.MULTILINE))
    assert {*COMMANDS} <= shown


def test_the_manifest_of_the_readme_loads(tmp_path: Path) -> None:
    from buildsys.project.load import load_project

    blocks = re.findall(r"```(python|yaml)\n(.*?)```", README, flags=re.DOTALL)
    files = re.findall(r"^`((?:plugins|configs)/\S+)` ", README, flags=re.MULTILINE)
    assert len(blocks) == len(files) == 2
    engines = ROOT / "configs" / "engines.yaml"
    for file, (_, text) in zip(
        [*files, "configs/engines.yaml"], [*blocks, ("yaml", engines.read_text())], strict=True
    ):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(text)
    (tmp_path / "dodo.py").touch()
    model = load_project(tmp_path).models["classifier"]
    assert model.data["source"]["kwargs"] == {"width": 32}
    assert [engine["name"] for engine in model.data["engines"]] == ["ort-cpu"]


def test_the_backend_of_the_documentation_is_the_tested_one() -> None:
    page = (ROOT / "docs/backends.md").read_text()
    files = re.findall(r"<!-- file: (\S+) -->\n```\w+\n(.*?)```", page, re.DOTALL)
    folder = ROOT / "tests/reference_backend"
    assert [name for name, _ in files] == ["buildsys_reference/options.py"]
    for name, text in files:
        assert (folder / name).read_text() == text, f"docs/backends.md differs from {name}"


def test_the_documentation_stays_short() -> None:
    limits_kb = {"CHANGELOG.md": 10, "docs/architecture.md": 20, "docs/keys.md": 4}
    sizes = {page.relative_to(ROOT).as_posix(): page.stat().st_size for page in PAGES}
    assert {name: sizes[name] for name, kb in limits_kb.items() if sizes[name] > kb * 1000} == {}
    assert sum(sizes.values()) <= 252_000
    long = {name: size for name, size in sizes.items() if "/decisions/0" in name and size > 2000}
    assert long == {}
