"""Compatibility checks of real engines, intact and damaged."""

from __future__ import annotations

import hashlib
import json
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from document_mutations import damaged, mutated, seeds
from engine_jobs import resolved, save_at, stage_job
from small_graphs import conv_bn

from buildsys import can_run
from buildsys.stages.engine import stage as engine
from buildsys.system.compatibility.check import CompatibilityResult
from buildsys.workers.result_file import write_result

H200 = {
    "name": "NVIDIA H200",
    "compute_capability": "9.0",
    "driver": "580.95",
    "cuda_driver": "13.0",
}
RTX4090 = {
    "name": "NVIDIA GeForce RTX 4090",
    "compute_capability": "8.9",
    "driver": "580.95",
    "cuda_driver": "13.0",
}
ROOT = Path(__file__).parents[3]
ROWS = re.findall(r"^\| (`.*?) \|", (ROOT / "docs/engine_json.md").read_text(), re.MULTILINE)
DOCUMENTED = {name for row in ROWS for name in re.findall(r"`(\w+)`", row)}


def build(folder: Path, backend: str, **fields: Any) -> Path:
    model = save_at(folder / "model.onnx", conv_bn())
    job = stage_job(resolved({"backend": backend, **fields}), "engine", folder / "build", model)
    result = engine.run(job)
    assert result.status == "passed", result.reason
    write_result(
        job,
        result,
        started=datetime.now(timezone.utc),
        measured={"seconds": 1.0, "peak_rss_mib": 1.0},
    )
    return job.outputs["engine"]


@pytest.fixture(scope="module")
def ort_built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("ort"), "onnxruntime")


@pytest.fixture(scope="module")
def rtx_built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("tensorrt_rtx")
    return build(tmp_path_factory.mktemp("rtx"), "tensorrt_rtx")


def copied(engine_file: Path, folder: Path) -> Path:
    shutil.copytree(engine_file.parent, folder / "elsewhere")
    return folder / "elsewhere" / engine_file.name


def edit(engine_file: Path, change: Callable[[dict[str, Any]], object]) -> None:
    record = engine_file.with_name("engine.json")
    figures = json.loads(record.read_text())
    change(figures)
    record.write_text(json.dumps(figures))


def with_gpu(monkeypatch: pytest.MonkeyPatch, gpu: dict[str, str] | None = RTX4090) -> None:
    monkeypatch.setattr(
        "buildsys.system.engine_environment.read_gpus", lambda visible: [gpu] if gpu else []
    )


def kinds(result: CompatibilityResult) -> list[str]:
    return [reason.kind for reason in result.reasons]


def test_a_whole_engine_of_this_machine_can_run(ort_built: Path, tmp_path: Path) -> None:
    result = can_run(copied(ort_built, tmp_path))
    assert result, str(result)
    assert result.built.startswith("m:e, ONNX Runtime ")
    assert "it can run here" in str(result)
    assert can_run(ort_built.parent).reasons == ()  # the folder will do
    renamed = ort_built.rename(ort_built.with_name("resnet.onnx"))
    assert can_run(renamed), "an engine is known by its bytes, not by its name"
    renamed.rename(ort_built)


def test_the_record_holds_everything_and_no_path(ort_built: Path, rtx_built: Path) -> None:
    for built in (ort_built, rtx_built):
        record = json.loads(built.with_name("engine.json").read_text())
        header = {
            "schema",
            "target",
            "stage",
            "model",
            "variant",
            "status",
            "reason",
            "hint",
            "started",
            "seconds",
        }
        undocumented = record.keys() - header - {"peak_rss_mib", "toolchain"} - DOCUMENTED
        assert not undocumented, f"docs/engine_json.md has no row for {undocumented}"
        assert {
            "onnx_sha256",
            "engine_sha256",
            "settings",
            "profiles",
            "inputs",
            "outputs",
            "layers",
        } <= record.keys()
        assert {
            "precision_shares",
            "build_seconds",
            "phases",
            "built_with",
            "portability",
            "files",
        } <= record.keys()
        assert record["files"][built.name]["bytes"] == built.stat().st_size
        assert record["phases"].keys() >= {"prepare", "build", "read_back"}
        for file in built.parent.iterdir():
            assert str(built.parents[4]).encode() not in file.read_bytes(), (
                f"{file.name} knows where it was built"
            )
    assert json.loads(rtx_built.with_name("engine.json").read_text())["built_with"]["tensorrt_rtx"]


