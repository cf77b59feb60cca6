"""All CUDA and NVML names in the source exist."""

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from cuda.bindings import driver

import buildsys
from buildsys.backends import cuda_gpus as gpus
from buildsys.backends.cuda_gpus import call
from buildsys.errors import StageError

PACKAGE = Path(buildsys.__file__).parent
CUDA_SOURCES = sorted((PACKAGE / "backends").glob("cuda_*.py"))


def attributes(sources: list[Path], owner: str) -> Iterator[tuple[str, str]]:
    """Yield place and dotted name of every attribute of ``owner``."""
    for source in sources:
        tree = ast.parse(source.read_text())
        inner = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and id(node) not in inner:
                name = ast.unparse(node)
                if name.startswith(f"{owner}."):
                    yield f"{source.name}:{node.lineno}", name.removeprefix(f"{owner}.")


def test_every_cuda_name_exists() -> None:
    names = dict(attributes(CUDA_SOURCES, "cuda"))
    for place, name in names.items():
        found: object = driver
        for part in name.removesuffix(".name").split("."):
            assert hasattr(found, part), f"{place}: cuda.bindings.driver has no {name}"
            found = getattr(found, part)
    assert {"cuMemAlloc", "cuGraphInstantiate", "CUresult.CUDA_ERROR_NO_DEVICE"} <= {
        *names.values()
    }
    assert len(set(names.values())) > 35


def test_every_cuda_function_gets_as_many_arguments_as_it_takes() -> None:
    counted = 0
    for source in CUDA_SOURCES:
        for node in ast.walk(ast.parse(source.read_text())):
            if not isinstance(node, ast.Call):
                continue
            function, *arguments = [ast.unparse(each) for each in (node.func, *node.args)]
            if function in ("call", "super().__init__") and arguments[0].startswith("cuda.cu"):
                function, *arguments = arguments
            if function.startswith("cuda.cu"):
                parameters = inspect.signature(getattr(driver, function[5:])).parameters.values()
                required = sum(each.default is each.empty for each in parameters)
                place = f"{source.name}:{node.lineno}: {function}"
                assert required <= len(arguments) <= len(parameters), place
                counted += 1
    assert counted > 35


def test_every_nvml_name_exists() -> None:
    pynvml = pytest.importorskip("pynvml")
    names = set(re.findall(r'"(nvml[A-Z]\w+)"', (PACKAGE / "system/devices.py").read_text()))
    binding = Path(pynvml.__file__).read_text()
    # pynvml calls the newer nvmlInitWithFlags
    assert {name for name in names if f'"{name}"' not in binding} == {"nvmlInit_v2"}
    assert "nvmlDeviceGetCurrentClocksThrottleReasons" in names


def failing_call(*arguments: object) -> tuple[object, None]:
    return driver.CUresult.CUDA_ERROR_INVALID_VALUE, None


def test_a_failed_call_names_function_and_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        driver, "cuGetErrorString", lambda status: (driver.CUresult(0), b"invalid argument")
    )
    with pytest.raises(StageError) as raised:
        call(failing_call, 1)
    expected = "failing_call failed: CUDA_ERROR_INVALID_VALUE, error 1: invalid argument"
    assert raised.value.problem == f"the CUDA driver's {expected}"


def test_a_function_missing_from_an_old_driver_names_the_remedy() -> None:
    def missing_function() -> tuple[object, ...]:
        raise RuntimeError('Function "cuEventElapsedTime_v2" not found')

    with pytest.raises(StageError, match=r"has no missing_function: .*pip install cuda-bindings=="):
        call(missing_function)


@pytest.mark.skipif(bool(gpus.find_driver().gpus), reason="needs a machine without a GPU")
def test_a_machine_without_a_driver_is_not_an_error() -> None:
    driver_found = gpus.find_driver()
    assert driver_found.gpus == ()
    assert driver_found.missing
    assert not driver_found.remedy


def test_missing_bindings_are_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "cuda.bindings", None)
    assert gpus.find_driver.__wrapped__().missing == "no NVIDIA driver is installed"
    monkeypatch.setattr("ctypes.CDLL", lambda name: None)  # a driver
    found = gpus.find_driver.__wrapped__()
    assert found.missing.startswith("cuda-bindings cannot be imported")
    assert found.remedy.endswith("-m pip install cuda-bindings")
