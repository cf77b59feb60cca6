"""Backends of other distributions: discovery, broken packages, ours in pyproject.toml."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from backend_package import PACKAGE, install, registered
from pydantic import ValidationError

import buildsys
from buildsys.backends.interface import load_backend
from buildsys.errors import Unavailable
from buildsys.manifest.schema.engines import engine_spec
from buildsys.manifest.schema_errors import field_names
from buildsys.system import backend_registry
from buildsys.system.backend_registry import (
    backend_names,
    describe_backend,
    find_package,
    link_packages,
    our_backends,
    package_files,
)

ROOT = Path(buildsys.__file__).parents[1]


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return a folder on the module path with the package of the documentation."""
    install(tmp_path / "site")
    monkeypatch.syspath_prepend(tmp_path / "site")
    with registered(tmp_path / "site"):
        yield tmp_path / "site"


def test_our_backends_are_registered_like_others() -> None:
    group = (ROOT / "pyproject.toml").read_text().partition('entry-points."buildsys.backends"]\n')
    lines = group[2].partition("\n\n")[0].splitlines()
    assert lines == [f'{name} = "buildsys.backends.{name}"' for name in our_backends()]


def test_a_package_is_found_by_its_entry_point(site: Path) -> None:
    assert backend_names() == (*our_backends(), "reference")
    package = find_package("reference")
    assert package is not None
    assert (package.module, package.owner) == (PACKAGE, "buildsys-reference 1.0")
    assert describe_backend("reference").title == "ONNX reference"
    assert load_backend("reference").__name__ == f"{PACKAGE}.backend"


def test_names_of_ours_read_no_entry_points(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend_registry, "other_backends", lambda: 1 / 0)
    assert find_package("onnxruntime") is not None


@pytest.mark.parametrize("name", ["numpyy", "../x", "a.b", "", "Tensorrt"])
def test_an_unknown_name_is_refused(name: str) -> None:
    assert find_package(name) is None
    with pytest.raises(Unavailable, match=r"there is no backend .*; use one of coreml, "):
        describe_backend(name)


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        ("import no_such_library\n", "ModuleNotFoundError: No module named 'no_such_library'"),
        ("DESCRIPTION = {}\n", "TypeError: its DESCRIPTION is not a BackendDescription"),
        ("raise KeyError('x')\n", "KeyError: 'x'"),
        ("def f(:\n", "SyntaxError: "),
    ],
)
def test_a_broken_package_names_its_distribution_and_the_exception(
    site: Path, code: str, problem: str
) -> None:
    (site / PACKAGE / "description.py").write_text(code)
    description = describe_backend("reference")
    assert problem in description.problem
    assert "buildsys-reference 1.0" in description.problem
    with pytest.raises(Unavailable, match="buildsys-reference"):
        load_backend("reference")
    assert describe_backend("onnxruntime").problem == ""


def test_two_packages_of_one_name_are_refused(site: Path) -> None:
    install(site, distribution="other-reference", module="other_reference")
    with registered(site):
        problem = describe_backend("reference").problem
    assert "both have a backend reference" in problem
    assert {"buildsys-reference 1.0", "other-reference 1.0"} <= set(
        problem.split(" both")[0].split(" and ")
    )


def test_a_toolchain_gets_the_package_and_its_metadata(site: Path, tmp_path: Path) -> None:
    links = link_packages(tmp_path / "links")
    found = {path.name: path.resolve() for path in links.iterdir()}
    assert found["buildsys"] == ROOT / "buildsys"
    assert found[PACKAGE] == site / PACKAGE
    assert (found["buildsys_reference-1.0.dist-info"] / "entry_points.txt").is_file()
    assert len(found) == 3


def test_the_fields_depend_on_the_files_of_the_package(site: Path) -> None:
    names = {path.name for path in package_files("reference")}
    assert {"entry_points.txt", PACKAGE, "options.py", "description.py"} <= names
    assert list(package_files("onnxruntime")) == []


def test_the_fields_of_an_engine_are_checked_by_its_package(site: Path) -> None:
    from buildsys.project.model import ModelSpec

    engine = {"name": "e", "backend": "reference", "log_level": 3}
    model = ModelSpec.model_validate({"model": "net", "engines": [engine]})
    dumped = model.model_dump(mode="json")["engines"][0]
    assert (dumped["log_level"], dumped["precision"]) == (3, "fp32")
    with pytest.raises(ValidationError) as caught:
        ModelSpec.model_validate({"model": "net", "engines": [{**engine, "log_levle": 3}]})
    location = caught.value.errors()[0]["loc"]
    assert location == ("engines", 0, "<ReferenceEngine>", "log_levle")
    assert "log_level" in field_names(ModelSpec, location[:-1])


def test_an_engine_of_no_backend_names_those_of_all_packages(site: Path) -> None:
    from buildsys.project.model import ModelSpec

    with pytest.raises(ValidationError) as caught:
        ModelSpec.model_validate({"model": "net", "engines": [{"backend": "refrence"}]})
    names = ", ".join((*our_backends(), "reference"))
    context = caught.value.errors()[0]["ctx"]
    assert (context["field"], context["kinds"]) == ("backend", names)


def test_an_engine_whose_fields_are_unknown_is_unavailable(site: Path) -> None:
    (site / PACKAGE / "options.py").write_text("import no_such_library\n")
    spec = engine_spec("reference").model_validate(
        {"name": "e", "backend": "reference", "log_level": "anything"}
    )
    unusable = spec.model_dump()["unusable"]
    assert "buildsys-reference 1.0 cannot be loaded: ModuleNotFoundError" in unusable
    with pytest.raises(Unavailable, match="no_such_library"):
        load_backend("reference", None, unusable)
