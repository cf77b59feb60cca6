from __future__ import annotations

from pathlib import Path

import pytest
from python_environments import program

from buildsys.system.toolchains import locate_toolchain, override_variable


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
