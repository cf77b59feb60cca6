"""Checks of doit doctor: facts in, sentences and commands out."""

import json
import os
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import pytest
from python_environments import Environment as PythonFolder

from buildsys.cli.commands import doctor
from buildsys.cli.commands.doctor import (
    BROKEN,
    MISSING,
    OK,
    Environment,
    check_backends,
    check_environment,
    check_folders,
    check_gpus,
    check_machine,
    check_toolchain,
)
from buildsys.cli.engine_checks import project_reasons
from buildsys.cli.session import BuildSession
from buildsys.project.load import Project
from buildsys.system.backend_registry import Gpus, backend_names, describe_backend
from buildsys.system.devices import Gpu, GpuError
from buildsys.system.toolchains import Library, Toolchain, check_libraries

NO_GPU = Gpus(problem="this machine has no NVIDIA driver")
H200 = Gpus(("9.0",))
ADA = Gpus(("8.9",))
HERE = {"PATH": os.environ["PATH"]}


def module_of(backend: str) -> str:
    return describe_backend(backend).module


def backend_environment(**modules: Library) -> Environment:
    known = {name: Library(name, missing=True) for name in map(module_of, backend_names())}
    return Environment(None, libraries={**known, **modules})


@pytest.mark.parametrize(
    ("module", "gpus", "can", "cannot"),
    [
        (Library("onnxruntime", "1.31", facts={"providers": ["CPUExecutionProvider"]}), H200,
         "builds and runs on the CPU", ""),
        (Library("onnxruntime", "1.31", facts={"providers": ["CUDAExecutionProvider"]}), H200,
         "builds and runs on the CPU and on the GPU", ""),
        (Library("tensorrt", "10.16", facts={"builder": True}), H200,
         "builds and runs here, compute capability 9.0", ""),
        (Library("tensorrt", "10.16", facts={"builder": False, "builder_problem": "CUDA error 35"}),
         H200, "",
         "tensorrt 10.16 is installed, but unusable: CUDA error 35"),
        (Library("tensorrt", "10.16", facts={"builder": False}), NO_GPU, "",
         "tensorrt 10.16 builds on the GPU that will run the engine, and this machine has no NVIDIA"
         " driver"),
        (Library("tensorrt_rtx", "1.7", facts={"builder": True}), ADA,
         "builds and runs here, compute capability 8.9", ""),
        (Library("tensorrt_rtx", "1.7", facts={"builder": True}), H200,
         "builds here for compute capabilities 7.5, 8.0, 8.6, 8.9, 12.0, 12.1; cannot run here: the"
         " GPU here has 9.0; backend: tensorrt is for it", ""),
        (Library("tensorrt_rtx", "1.7", facts={"builder": True}), NO_GPU,
         "builds here for compute capabilities 7.5, 8.0, 8.6, 8.9, 12.0, 12.1; cannot run here:"
         " this machine has no NVIDIA driver", ""),
        (Library("tensorrt_rtx", problem="ImportError: libnvrtc.so.13"), ADA, "",
         "tensorrt_rtx cannot be imported: ImportError: libnvrtc.so.13"),
    ],
)  # fmt: skip
def test_the_abilities_of_a_backend(module: Library, gpus: Gpus, can: str, cannot: str) -> None:
    ability = backend_environment(**{module.name: module}).ability(module.name, gpus)
    assert (ability.text, ability.problem) == (can, cannot)
    assert bool(ability.remedy) == bool(cannot)


def test_a_missing_backend_names_its_engines_and_install_command() -> None:
    findings = {
        finding.name: finding
        for finding in check_backends(backend_environment(), ADA, {"tensorrt": ["a:x", "b:y"]})
    }
    assert {finding.state for finding in findings.values()} == {MISSING}
    assert (
        findings["tensorrt"].text
        == "tensorrt is not installed; needed by 2 engines of this project"
    )
    assert findings["tensorrt"].remedy == "pip install 'buildsys[tensorrt]'"
    assert findings["tensorrt_rtx"].text.endswith("needed by no engine of this project")


