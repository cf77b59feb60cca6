"""Compatibility checks of real engines: their files, this machine and its libraries."""

import json
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from built_engines import H200, copied, edit, kinds, tensorrt_engine, with_gpu

from buildsys import can_run

ROOT = Path(__file__).parents[3]


def test_a_whole_engine_of_this_machine_can_run(ort_built: Path, tmp_path: Path) -> None:
    result = can_run(copied(ort_built, tmp_path))
    assert result, str(result)
    assert result.built.startswith("m:e, ONNX Runtime ")
    assert "it can run here" in str(result)
    assert can_run(ort_built.parent).reasons == ()  # the folder will do
    renamed = ort_built.rename(ort_built.with_name("resnet.onnx"))
    assert can_run(renamed), "an engine is known by its bytes, not by its name"
    renamed.rename(ort_built)


def test_a_truncated_engine(ort_built: Path, tmp_path: Path) -> None:
    file = copied(ort_built, tmp_path)
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


def test_a_corrupt_engine(ort_built: Path, tmp_path: Path) -> None:
    file = copied(ort_built, tmp_path)
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
    assert (
        "is not the file that was built: it has" in can_run(file, digest=False).reasons[0].problem
    )


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
    monkeypatch.setattr("buildsys.system.compatibility.library_version", lambda module: here)
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
        "buildsys.system.compatibility.library_version", lambda module: "10.16.1.11"
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
    module = "buildsys.system.compatibility"
    monkeypatch.setattr(f"{module}.engine_instructions", lambda: ["avx", "avx2"])
    (reason,) = can_run(file).reasons
    assert (
        reason.problem
        == "its weights are laid out for avx512f, which this processor does not support"
    )
    edit(file, lambda figures: figures["settings"].update(graph_optimization_level="extended"))
    assert can_run(file)


def test_int8_products_that_overflow_on_this_processor(
    ort_built: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def with_weights(figures: dict[str, Any], **shares: float) -> None:
        figures["built_with"].update(instructions=["avx", "avx2", "avx_vnni"])
        figures["settings"].update(graph_optimization_level="extended")
        figures["precision_shares"]["weights"] = shares

    def instructions(*names: str) -> None:
        module = "buildsys.system.compatibility"
        monkeypatch.setattr(f"{module}.engine_instructions", lambda: list(names))

    file = copied(ort_built, tmp_path)
    instructions("avx", "avx2")
    edit(file, lambda figures: with_weights(figures, float32=1.0))
    assert can_run(file)
    edit(file, lambda figures: with_weights(figures, int8=0.9, float32=0.1))
    (reason,) = can_run(file).reasons
    assert (reason.kind, reason.remedy) == ("processor", "build it here")
    instructions("avx", "avx2", "avx512_vnni")
    assert can_run(file)
    instructions("asimd")
    assert can_run(file)


@pytest.mark.parametrize(
    ("provider", "library", "here", "remedy"),
    [
        ("qnn", "onnxruntime-qnn", "2.6.0", "pip install 'onnxruntime-qnn==2.7.0' or newer"),
        ("qnn", "onnxruntime-qnn", "2.7.0", ""),
        ("qnn", "onnxruntime-qnn", "2.10.0", ""),
        ("tensorrt", "tensorrt", "2.7.0", ""),
        ("tensorrt", "tensorrt", "2.8.0", "pip install 'tensorrt==2.7.0', or build it here"),
    ],
)
def test_compiled_nodes_of_another_version_of_their_provider(
    ort_built: Path,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    provider: str,
    library: str,
    here: str,
    remedy: str,
) -> None:
    def compiled(figures: dict[str, Any], *, ep_context: bool) -> None:
        figures["settings"].update(ep_context=ep_context, providers=[provider])
        figures["provider_libraries"] = {library: "2.7.0"}

    monkeypatch.setattr("importlib.metadata.version", {library: here}.__getitem__)
    file = copied(ort_built, tmp_path)
    edit(file, lambda figures: compiled(figures, ep_context=True))
    problem = f"its nodes were compiled by {library} 2.7.0, but {here} is installed"
    found = [
        (each.problem, each.remedy) for each in can_run(file).reasons if each.kind == "version"
    ]
    assert found == ([(problem, remedy)] if remedy else [])
    edit(file, lambda figures: compiled(figures, ep_context=False))
    assert "version" not in kinds(can_run(file))


def test_only_the_standard_library_is_imported(ort_built: Path) -> None:
    code = "import sys\nimport buildsys.deploy.can_run\nfrom buildsys import can_run\n"
    code += "print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert not loaded & {"numpy", "onnx", "onnxruntime", "torch", "pydantic", "yaml", "doit"}


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
