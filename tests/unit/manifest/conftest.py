from collections.abc import Callable
from pathlib import Path

import pytest
from manifest_files import ProjectFolder

from buildsys.manifest.layers import Errors
from buildsys.project.resolve import Resolution, Resolver


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ProjectFolder:
    for variable in ("BUILDSYS_CONFIGS", "BUILDSYS_BUILD"):
        monkeypatch.delenv(variable, raising=False)
    folder = ProjectFolder(tmp_path)
    folder.write("dodo.py", "")
    folder.write("configs/models/.keep", "")
    folder.write(
        "configs/engines.yaml",
        """\
        ort-cpu: {backend: onnxruntime}
        ort-fp16: {use: ort-cpu, precision: fp16}
        rtx-fp16: {backend: tensorrt_rtx, precision: fp16}
        """,
    )
    return folder


@pytest.fixture
def resolved(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the manifests resolved by loads, not read from the cache."""
    files: list[str] = []
    original = Resolver.resolve

    def record(self: Resolver, file: Path) -> tuple[list[Resolution], Errors]:
        files.append(file.name)
        return original(self, file)

    monkeypatch.setattr(Resolver, "resolve", record)
    return files


@pytest.fixture
def yaml_errors(project: ProjectFolder) -> Callable[[str | bytes], list[str]]:
    """Return the errors of a project with one given manifest."""

    def errors(content: str | bytes) -> list[str]:
        project.write("configs/models/net.yaml", content)
        return project.errors()

    return errors