@pytest.mark.parametrize("library", [{}, {"tensorrt": Library("tensorrt", "10.16")}])
def test_without_a_gpu_tensorrt_is_for_another_machine(library: dict[str, Library]) -> None:
    users = {"tensorrt": ["a:x"]}
    findings = check_backends(backend_environment(**library), NO_GPU, users)
    finding = next(one for one in findings if one.name == "tensorrt")
    assert finding.state == MISSING
    assert "and this machine has no NVIDIA driver" in finding.text
    assert "on a machine with an NVIDIA GPU" in finding.remedy
    if not library:
        assert finding.remedy.endswith(": pip install 'buildsys[tensorrt]'")


def test_a_toolchain_has_the_libraries_of_its_interpreter(tmp_path: Path) -> None:
    environment = PythonFolder(tmp_path / "env", "numpy", "onnxruntime")
    environment.write("tensorrt/__init__.py", "import os\nos.kill(os.getpid(), 11)\n")
    asked = check_environment(Toolchain("old", environment.python, {}))
    finding = check_toolchain(asked, NO_GPU, {"onnxruntime": ["a:x"]})
    assert finding.state == OK
    assert f"{environment.python}: numpy " in finding.text
    assert finding.text.endswith("onnxruntime builds and runs on the CPU")
    finding = check_toolchain(asked, NO_GPU, {"onnxruntime": ["a:x"], "tensorrt": ["a:y"]})
    assert finding.state == MISSING
    assert "its import crashed with a segmentation fault (SIGSEGV)" in finding.text
    assert (
        finding.remedy
        == f"{environment.python} -m pip install --force-reinstall tensorrt cuda-bindings onnx"
    )


def test_a_toolchain_names_the_command_that_installs_a_missing_library(tmp_path: Path) -> None:
    bare = PythonFolder(tmp_path / "bare")
    finding = check_toolchain(check_environment(Toolchain("bare", bare.python, {})), NO_GPU, {})
    assert (finding.state, finding.text) == (
        MISSING,
        "numpy of the toolchain bare is not installed",
    )
    assert finding.remedy == f"{bare.python} -m pip install numpy"
    gone = check_toolchain(check_environment(Toolchain("gone", tmp_path / "none", {})), NO_GPU, {})
    assert gone.text == f"the toolchain gone cannot be used: there is no {tmp_path / 'none'}"
    assert "BUILDSYS_TOOLCHAIN_GONE" in gone.remedy


def test_a_library_that_hangs_or_is_broken_harms_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = PythonFolder(tmp_path / "env", "numpy")
    environment.write("hanging.py", "import time\nprint('hello', flush=True)\ntime.sleep(100)\n")
    environment.write("lacking.py", "import none_such\n")
    environment.write("loud.py", "__version__ = '1.2'\nprint('{}' * 9999)\n")
    with monkeypatch.context() as patch:
        patch.setenv("BUILDSYS_INTERPRETER_LIMIT", "0.4s")
        hanging = check_libraries(environment.python, ["hanging"], HERE)["hanging"]
    assert "did not respond within 0.4 s" in hanging.problem
    assert hanging.timed_out
    found = check_libraries(environment.python, ["lacking", "loud", "absent", "numpy"], HERE)
    assert found["lacking"].problem == "ModuleNotFoundError: No module named 'none_such'"
    assert found["absent"].missing
    assert found["loud"].version == "1.2"
    assert found["numpy"].is_usable


def test_gpus_are_listed_with_memory_and_mig(monkeypatch: pytest.MonkeyPatch) -> None:
    h200 = {
        "name": "NVIDIA H200",
        "compute_capability": "9.0",
        "driver": "580.95",
        "cuda_driver": "13.0",
        "memory_bytes": 150_000_000_000,
        "free_bytes": 149_000_000_000,
        "mig": "off",
    }
    monkeypatch.setattr(doctor, "read_gpus", lambda visible: [h200])
    gpus, (finding,) = check_gpus()
    assert gpus.capabilities == ("9.0",)
    assert finding.name == "NVIDIA H200"
    assert finding.text.startswith("compute capability 9.0, ")
    assert finding.text.endswith("driver 580.95, CUDA 13.0, MIG off")


