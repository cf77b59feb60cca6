"""The environment variables that a worker server starts with."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from importlib.machinery import PathFinder
from pathlib import Path

import buildsys
from buildsys.system.interpreters.toolchain import Toolchain

_INSTALLED = ("site-packages", "dist-packages")
# A worker ends with its stage, so what it frees need not go back to the system at once. With glibc's own
# limits each buffer of a large graph is mapped, zeroed and unmapped anew: half of the time of exporting vgg11.
_KEEP_MEMORY = {
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 31),
    "MALLOC_TOP_PAD_": str(64 << 20),
}
# no library looks at these when it is loaded; they differ from one terminal, or one call, to the next
_OF_A_CALL = frozenset(
    {
        "_",
        "ALACRITTY_WINDOW_ID",
        "COLUMNS",
        "GNOME_TERMINAL_SCREEN",
        "GPG_TTY",
        "INVOCATION_ID",
        "ITERM_SESSION_ID",
        "JOURNAL_STREAM",
        "KITTY_PID",
        "KITTY_WINDOW_ID",
        "LINES",
        "OLDPWD",
        "PWD",
        "PYTEST_CURRENT_TEST",
        "SHLVL",
        "SSH_AUTH_SOCK",
        "SSH_CLIENT",
        "SSH_CONNECTION",
        "SSH_TTY",
        "STY",
        "TERM",
        "TERM_SESSION_ID",
        "TMUX",
        "TMUX_PANE",
        "WEZTERM_PANE",
        "WINDOWID",
        "XDG_SESSION_ID",
    }
)


def split_environment(environment: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return the variables that a server starts with, and those that every job brings along.

    The second kind lets a server be used again from another terminal; together they are all that a job sees.
    """
    lasting, passing = dict[str, str](), dict[str, str]()
    for name, value in environment.items():
        (passing if name in _OF_A_CALL or name.startswith("BUILDSYS_") else lasting)[name] = value
    return lasting, passing


def toolchain_environment(
    folder: Path, base: Mapping[str, str], toolchain: Toolchain, path: Sequence[str]
) -> dict[str, str]:
    """Return what a server in a toolchain's interpreter starts with: of our own module path it has this package alone.

    ``path`` is where that interpreter looks for modules.
    """
    environment = toolchain.environment(base)
    _add_settings(environment)
    _prepend(environment, "PYTHONPATH", _package_folder(folder / "package"))
    libraries = _rtx_library_folder(folder / f"lib-{toolchain.name}", path)
    if libraries is not None:
        _prepend(environment, "LD_LIBRARY_PATH", libraries)
    return environment


def server_environment(folder: Path, base: Mapping[str, str]) -> dict[str, str]:
    """Return ``base`` with what a server needs besides; ``folder`` takes files made for it."""
    environment = dict(base)
    _add_settings(environment)
    if environment.get("PYTHONPATH"):  # a server starts in another folder
        entries = environment["PYTHONPATH"].split(os.pathsep)
        environment["PYTHONPATH"] = os.pathsep.join(
            str(Path(entry).absolute()) for entry in entries if entry
        )
    package = Path(buildsys.__file__).resolve().parent.parent
    if (
        package.name not in _INSTALLED
    ):  # those are found anyway, and must not come before the standard library
        _prepend(environment, "PYTHONPATH", package)
    libraries = _rtx_library_folder(folder / "lib")
    if libraries is not None:
        _prepend(environment, "LD_LIBRARY_PATH", libraries)
    return environment


def _add_settings(environment: dict[str, str]) -> None:
    # it would run in a thread, which a fork does not copy, and send facts about models to its vendor
    environment.setdefault("ORT_DISABLE_TELEMETRY", "1")
    for name, value in _KEEP_MEMORY.items():
        environment.setdefault(name, value)


def _package_folder(folder: Path) -> Path:
    """Return a folder from which nothing but this package can be imported."""
    package = Path(buildsys.__file__).resolve().parent
    return _linked(folder, package.name, package)


def _prepend(environment: dict[str, str], name: str, entry: Path) -> None:
    environment[name] = os.pathsep.join(
        part for part in (str(entry), environment.get(name, "")) if part
    )


def _rtx_library_folder(folder: Path, path: Sequence[str] | None = None) -> Path | None:
    """Return a folder where TensorRT-RTX's parser finds the library that it opens for Python plugins.

    It opens ``libtensorrt_rtx.so``, and the process aborts when there is none; the wheel has
    ``libtensorrt_rtx.so.1`` only. The loader sees through the link that this is the library it has.
    """
    spec = PathFinder.find_spec("tensorrt_rtx_libs", path)
    locations = spec.submodule_search_locations if spec is not None else None
    found = sorted(Path(locations[0]).glob("libtensorrt_rtx.so.*")) if locations else []
    if not found:
        return None
    return _linked(folder, "libtensorrt_rtx.so", found[-1])


def _linked(folder: Path, name: str, target: Path) -> Path:
    """Return a folder in which ``name`` is a link to ``target``."""
    folder.mkdir(parents=True, exist_ok=True)
    link = folder / name
    if not link.is_symlink() or link.readlink() != target:
        fresh = folder / f".{name}.{os.getpid()}"
        fresh.unlink(missing_ok=True)
        fresh.symlink_to(target)
        fresh.replace(link)  # another run may be starting its server from here
    return folder
