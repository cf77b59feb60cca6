"""What people do with doit, as real processes on tiny models with the real libraries."""

import json
import re
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

from project_folder import ProjectFolder, Ran, program_of

from buildsys.history.database import History
from buildsys.report.formatting import duration

TARGETS = {
    "export:lin",
    "reference:lin",
    "simplify:lin",
    "validate:lin",
    "engine:lin:ort",
    "verify:lin:ort",
    "bench:lin:ort",
    "report:lin",
}
UP_TO_DATE = "everything is up to date (8 targets)\n"
HEAVY = {"torch", "onnx", "onnxruntime", "onnxscript", "numpy", "tensorrt_rtx"}
NOT_FOR_NOTHING = HEAVY | {"pydantic", "yaml", "rich", "concurrent.futures", "asyncio"}


def imported(project: ProjectFolder, *arguments: str) -> set[str]:
    """Return the names of all modules that the doit process itself imports."""
    command = [sys.executable, "-X", "importtime", "-m", program_of(arguments), *arguments]
    done = subprocess.run(
        command,
        cwd=project.root,
        env=project.environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return {
        line.rpartition("|")[2].strip()
        for line in done.stderr.splitlines()
        if line.startswith("import time:")
    }


def test_doit_builds_everything_and_prints_the_path_of_the_report(
    built_once: tuple[ProjectFolder, Ran],
) -> None:
    project, built = built_once
    assert built.code == 0, built.out + built.err
    assert built.passed == TARGETS
    assert "report: build/lin/report/report.md\n" in built.out
    assert "8 passed in" in built.out
    assert (project.root / "build/lin/report/report.md").is_file()
    assert "pages: build/report/index.html\n" in built.out
    page = (project.root / "build/report/lin.html").read_text()
    assert 'href="../lin/engine/ort/engine.log"' in page
    assert page.count('<div class="zoom">') == 2  # the graph before and after simplification
    result = json.loads((project.root / "build/lin/validate/result.json").read_text())
    assert result["status"] == "passed"
    assert result["target"] == "validate:lin"


def test_a_target_has_one_duration_everywhere(built_once: tuple[ProjectFolder, Ran]) -> None:
    project, ran = built_once
    report = json.loads((project.root / "build/lin/report/report.json").read_text())
    with closing(History.read_only(project.root / ".buildsys/history.db")) as history:
        recorded = {build.target: build.seconds for build in history.builds()}
    lines = [line for line in report["summary"] if line["stage"] != "report"]  # not timed yet
    assert {line["target"] for line in report["summary"]} == ran.passed
    for line in lines:
        target = line["target"]
        stage, _, *variant = target.split(":")
        shown = duration(line["seconds"])
        assert recorded[target] == line["seconds"]
        assert re.search(rf"^done +{target}  {re.escape(shown)}(  |$)", ran.out, re.MULTILINE)
        row = rf"^ {' '.join((stage, *variant))} +passed +{re.escape(shown)} "
        assert re.search(row, ran.out, re.MULTILINE)


def test_a_second_run_does_nothing_and_imports_no_more_than_needed(built: ProjectFolder) -> None:
    assert built.doit() == Ran(0, UP_TO_DATE, "")
    time.sleep(0.05)  # newer manifests are not cached: a second write might leave the same stamp
    assert built.doit("-n", "2") == Ran(0, UP_TO_DATE, "")
    assert imported(built) & NOT_FOR_NOTHING == set()
    assert imported(built, "list", "--all") & NOT_FOR_NOTHING == set()


def test_a_run_leaves_the_heavy_libraries_to_the_workers(built: ProjectFolder) -> None:
    built.edit("configs/models/lin.yaml", "opset: 17", "opset: 16")
    modules = imported(built, "export:lin")
    assert "rich" in modules, "something ran"
    assert not modules & HEAVY


def test_broken_manifests_fail_a_run_of_all_models_and_no_other(project: ProjectFolder) -> None:
    project.add_model("one")
    project.add_model("two")
    project.add_model("good")
    project.edit("configs/models/one.yaml", "opset: 17", "opset: 99")
    project.edit("configs/models/two.yaml", "engines:", "engine:")
    wrong = project.doit("one")
    assert (wrong.code, wrong.out) == (3, "")
    assert wrong.err.startswith("ERROR: configs/models/one.yaml:6:")
    assert not (project.root / "build").exists()
    assert project.doit("export:good").code == 0
    ran = project.doit("-n", "2", "export")
    assert (ran.code, ran.err) == (3, "")
    files = ["configs/models/one.yaml", "configs/models/two.yaml"]
    assert re.findall(r"^failed +manifest:(.*)", ran.out, re.MULTILINE) == files
    assert re.findall(r"^  (.*?):\d+:", ran.out, re.MULTILINE) == files
    assert "everything is up to date (1 target)" in ran.out
    other = project.doit("-r", "json", "export")  # a reporter that knows nothing of us
    assert other.code != 0
    assert any(f"{file}:" in other.out for file in files)  # doit stops at either
    listed = project.doit("list", "--all", "-q").out
    assert all(f"manifest:{file}" in listed for file in files)
    assert (project.root / "build/good/export").exists()


def test_doit_works_from_another_folder_and_with_moved_folders(
    built: ProjectFolder, tmp_path: Path
) -> None:
    dodo = str(built.root / "dodo.py")
    assert built.doit("-f", dodo, "-d", str(tmp_path), cwd=tmp_path) == Ran(0, UP_TO_DATE, "")
    built.doit("forget", "-f", dodo, "report:lin", cwd=tmp_path)
    assert built.doit("-f", dodo, cwd=tmp_path).ran == {"report:lin"}
    assert not (tmp_path / "build").exists()
    (built.root / "build").rename(built.root / "out")
    (built.root / "configs").rename(built.root / "manifests")
    built.environment |= {"BUILDSYS_BUILD": "out", "BUILDSYS_CONFIGS": "manifests"}
    assert built.doit() == Ran(0, UP_TO_DATE, "")
