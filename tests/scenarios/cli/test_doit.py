"""What people do with doit, as real processes on tiny models with the real libraries."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from project_folder import ProjectFolder, Ran, program_of

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


def test_settings_rerun_what_depends_on_them_with_reasons(built: ProjectFolder) -> None:
    built.edit("configs/models/lin.yaml", "duration: 5ms", "duration: 6ms")
    again = built.doit()
    assert again.code == 0
    assert again.ran == {"bench:lin:ort", "report:lin"}
    assert "bench.duration: 0.005 → 0.006" in again.out
    assert "2 passed, 6 fresh in" in again.out
    built.edit("configs/models/lin.yaml", "opset: 17", "opset: 18")
    again = built.doit("build:lin")
    assert again.passed == TARGETS - {"reference:lin"}
    assert "run          export:lin  … export.opset: 17 → 18\n" in again.out


def test_list_info_and_forget(built: ProjectFolder) -> None:
    listed = built.doit("list", "--all", "--status")
    status = {line.split()[1]: line[0] for line in listed.out.splitlines()}
    assert status.keys() >= TARGETS
    assert {status[target] for target in TARGETS} == {"U"}

    info = built.doit("info", "bench:lin:ort")
    assert info.code == 0
    assert "build/lin/bench/ort.json" in info.out
    assert "verify:lin:ort" in info.out

    assert built.doit("forget", "bench:lin:ort").code == 0
    info = built.doit("info", "bench:lin:ort")
    assert (info.code, "forgotten" in info.out) == (1, True)
    assert "bench:lin:ort" in built.doit().ran


def test_a_check_that_fails_ends_with_1_and_continue_builds_the_rest(
    project: ProjectFolder,
) -> None:
    project.add_model("bad", "SizeDependent")
    project.add_model("good")
    failed = project.doit("--continue", "-n", "2")
    assert failed.code == 1, failed.out + failed.err
    assert "report:good" in failed.passed
    assert "validate:bad" in failed.ran - failed.passed
    assert "report:bad" not in failed.ran
    found = [
        line for line in failed.out.splitlines() if line.startswith("failed       validate:bad")
    ]
    assert len(found) == 2, "at once, and at the end"
    assert all("min" in line for line in found), "the case is named"
    assert "rerun it alone: buildsys debug validate:bad\n" in failed.out
    assert "log: build/bad/validate/result.log" in failed.out
    result = json.loads((project.root / "build/bad/validate/result.json").read_text())
    assert result["status"] == "failed"
    again = project.doit("--continue")
    assert again.code == 1, "a failure stays one"
    assert not {target for target in again.ran if target.endswith("good")}


@pytest.mark.parametrize(
    ("make", "sentence"),
    [("raising", "the weights are on the other disk"), ("crashing", "SIGABRT")],
)
def test_a_stage_that_cannot_work_ends_with_2_one_sentence_and_its_log(
    project: ProjectFolder, make: str, sentence: str
) -> None:
    project.add_model("lin", make)
    failed = project.doit("export:lin")
    assert failed.code == 2, failed.out + failed.err
    assert failed.out.count(sentence) == 2  # at once, and at the end
    assert "build/lin/export/export.log" in failed.out
    assert (project.root / "build/lin/export/export.log").is_file()
    assert not (project.root / "build/lin/export/model.onnx").exists()


def test_all_errors_in_manifests_are_printed_and_nothing_is_built(project: ProjectFolder) -> None:
    project.add_model("one")
    project.add_model("two")
    project.add_model("good")
    project.edit("configs/models/one.yaml", "opset: 17", "opset: 99")
    project.edit("configs/models/two.yaml", "engines:", "engine:")
    wrong = project.doit("build:good")
    assert (wrong.code, wrong.out) == (3, "")
    first, *errors = wrong.err.splitlines()
    assert first.startswith("ERROR: ")
    assert [error.split(":")[0] for error in errors if error] == [
        "configs/models/one.yaml",
        "configs/models/two.yaml",
    ]
    assert not (project.root / "build").exists()


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
