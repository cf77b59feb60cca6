"""Settings of a project: ``[tool.buildsys]`` in pyproject.toml, or buildsys.toml."""

import os
import re
import sys
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from buildsys.errors import ManifestError
from buildsys.system.printable import did_you_mean

SETTINGS_FILE = "buildsys.toml"
_TABLE = re.compile(r"""^\s*\[?\s*["']?tool["']?\s*(\.\s*["']?buildsys\b|\])""", re.MULTILINE)
_PLACE = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)")


class Settings(NamedTuple):
    """The folders of a project."""

    configs: Path
    build: Path
    code: tuple[str, ...] = ()  # names of folders to import user code from


class _File(NamedTuple):
    """A file with settings."""

    name: str
    text: str
    table: Any

    def error(self, key: str, problem: str, hint: str) -> ManifestError:
        """Describe an error at a setting."""
        table = _TABLE.search(self.text)
        setting = re.compile(
            rf"(?:^\s*|[{{,.]\s*)[\"']?{re.escape(key)}[\"']?\s*[=.]", re.MULTILINE
        )
        start = table.start() if table else 0
        match = setting.search(self.text, start) or setting.search(self.text) or table
        line = self.text[: match.end()].count("\n") + 1 if match else None
        return ManifestError(Path(self.name), (key,) if key else (), problem, hint, line)


def has_settings(folder: Path) -> bool:
    """Check whether a folder is a project by its settings, right or wrong."""
    try:
        return any(_read(folder, name) for name in (SETTINGS_FILE, "pyproject.toml"))
    except ManifestError as error:
        return error.line is not None  # not if the file cannot be read


def read_settings(root: Path) -> Settings:
    """Read the settings of a project; folders that are not named have their usual names.

    Raises: ManifestError: a setting is unknown or wrong.
    """
    files = list(filter(None, (_read(root, name) for name in ("pyproject.toml", SETTINGS_FILE))))
    if not files:
        return Settings(root / "configs", root / "build")
    file = files[0]
    if len(files) > 1:
        raise file.error("", f"{SETTINGS_FILE} has settings, too", "keep one of the two")
    if not isinstance(file.table, dict):
        raise file.error("buildsys", "expected a table of settings", "write [tool.buildsys]")
    for key in file.table.keys() - set(Settings._fields):
        hint = did_you_mean(key, Settings._fields) or f"settings: {', '.join(Settings._fields)}"
        raise file.error(key, "there is no such setting", hint)
    configs = _folder(file, root, "configs", file.table.get("configs", "configs"))
    build = _folder(file, root, "build", file.table.get("build", "build"))
    for inside in (root, configs, root / ".buildsys"):
        if build in (inside, *inside.parents):
            problem = f"{os.path.relpath(build, root)} has files that are no outputs"
            raise file.error("build", problem, "name a folder of its own")
    code = file.table.get("code", [])
    if not isinstance(code, list):
        raise file.error("code", "expected a list of folders", 'such as ["src"]')
    for name in code:
        if not _folder(file, root, "code", name).is_dir():
            raise file.error("code", f"there is no folder {name}", "correct the list")
    return Settings(configs, build, tuple(code))


def _folder(file: _File, root: Path, key: str, value: Any) -> Path:
    if not isinstance(value, str) or not value.strip() or "\0" in value:
        raise file.error(key, "expected the name of a folder", f'such as "{key}"')
    folder = Path(os.path.normpath(root / value))
    if os.path.lexists(folder) and not folder.is_dir():
        raise file.error(key, f"{value} is not a folder", "name another one")
    return folder


def _read(root: Path, name: str) -> _File | None:
    """Read a file with settings. Raises: ManifestError: it is not TOML, or unreadable."""
    try:
        text = (root / name).read_bytes().decode("utf-8-sig")
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return None
    except OSError as error:
        problem = f"cannot read the file: {(error.strerror or str(error)).lower()}"
        raise ManifestError(Path(name), (), problem, "correct its permissions") from None
    except UnicodeDecodeError as error:
        raise ManifestError(Path(name), (), f"not in UTF-8: {error.reason}", "save it so") from None
    is_own = name == SETTINGS_FILE
    if not (
        is_own or ("buildsys" in text and _TABLE.search(text))
    ):  # most files of others are not parsed
        return None
    toml = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    try:
        document = toml.loads(text.replace("\r\n", "\n"))
    except (toml.TOMLDecodeError, RecursionError) as error:
        place = _PLACE.search(str(error))
        line = int(place[1]) if place and place[1] else text.count("\n") + 1
        problem = _PLACE.sub("", str(error)) or "nested too deeply"
        raise ManifestError(Path(name), (), problem, "correct the TOML", line) from None
    tool = document.get("tool", {})
    tables = tool if isinstance(tool, dict) else {}
    if "buildsys" in tables or not is_own:
        return _File(name, text, tables["buildsys"]) if "buildsys" in tables else None
    return _File(name, text, document)
