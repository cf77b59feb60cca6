"""Environment variables of a worker server."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from importlib.machinery import PathFinder
from pathlib import Path

import buildsys
from buildsys.system.interpreters.toolchain import Toolchain

_INSTALLED = ("site-packages", "dist-packages")
# A worker ends with its stage, so freed memory need not be returned to the system. With glibc's
# defaults each buffer of a large graph is mapped, zeroed and unmapped: half the time of exporting
# vgg11.
_KEEP_MEMORY = {
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 31),
    "MALLOC_TOP_PAD_": str(64 << 20),
}
# no library reads these at import; they differ between terminals or calls
_PER_CALL = (
    "_", "ALACRITTY_WINDOW_ID", "COLUMNS", "GNOME_TERMINAL_SCREEN", "GPG_TTY", "INVOCATION_ID",
    "ITERM_SESSION_ID", "JOURNAL_STREAM", "KITTY_PID", "KITTY_WINDOW_ID", "LINES", "OLDPWD",
    "PWD", "PYTEST_CURRENT_TEST", "SHLVL", "SSH_AUTH_SOCK", "SSH_CLIENT", "SSH_CONNECTION",
    "SSH_TTY", "STY", "TERM", "TERM_SESSION_ID", "TMUX", "TMUX_PANE", "WEZTERM_PANE", "WINDOWID",
    "XDG_SESSION_ID",
)  # fmt: skip


def split_environment(environment: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return the variables of the server, and those sent with each job.

    Without the second kind a server could not be reused from another terminal. A job sees both.
    """
    lasting, per_job = dict[str, str](), dict[str, str]()
    for name, value in environment.items():
        (per_job if name in _PER_CALL or name.startswith("BUILDSYS_") else lasting)[name] = value
    return lasting, per_job


def toolchain_environment(
    folder: Path, base: Mapping[str, str], toolchain: Toolchain, path: Sequence[str]
) -> dict[str, str]:
    """Return the variables of a server in a toolchain's interpreter.

    Of our module path it gets only this package; ``path`` is that of its interpreter.
    """
    environment = toolchain.environment(base)
    package = Path(buildsys.__file__).resolve().parent
    _prepend(environment, "PYTHONPATH", _link(folder / "package", package.name, package))
    _add_settings(environment, folder / f"lib-{toolchain.name}", path)
    return environment


def server_environment(folder: Path, base: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a server in our interpreter; ``folder`` receives links."""
    environment = dict(base)
    if environment.get("PYTHONPATH"):  # a server starts in another folder
        entries = filter(None, environment["PYTHONPATH"].split(os.pathsep))
        environment["PYTHONPATH"] = os.pathsep.join(str(Path(e).absolute()) for e in entries)
    root = Path(buildsys.__file__).resolve().parent.parent
    if root.name not in _INSTALLED:  # on PYTHONPATH, site-packages would hide the standard library
        _prepend(environment, "PYTHONPATH", root)
    _add_settings(environment, folder / "lib", None)
    return environment


def _add_settings(environment: dict[str, str], folder: Path, path: Sequence[str] | None) -> None:
    # telemetry would run in a thread, which a fork does not copy, and report models to the vendor
    environment.setdefault("ORT_DISABLE_TELEMETRY", "1")
    for name, value in _KEEP_MEMORY.items():
        environment.setdefault(name, value)
    # TensorRT-RTX's parser opens libtensorrt_rtx.so for Python plugins and aborts without it; the
    # wheel only has libtensorrt_rtx.so.1. Through a link the loader recognizes the loaded library.
    spec = PathFinder.find_spec("tensorrt_rtx_libs", path)
    locations = spec.submodule_search_locations if spec is not None else None
    found = sorted(Path(locations[0]).glob("libtensorrt_rtx.so.*")) if locations else []
    if found:
        link = _link(folder, "libtensorrt_rtx.so", found[-1])
        _prepend(environment, "LD_LIBRARY_PATH", link)


def _prepend(environment: dict[str, str], name: str, entry: Path) -> None:
    parts = (str(entry), environment.get(name, ""))
    environment[name] = os.pathsep.join(filter(None, parts))


def _link(folder: Path, name: str, target: Path) -> Path:
    """Return ``folder`` after making ``name`` in it a link to ``target``."""
    folder.mkdir(parents=True, exist_ok=True)
    link = folder / name
    if not link.is_symlink() or link.readlink() != target:
        new = folder / f".{name}.{os.getpid()}"
        new.unlink(missing_ok=True)
        new.symlink_to(target)
        new.replace(link)  # another run may be starting its server from here
    return folder
