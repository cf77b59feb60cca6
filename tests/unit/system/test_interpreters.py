"""Places and checks of toolchain interpreters, and versions in them."""

import platform
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from python_environments import RELEASE, Environment, old_python, program

from buildsys.errors import StageError, Unavailable
from buildsys.system import toolchains as module
from buildsys.system import versions
from buildsys.system.toolchains import (
    Toolchain,
    locate_toolchain,
    override_variable,
    require_interpreter,
)
from buildsys.system.versions import tool_versions


@pytest.fixture(autouse=True)
def _nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_interpreters", {})
    versions.installed_versions.cache_clear()
    versions.distribution_folders.cache_clear()
    versions.distribution_version.cache_clear()


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The programs started by the test."""
    started: list[object] = []
    popen = subprocess.Popen

    def noted(command: object, *args: object, **options: object) -> object:
        started.append(command)
        return popen(command, *args, **options)  # type: ignore[call-overload]

    monkeypatch.setattr(subprocess, "Popen", noted)
    return started


def locked(python: Path) -> Path:
    program(python, "").chmod(0o644)
    return python


def named(python: Path, **env: str) -> Toolchain:
    return Toolchain("trt86", python, env)


def test_an_interpreter_describes_itself(tmp_path: Path) -> None:
    environment = Environment(tmp_path / "env", "numpy")
    found = require_interpreter(named(environment.python))
    assert found.release == f"CPython {'.'.join(platform.python_version_tuple()[:2])}"
    assert found.version == platform.python_version()
    assert str(environment.libraries) in found.path
    assert found.finds("numpy")
    assert not found.finds("onnx")
    assert not any(
        entry.endswith(RELEASE + "/site-packages") and "env" not in entry for entry in found.path
    )


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda folder: folder / "bin/python", "there is no {}"),
        (lambda folder: Path("python3.77"), "there is no program python3.77 on PATH"),
        (lambda folder: folder, "there is no {}"),
        (lambda folder: old_python(folder / "python"),
         "{} is Python 3.9.18, but 3.10 or newer is needed"),
        (lambda folder: program(folder / "python", "echo hello; exit 3"),
         "{} is not a working Python: it exited with code 3 without a result and printed 'hello'"),
        (lambda folder: locked(folder / "python"),
         "{} is not a working Python: it cannot be started: Permission denied"),
    ],
)  # fmt: skip
def test_an_unusable_interpreter_is_unavailable(
    make: Callable[[Path], Path], expected: str, tmp_path: Path
) -> None:
    python = make(tmp_path)
    with pytest.raises(Unavailable) as caught:
        require_interpreter(named(python))
    assert f"the toolchain trt86 cannot be used: {expected.format(python)}" in caught.value.problem
    assert "toolchains.trt86.python" in caught.value.hint
    assert "BUILDSYS_TOOLCHAIN_TRT86" in caught.value.hint


def test_a_hanging_interpreter_fails_at_its_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BUILDSYS_INTERPRETER_LIMIT", "0.3s")
    python = program(tmp_path / "python", "echo loading; sleep 100 & wait")
    problem = r"did not respond within 0\.3 s .*LIMIT.* and printed 'loading'"
    with pytest.raises(StageError, match=problem) as caught:
        require_interpreter(named(python))
    assert not isinstance(caught.value, Unavailable)


def test_a_crashing_interpreter_fails_with_its_signal(tmp_path: Path) -> None:
    with pytest.raises(
        StageError, match=r"crashed with a segmentation fault \(SIGSEGV\)"
    ) as caught:
        require_interpreter(named(program(tmp_path / "python", "kill -SEGV $$")))
    assert not isinstance(caught.value, Unavailable)


def test_a_process_starts_an_interpreter_once(tmp_path: Path, starts: list[object]) -> None:
    environment = Environment(tmp_path / "env", "numpy")
    for _ in range(2):
        assert tool_versions(["python", "numpy"], named(environment.python))["numpy"]
    assert len(starts) == 1


def test_versions_are_those_of_the_toolchain(tmp_path: Path) -> None:
    environment = Environment(tmp_path / "env", "numpy")
    environment.write("tensorrt_cu12-10.16.1.11.dist-info/RECORD", "")
    environment.write("tensorrt-10.16.1.11.dist-info/RECORD", "")
    environment.write("onnxruntime_gpu-1.22.0.dist-info/RECORD", "")
    environment.write("tensorrt_rtx-1.1.dist-info/RECORD", "")
    environment.write("tensorrt_rtx_cu12-1.2.dist-info/RECORD", "")
    versions = tool_versions(
        ["python", "tensorrt", "tensorrt-rtx", "onnxruntime", "onnx"], named(environment.python)
    )
    assert versions["tensorrt"] == "10.16.1.11"
    assert versions["onnxruntime"] == "1.22.0 (onnxruntime-gpu)"
    assert versions["tensorrt-rtx"] == "1.1 + 1.2 (tensorrt-rtx-cu12)"
    assert versions["onnx"] == "absent"
    assert versions["python"].startswith(platform.python_implementation())


@pytest.mark.parametrize("file", ["__init__.py", "_version.py", "version.py"])
def test_a_module_without_a_distribution_states_its_version(
    file: str, tmp_path: Path, starts: list[object]
) -> None:
    environment = Environment(tmp_path / "env")
    environment.write("tensorrt/__init__.py", "")
    environment.write(f"tensorrt/{file}", 'import sys\n__version__ = "8.6.0"\n')
    assert tool_versions(["tensorrt"], named(environment.python)) == {"tensorrt": "8.6.0"}
    assert len(starts) == 1


def test_a_module_without_a_version_is_identified_by_its_files(tmp_path: Path) -> None:
    environment = Environment(tmp_path / "env")
    environment.write("tensorrt/__init__.py", "import libnvinfer\n")
    first = tool_versions(["tensorrt"], named(environment.python))["tensorrt"]
    assert first.startswith("of unknown version, files ")
    environment.write("tensorrt/__init__.py", "import libnvinfer  # the second one\n")
    versions.distribution_version.cache_clear()
    assert tool_versions(["tensorrt"], named(environment.python))["tensorrt"] != first


def test_without_an_interpreter_all_tools_are_absent(tmp_path: Path) -> None:
    absent = tool_versions(["python", "tensorrt"], named(tmp_path / "none"))
    broken = tool_versions(["python", "tensorrt"], named(program(tmp_path / "python", "exit 1")))
    assert absent == {"python": "absent", "tensorrt": "absent"}
    assert broken == {"python": "unusable", "tensorrt": "absent"}


@pytest.mark.parametrize(
    ("written", "found"),
    [
        ("/opt/trt86/bin/python", "/opt/trt86/bin/python"),
        ("envs/trt86/bin/python", "/project/envs/trt86/bin/python"),
        ("./python", "/project/python"),
        ("../shared/bin/python", "/shared/bin/python"),
        ("~/trt86/bin/python", "/home/me/trt86/bin/python"),
        ("python3.77", "python3.77"),
    ],
)
def test_paths_of_interpreters(written: str, found: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert locate_toolchain("trt86", written, (), Path("/project"), {}).python == Path(found)


def test_a_name_is_looked_up_on_the_path(tmp_path: Path) -> None:
    python, path = program(tmp_path / "bin/python3.77", ""), f"/none:{tmp_path}/bin"
    located = locate_toolchain("a", "python3.77", (), Path("/project"), {"PATH": path})
    assert located.python == python


@pytest.mark.parametrize(
    ("value", "python"), [("envs/a/bin/python", "/p/envs/a/bin/python"), ("", "/opt/python")]
)
def test_a_variable_overrides_the_interpreter(value: str, python: str) -> None:
    assert override_variable("trt-8.6+cu12") == "BUILDSYS_TOOLCHAIN_TRT_8_6_CU12"
    environment = {"BUILDSYS_TOOLCHAIN_TRT86": value}
    located = locate_toolchain("trt86", "/opt/python", (), Path("/p"), environment)
    assert located.python == Path(python)


def test_variables_may_contain_the_prefix() -> None:
    env = (("LD_LIBRARY_PATH", "{prefix}/lib:{prefix}/lib64"), ("A", "{other}"))
    toolchain = locate_toolchain("trt86", "/opt/trt86/bin/python", env, Path("/p"), {})
    assert toolchain.env == {"LD_LIBRARY_PATH": "/opt/trt86/lib:/opt/trt86/lib64", "A": "{other}"}


def test_variables_of_our_interpreter_are_removed() -> None:
    toolchain = locate_toolchain(
        "a", "/opt/bin/python", (("OMP_NUM_THREADS", "2"),), Path("/p"), {}
    )
    ours = {"PYTHONPATH": "/ours", "VIRTUAL_ENV": "/ours", "PATH": "/bin", "OMP_NUM_THREADS": "8"}
    assert toolchain.environment(ours) == {"PATH": "/bin", "OMP_NUM_THREADS": "2"}
    its = locate_toolchain("a", "/opt/bin/python", (("PYTHONPATH", "/its"),), Path("/p"), {})
    assert its.environment(ours)["PYTHONPATH"] == "/its"