@pytest.mark.parametrize("kind", ["ort_built", "rtx_built"])
def test_a_truncated_engine(request: pytest.FixtureRequest, tmp_path: Path, kind: str) -> None:
    file = copied(request.getfixturevalue(kind), tmp_path)
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    result = can_run(file)
    assert result.reasons[0].kind == "truncated"
    assert (
        result.reasons[0].problem
        == f"{file.name} is truncated: it has {len(whole) // 2} of {len(whole)} bytes"
    )
    file.write_bytes(b"")
    assert f"it has 0 of {len(whole)} bytes" in can_run(file).reasons[0].problem


@pytest.mark.parametrize("kind", ["ort_built", "rtx_built"])
def test_a_corrupt_engine(request: pytest.FixtureRequest, tmp_path: Path, kind: str) -> None:
    file = copied(request.getfixturevalue(kind), tmp_path)
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    result = can_run(file)
    assert result.reasons[0].kind == "digest"
    assert (
        f"{file.name} is not the file that was built: its SHA-256 is " in result.reasons[0].problem
    )
    assert "digest" not in kinds(can_run(file, digest=False))
    file.write_bytes(bytes(content) + b"more")
    assert "bytes instead of" in can_run(file, digest=False).reasons[0].problem


def test_an_engine_of_another_version(ort_built: Path, rtx_built: Path, tmp_path: Path) -> None:
    newer = copied(ort_built, tmp_path / "ort")
    edit(newer, lambda figures: figures["built_with"].update(onnxruntime="99.1.0"))
    (reason,) = can_run(newer).reasons
    assert reason.kind == "version"
    assert reason.problem.startswith("it was built with ONNX Runtime 99.1.0, but ")
    assert reason.remedy == "pip install 'onnxruntime==99.1.0' or newer"
    edit(newer, lambda figures: figures["built_with"].update(onnxruntime="1.2.0"))
    assert can_run(newer)
    other = copied(rtx_built, tmp_path / "rtx")
    edit(other, lambda figures: figures["built_with"].update(tensorrt_rtx="1.4.0.76"))
    reason = next(reason for reason in can_run(other).reasons if reason.kind == "version")
    assert "such an engine only runs with its own version" in reason.problem
    assert reason.remedy.startswith(
        "pip install 'tensorrt-rtx==1.4.0.76', or build it with the installed version"
    )


def test_an_engine_of_another_gpu(
    rtx_built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_gpu(monkeypatch)
    assert can_run(rtx_built), str(can_run(rtx_built))
    with_gpu(monkeypatch, H200)
    (reason,) = can_run(rtx_built).reasons
    assert reason.kind == "compute capability"
    assert reason.problem == (
        "it was built for compute capability 8.6, 8.9 or 12.0, but NVIDIA H200 here has 9.0"
    )
    assert reason.remedy == "add '9.0' to its compute_capabilities and build it again"
    current = copied(rtx_built, tmp_path)
    edit(current, lambda figures: figures["portability"].update(compute_capabilities=["current"]))
    edit(current, lambda figures: figures["built_with"].update(compute_capability="8.6"))
    with_gpu(monkeypatch)
    assert (
        can_run(current)
        .reasons[0]
        .problem.startswith("it was built for compute capability 8.6, but")
    )


def test_several_kinds_of_gpu(rtx_built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "buildsys.system.engine_environment.read_gpus", lambda visible: [RTX4090, H200]
    )
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)
    assert (
        "CUDA may select another one first: set CUDA_DEVICE_ORDER=PCI_BUS_ID"
        in can_run(rtx_built).notes[0]
    )
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    assert can_run(rtx_built).notes == ()


def test_without_a_gpu(rtx_built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "buildsys.system.engine_environment.read_gpus",
        lambda visible: [] if visible == "" else [RTX4090],
    )
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    (reason,) = can_run(rtx_built).reasons
    assert (
        reason.problem
        == "it needs an NVIDIA GPU, but CUDA_VISIBLE_DEVICES= hides the GPUs of this machine"
    )
    assert reason.remedy == "run it on a GPU of compute capability 8.6, 8.9 or 12.0"


