"""Installation of the backend in ``tests/reference_backend``, without pip."""

import base64
import hashlib
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from buildsys.system import backend_registry

SOURCE = Path(__file__).with_name("reference_backend")
PACKAGE = "buildsys_reference"
_MODULES = ("buildsys.project.model", "buildsys.project.resolve")  # have all backends


def install(site: Path, *, distribution: str = "buildsys-reference", module: str = PACKAGE) -> Path:
    """Copy the package into ``site`` with the metadata that pip would write; return its folder."""
    folder = site / module
    shutil.copytree(SOURCE / PACKAGE, folder, ignore=shutil.ignore_patterns("__pycache__"))
    name = distribution.replace("-", "_")
    metadata = site / f"{name}-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\nRequires-Dist: onnx>=1.18\n"
        "Requires-Dist: buildsys\n"
    )
    (metadata / "entry_points.txt").write_text(f"[buildsys.backends]\nreference = {module}\n")
    (metadata / "top_level.txt").write_text(f"{module}\n")
    lines = [f"{name}-1.0.dist-info/METADATA,,"]
    for file in sorted(folder.glob("*.py")):
        digest = base64.urlsafe_b64encode(hashlib.sha256(file.read_bytes()).digest())
        size = file.stat().st_size
        lines.append(f"{module}/{file.name},sha256={digest.decode().rstrip('=')},{size}")
    (metadata / "RECORD").write_text("\n".join(lines) + "\n")
    return folder


@contextmanager
def registered(site: Path) -> Iterator[None]:
    """Forget known backends before and after, and the modules of ``site`` and of manifests."""
    clear = (
        backend_registry.other_backends.cache_clear,
        backend_registry.describe_backend.cache_clear,
    )

    def forget() -> None:
        for function in clear:
            function()
        for name, module in list(sys.modules.items()):
            file = str(getattr(module, "__file__", "") or "")
            if file.startswith(f"{site}/") or name in _MODULES:
                del sys.modules[name]

    modules = {name: sys.modules[name] for name in _MODULES if name in sys.modules}
    forget()
    try:
        yield
    finally:
        forget()
        for name, module in modules.items():  # others hold and patch these
            package, _, attribute = name.rpartition(".")
            sys.modules[name] = module
            setattr(sys.modules[package], attribute, module)