def test_why_there_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(visible: str | None) -> list[Gpu]:
        raise GpuError("NVML answers with error 9")

    monkeypatch.setattr(doctor, "read_gpus", none)
    monkeypatch.setattr(doctor, "DRIVER_FILES", ("/",))
    assert (
        check_gpus()[0].problem == "the NVIDIA driver does not answer (NVML answers with error 9)"
    )
    monkeypatch.setattr(doctor, "read_gpus", lambda visible: [])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    gpus, (finding,) = check_gpus()
    assert gpus.problem == "CUDA_VISIBLE_DEVICES= hides all GPUs"
    assert finding.remedy == "unset CUDA_VISIBLE_DEVICES"


def _project(root: Path) -> Project:
    return Project(root, root / "configs", root / "build", root / ".b", {})


def test_folders_are_checked_by_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BUILDSYS_STORE", raising=False)
    monkeypatch.setenv("BUILDSYS_REMOTE", "sftp://host/cache")
    (tmp_path / "build").write_text("a file")
    findings = {f.name: f for f in check_folders(_project(tmp_path))}
    assert findings["build"].state == BROKEN
    assert "is not writable" in findings["build"].text
    assert findings["state"].state == OK
    assert findings["store"].facts["path"] == str(tmp_path / ".b/store")
    assert findings["shared cache"].text == "sftp://host/cache, read-only"
    assert not (tmp_path / ".b").exists()