def test_an_old_driver(rtx_built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_gpu(monkeypatch, {**RTX4090, "driver": "535.183", "cuda_driver": "12.2"})
    (reason,) = can_run(rtx_built).reasons
    assert reason.kind == "driver"
    assert reason.problem == (
        "the NVIDIA driver 535.183 is too old: it supports CUDA up to 12.2,"
        " but TensorRT-RTX here needs CUDA 13"
    )
    assert reason.remedy == "install a driver of version 580.65 or newer"


def tensorrt_engine(folder: Path, **changes: Any) -> Path:
    """Return an invalid engine file with the record of a TensorRT engine."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "engine.engine"
    file.write_bytes(b"ftrt" + bytes(100))
    built_with = {
        "tensorrt": "10.16.1.11", "gpu": "NVIDIA A100-SXM4-80GB", "compute_capability": "8.0",
        "driver": "580.1", "cuda": "13.0", "cuda_runtime": "12", "platform": "Linux x86_64",
    }  # fmt: skip
    record = {
        "backend": "tensorrt", "status": "passed", "portability": changes.pop("portability", {}),
        "built_with": {**built_with, **changes}, "files": {"engine.engine": {"bytes": 104}},
    }  # fmt: skip
    file.with_name("engine.json").write_text(json.dumps(record))
    return file


@pytest.mark.parametrize(
    ("built", "portability", "here", "runs"),
    [
        ("10.16.1.11", {}, "10.16.1.11", True),
        ("8.6.0", {}, "8.6.0.12", True),
        ("10.16.1.11", {}, "10.16.2.3", False),
        ("10.16.1.11", {"version_compatible": True}, "10.17.0.1", True),
        ("10.16.1.11", {"version_compatible": True}, "10.9.0.34", False),
        ("10.16.1.11", {"version_compatible": True}, "11.4.0.1", True),
        ("8.6.1.6", {"version_compatible": True}, "10.16.1.11", True),
        ("8.6.1.6", {"version_compatible": True}, "11.4.0.1", False),
        ("11.4.0.1", {"version_compatible": True}, "10.16.1.11", False),
    ],
)
def test_versions_of_tensorrt(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    built: str,
    portability: dict[str, Any],
    here: str,
    runs: bool,
) -> None:
    monkeypatch.setattr("buildsys.system.compatibility.rules.library_version", lambda module: here)
    with_gpu(monkeypatch, {**H200, "name": "NVIDIA A100-SXM4-80GB", "compute_capability": "8.0"})
    result = can_run(tensorrt_engine(tmp_path, tensorrt=built, portability=portability))
    assert kinds(result) == ([] if runs else ["version"]), str(result)
    assert ("engine_host_code_allowed" in str(result)) == bool(portability)


@pytest.mark.parametrize(
    ("hardware", "capability", "runs"),
    [(None, "8.0", True), (None, "8.6", False), ("same_compute_capability", "8.0", True),
     ("same_compute_capability", "9.0", False), ("ampere_plus", "9.0", True),
     ("ampere_plus", "7.5", False)],
)  # fmt: skip
def test_gpus_of_tensorrt(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    hardware: str | None,
    capability: str,
    runs: bool,
) -> None:
    monkeypatch.setattr(
        "buildsys.system.compatibility.rules.library_version", lambda module: "10.16.1.11"
    )
    with_gpu(monkeypatch, {**H200, "name": "Some GPU", "compute_capability": capability})
    asked = {"hardware_compatibility": hardware} if hardware else {}
    result = can_run(tensorrt_engine(tmp_path, portability=asked))
    assert kinds(result) == ([] if runs else ["compute capability"]), str(result)
    if not runs and not hardware:
        assert (
            "it was built on NVIDIA A100-SXM4-80GB for compute capability 8.0,"
            " but Some GPU here has 8.6" in str(result)
        )
        assert "with hardware_compatibility: ampere_plus" in str(result)
    if runs and capability == "8.0":
        assert result.notes == (
            "built on NVIDIA A100-SXM4-80GB, and this is Some GPU:"
            " an engine built here may be faster",
        )


def test_all_problems_are_reported_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_gpu(monkeypatch, {**H200, "driver": "470.1", "cuda_driver": "11.4"})
    file = tensorrt_engine(tmp_path, platform="Windows AMD64")
    edit(file, lambda figures: figures["files"].update({"swish.so": {"bytes": 5, "sha256": "ab"}}))
    file.write_bytes(file.read_bytes()[:50])
    result = can_run(file)
    expected = ["truncated", "file", "platform", "library", "driver", "compute capability"]
    if find_spec("tensorrt"):
        expected.remove("library")
    assert kinds(result) == expected
    text = str(result)
    assert (
        "swish.so is missing, and the engine needs it in its folder; copy the engine's whole folder"
        in text
    )
    assert "it was built on Windows AMD64, but this is Linux" in text
    assert len(text.splitlines()) == 2 + len(expected)


def test_a_missing_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if find_spec("tensorrt"):
        pytest.skip("TensorRT is installed here")
    with_gpu(monkeypatch, {**H200, "compute_capability": "8.0"})
    (reason,) = can_run(tensorrt_engine(tmp_path)).reasons
    assert (reason.kind, reason.problem) == ("library", "TensorRT is not installed here")
    assert reason.remedy == "pip install 'tensorrt==10.16.1.11'"


def test_an_unloadable_library(ort_built: Path, tmp_path: Path) -> None:
    (tmp_path / "onnxruntime.py").write_text(
        "raise ImportError('libcudart.so.12: cannot open shared object file')"
    )
    code = f"from buildsys import can_run\nv = can_run({str(ort_built)!r})\nprint(v)\nassert not v"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env={"PYTHONPATH": f"{tmp_path}:{ROOT}"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert (
        "ONNX Runtime cannot be used here: it cannot be loaded: libcudart.so.12: cannot open"
        in done.stdout
    )


def test_a_processor_without_the_instructions(
    ort_built: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = copied(ort_built, tmp_path)
    edit(
        file, lambda figures: figures["built_with"].update(instructions=["avx", "avx2", "avx512f"])
    )
    monkeypatch.setattr(
        "buildsys.system.compatibility.rules.engine_instructions", lambda: ["avx", "avx2"]
    )
    (reason,) = can_run(file).reasons
    assert (
        reason.problem
        == "its weights are laid out for avx512f, which this processor does not support"
    )
    edit(file, lambda figures: figures["settings"].update(graph_optimization_level="extended"))
    assert can_run(file)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("ort_built", "an engine of ONNX Runtime ("),
        ("rtx_built", "an engine of TensorRT-RTX 1."),
    ],
)
def test_an_engine_without_its_record(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str, expected: str
) -> None:
    built = request.getfixturevalue(kind)
    alone = tmp_path / built.name
    shutil.copy(built, alone)
    result = can_run(alone)
    assert result.reasons[0].kind == "record"
    assert result.reasons[0].problem.startswith(
        "engine.json is missing; the file only shows that it is "
    )
    assert expected in result.reasons[0].problem
    assert result.reasons[0].remedy == "copy the engine's whole folder"
    whole = alone.read_bytes()
    for cut in (30, len(whole) // 2, len(whole) - 1):
        alone.write_bytes(whole[:cut])
        assert "truncated" in kinds(can_run(alone)), f"at {cut} of {len(whole)}"
    alone.write_bytes(b"MZ this is no engine")
    assert "does not begin like an engine" in str(can_run(alone))


def test_the_header_of_an_rtx_engine_has_its_version(rtx_built: Path, tmp_path: Path) -> None:
    import tensorrt_rtx

    alone = tmp_path / "engine.engine"
    shutil.copy(rtx_built, alone)
    assert can_run(alone).built == f"TensorRT-RTX {tensorrt_rtx.__version__}"
    older = bytearray(alone.read_bytes())
    older[24:28] = (1, 2, 0, 54)
    alone.write_bytes(older)
    assert "it was built with TensorRT-RTX 1.2.0.54, but" in str(can_run(alone))


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("{", "engine.json is damaged: "),
        ("[]", "engine.json is not the record of an engine"),
        ('{"backend": "tensorrt_rtx", "status": "unavailable", "reason": "no GPU", "hint": "buy"}',
         "says that no engine was built: no GPU"),
    ],
)  # fmt: skip
def test_an_invalid_record(ort_built: Path, tmp_path: Path, content: str, expected: str) -> None:
    file = copied(ort_built, tmp_path)
    file.with_name("engine.json").write_text(content)
    assert expected in can_run(file).reasons[0].problem


def test_a_record_names_no_module_to_import(
    ort_built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "evil.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    file = copied(ort_built, tmp_path)
    edit(file, lambda figures: figures.update(backend="evil"))
    assert "engine.json names an unknown backend: 'evil'" in str(can_run(file))
    edit(file, lambda figures: figures.update(backend="onnxruntime"))
    edit(file, lambda figures: figures["built_with"].update(instructions=3))
    assert can_run(file)


def test_a_record_of_another_engine(ort_built: Path, rtx_built: Path, tmp_path: Path) -> None:
    file = copied(rtx_built, tmp_path)
    shutil.copy(ort_built.with_name("engine.json"), file.with_name("engine.json"))
    assert "is an engine of tensorrt_rtx, but engine.json describes one of onnxruntime" in str(
        can_run(file)
    )


def test_missing_and_unreadable_files(tmp_path: Path, ort_built: Path) -> None:
    assert "there is no engine file" in str(can_run(tmp_path / "nothing.engine"))
    file = copied(ort_built, tmp_path)
    file.with_name("engine.json").unlink()
    file.with_name("engine.json").mkdir()
    assert "engine.json cannot be read: Is a directory" in str(can_run(file))


def test_only_the_standard_library_is_imported(ort_built: Path) -> None:
    code = "import sys\nimport buildsys.system.compatibility.check\nfrom buildsys import can_run\n"
    code += "print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert not loaded & {
        "numpy",
        "onnx",
        "onnxruntime",
        "tensorrt",
        "tensorrt_rtx",
        "torch",
        "pydantic",
        "yaml",
        "doit",
    }
    assert (
        "buildsys.system.compatibility"
        not in subprocess.run(
            [sys.executable, "-c", "import sys, buildsys\nprint(*sys.modules)"],
            capture_output=True,
            text=True,
            cwd=ROOT,
        ).stdout.split()
    )


def test_the_module_runs_as_a_program(ort_built: Path, rtx_built: Path) -> None:
    command = [sys.executable, "-m", "buildsys.doctor"]
    done = subprocess.run([*command, str(ort_built)], capture_output=True, text=True, cwd=ROOT)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.match(r".*engine\.onnx: m:e, ONNX Runtime .*\nit can run here\n", done.stdout)
    done = subprocess.run(
        [*command, str(rtx_built), "--json"], capture_output=True, text=True, cwd=ROOT
    )
    found = json.loads(done.stdout)
    assert found["schema"] == "buildsys/doctor/1"
    assert found["runs"] == (done.returncode == 0)
    assert subprocess.run(command, capture_output=True, cwd=ROOT).returncode == 3


def test_missing_and_different_plugins(
    rtx_built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_gpu(monkeypatch)
    file = copied(rtx_built, tmp_path)
    source = b"class Swish: ..."
    plugin = {
        "operator": "demo::swish", "name": "DoctorsSwish", "version": "1", "namespace": "",
        "file": "plugins/ops/swish_plugin.py", "file_sha256": hashlib.sha256(source).hexdigest(),
    }  # fmt: skip
    edit(file, lambda figures: figures.update(plugins=[plugin]))
    (reason,) = can_run(file).reasons
    assert reason.kind == "plugin"
    assert reason.problem == (
        "the plugin DoctorsSwish 1 for demo::swish is not registered in this process, "
        "and its file plugins/ops/swish_plugin.py is not in the engine's folder"
    )
    in_project = tmp_path / "project/plugins/ops/swish_plugin.py"
    in_project.parent.mkdir(parents=True)
    in_project.write_bytes(source)
    result = can_run(file, project=tmp_path / "project")
    assert result, str(result)
    assert result.notes == (
        "register before deserializing: DoctorsSwish (plugins/ops/swish_plugin.py)",
    )
    file.with_name("swish_plugin.py").write_bytes(source + b"changed")
    assert "swish_plugin.py has the SHA-256 " in can_run(file).reasons[0].problem
    file.with_name("swish_plugin.py").write_bytes(source)
    assert can_run(file)


def test_a_registered_plugin_is_found(
    rtx_built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import tensorrt_rtx

    with_gpu(monkeypatch)
    file = copied(rtx_built, tmp_path)
    known = next(iter(tensorrt_rtx.get_plugin_registry().all_creators), None)
    if known is None:
        pytest.skip("this TensorRT-RTX registers no plugins itself")
    names = {
        "name": known.name,
        "version": known.plugin_version,
        "namespace": known.plugin_namespace,
    }
    edit(
        file,
        lambda figures: figures.update(plugins=[{"operator": "x::y", "file": "y.py", **names}]),
    )
    result = can_run(file)
    assert (bool(result), result.notes) == (True, ())


def fuzz_engine_records(engine_file: Path, draws: Iterator[random.Random]) -> None:
    """Check engines with changed records, half of them with a changed engine as well."""
    record, content = engine_file.with_name("engine.json"), engine_file.read_bytes()
    whole = json.loads(record.read_text())
    for draw in draws:
        text = json.dumps(mutated(whole, draw)).encode()
        record.write_bytes(damaged(text, draw) if draw.random() < 0.2 else text)
        spoiled = draw.random() < 0.5
        engine_file.write_bytes(damaged(content, draw) if spoiled else content)
        result = can_run(engine_file)
        assert str(result)
        json.dumps(result.as_json())
        kept = b'"files": ' + json.dumps(whole["files"]).encode() in record.read_bytes()
        if kept and engine_file.read_bytes() != content:
            assert not result, "a changed engine counts as one that can run"


def test_changed_engine_records(ort_built: Path, tmp_path: Path) -> None:
    fuzz_engine_records(copied(ort_built, tmp_path), seeds(0, 2.0))


@pytest.mark.fuzz
def test_changed_engine_records_for_longer(ort_built: Path, tmp_path: Path) -> None:
    fuzz_engine_records(copied(ort_built, tmp_path), seeds(1000, 20.0))
