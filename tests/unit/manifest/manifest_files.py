import os
import textwrap
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from buildsys.errors import ManifestErrors
from buildsys.project.load import Project, load_project
from buildsys.system.files import SETTLE_NS

NET = """\
model: net
source: {torchvision: resnet18}
inputs:
  x: {shape: [batch, 3, 32, 32]}
dims: {batch: {min: 1, opt: 2, max: 4}}
"""


@dataclass(frozen=True)
class ProjectFolder:
    """A project in a temporary folder."""

    root: Path

    def write(self, path: str, text: str | bytes) -> Path:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        content = text if isinstance(text, bytes) else textwrap.dedent(text).encode()
        file.write_bytes(content)
        return file

    def model(self, extra: str = "", *, name: str = "net") -> Path:
        """Write the usual manifest with further lines, from line 6 on."""
        return self.write(
            f"configs/models/{name}.yaml",
            NET.replace("model: net", f"model: {name}") + textwrap.dedent(extra),
        )

    def load(self) -> Project:
        project = load_project(self.root)
        project.require_all()
        return project

    def errors(self) -> list[str]:
        with pytest.raises(ManifestErrors) as caught:
            self.load()
        return str(caught.value).splitlines()

    def settle(self) -> None:
        """Wait until the stamps of all written files can be trusted."""
        time.sleep(2 * SETTLE_NS / 1e9)


def same_state(file: Path, content: bytes) -> None:
    """Replace a file's content, keeping its size and modification time."""
    before = file.stat()
    assert len(content) == before.st_size
    file.write_bytes(content)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