def test_a_library_is_installed_as_we_require_it() -> None:
    found = {name: Library(name, "1.0") for name in doctor.LIBRARIES}
    found["torch"] = Library("torch", missing=True)
    found["torchvision"] = Library("torchvision", problem="operator torchvision::nms does not")
    broken = {check.name: check for check in doctor.check_libraries_here(found)}
    assert broken["torch"].remedy.startswith(f"{sys.executable} -m pip install torch torchvision")
    assert broken["torchvision"].remedy.endswith(" --force-reinstall torch torchvision")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with an engine; of our own libraries it is not asked, which takes seconds."""
    (tmp_path / "configs/models").mkdir(parents=True)
    (tmp_path / "configs/models/net.yaml").write_text(
        "model: net\nsource: {torchvision: resnet18}\ninputs: {x: {shape: [1, 3, 32, 32]}}\n"
        "engines: [{backend: tensorrt, name: trt}]\n"
    )
    monkeypatch.setattr(
        doctor,
        "check_libraries",
        lambda python, names, environment: {name: Library(name, "1.0") for name in names},
    )
    return tmp_path


def test_missing_parts_that_nothing_requires_are_not_broken(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "configs/project.yaml").write_text(
        "toolchains: {gone: {python: /nowhere/bin/python}}\n"
    )
    ours = doctor.check_libraries
    monkeypatch.setattr(
        doctor,
        "check_libraries",
        lambda *words: {
            **ours(*words),
            **{n: Library(n, missing=True) for n in ("openvino", "ncnn")},
        },
    )
    assert check_machine(project, as_json=False) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2].startswith("nothing that this project needs is broken; ")
    optional = "optional  backends ncnn, openvino  not installed, and needed by no engine of this"
    assert [line for line in lines if "openvino" in line] == [f"{optional} project"]
    assert lines[-1] == "next: buildsys build"
    gone = next(
        number for number, line in enumerate(lines) if line.startswith("missing   toolchain gone")
    )
    assert (
        lines[gone + 1]
        .strip()
        .startswith("→ set toolchains.gone.python in project.yaml, or BUILDSYS_TOOL")
    )
    assert any(line.startswith("ok        library torch  1.0") for line in lines)
    assert not (project / "build").exists()


def test_the_json_document_has_the_environment_of_results(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    text = f"toolchains: {{own: {{python: {sys.executable}}}}}\n"
    (project / "configs/project.yaml").write_text(text)
    assert check_machine(project, as_json=True) == 0
    findings = json.loads(capsys.readouterr().out)["findings"]
    facts = {(one["about"], one["name"]): one.get("facts") for one in findings}
    assert facts["packages", "packages"]["torch"] == version("torch")
    assert facts["packages", "own"]["numpy"] == version("numpy")
    assert facts["variables", "variables"]["OMP_NUM_THREADS"] == "3"
    assert {"cpu.model", "cpu.cores"} <= facts["cpu", "cpu"].keys()


@pytest.mark.parametrize(
    ("backend", "word"), [("tensorrt", "missing"), ("onnxruntime", "optional")]
)
def test_a_gpu_is_only_missing_if_an_engine_needs_one(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    backend: str, word: str,
) -> None:  # fmt: skip
    manifest = project / "configs/models/net.yaml"
    manifest.write_text(manifest.read_text().replace("tensorrt", backend))
    none = doctor.Finding("gpu", "none", doctor.MISSING, "this machine has no NVIDIA driver")
    monkeypatch.setattr(doctor, "check_gpus", lambda: (NO_GPU, [none]))
    assert check_machine(project, as_json=False) == 0
    (line,) = (line for line in capsys.readouterr().out.splitlines() if " gpu" in line)
    assert line.startswith(word)


@pytest.mark.parametrize("silent", ["torch", "tensorrt"])
def test_a_library_that_does_not_answer_is_unknown(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], silent: str
) -> None:
    def check(python: Path, names: Sequence[str], environment: object) -> dict[str, Library]:
        found = {name: Library(name, "1.0") for name in names}
        found[silent] = Library(silent, problem="did not answer within 30 s", timed_out=True)
        return found

    monkeypatch.setattr(doctor, "check_libraries", check)
    monkeypatch.setattr(doctor, "check_gpus", lambda: (NO_GPU, []))
    if silent == "tensorrt":
        monkeypatch.setenv("BUILDSYS_STRICT", "1")  # its engine is required
    assert check_machine(project, as_json=False) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert f"{silent}: did not answer within 30 s" in out
    assert "broken;" in out
    assert "unknown" in out.rpartition(";")[2]
    assert "force-reinstall" not in out


def test_with_strict_every_engine_is_required(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BUILDSYS_STRICT", "1")
    monkeypatch.setattr(doctor, "check_gpus", lambda: (NO_GPU, []))
    assert check_machine(project, as_json=False) == 1
    text = capsys.readouterr().out
    text = " ".join(text.split())
    assert (
        "broken engine net:trt required, but cannot be built here: tensorrt 1.0 builds on" in text
    )
    assert "1 broken" in text
    remedy = text.partition("cannot be built here: ")[2].partition("→ ")[2]
    assert remedy.startswith(text.rpartition("next: ")[2])


def test_wrong_manifests_do_not_prevent_an_answer(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "configs/models/net.yaml").write_text("model: [")
    assert check_machine(project, as_json=False) == 3
    text = capsys.readouterr().out
    assert "broken   project manifests  1 error in the manifests, first configs/models/net" in text
    assert "library torch" in text
    assert text.splitlines()[-1] == "next: correct configs/models/net.yaml:2"


DEFINED = """\
model: m
source: {tensorrt: "net.py:define", reference: {numpy: "net.py:compute"}}
inputs: {x: {shape: [1, 4], dtype: float32}}
outputs: {y: {shape: [1, 4], dtype: float32}}
engines: [{name: trt, backend: tensorrt}]
"""


def test_an_engine_without_a_graph_needs_no_validate(tmp_path: Path) -> None:
    (tmp_path / "configs/models").mkdir(parents=True)
    (tmp_path / "configs/models/m.yaml").write_text(DEFINED)
    (tmp_path / "net.py").write_text("def define(): ...\ndef compute(x): ...\n")
    session = BuildSession.read_only(tmp_path)
    reasons = list(project_reasons(session, session.actions["engine:m:trt"]))
    assert [reason.remedy for reason in reasons] == [
        "buildsys build engine:m:trt",
        "buildsys build verify:m:trt",
    ]
