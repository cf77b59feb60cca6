"""Write constraints.txt: the versions of this environment that buildsys[test] needs.

With --check the file is compared with the environment instead; the exit code is 1 if they differ.
"""

from __future__ import annotations

import platform
import re
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

FILE = Path(__file__).resolve().parent.parent / "constraints.txt"
_HEADER = """\
# Versions that passed all tests together with buildsys {version}; written by .ci/constraints.py
# on {platform} with Python {python}. Install with: pip install -c constraints.txt -e '.[rtx]'
"""
_PIN = re.compile(r"([A-Za-z0-9._-]+)==(\S+)")


def installed_closure(name: str, extras: frozenset[str]) -> dict[str, str]:
    """Return name -> version of all installed requirements of a distribution."""
    found: dict[str, str] = {}
    seen: set[tuple[str, str]] = set()
    waiting = [(name, extra) for extra in ("", *extras)]
    while waiting:
        current = waiting.pop()
        if current in seen:
            continue
        seen.add(current)
        try:
            package = distribution(current[0])
        except PackageNotFoundError:  # optional, and not installed
            continue
        found[canonicalize_name(current[0])] = package.version
        for line in package.requires or ():
            needed = Requirement(line)
            if needed.marker is None or needed.marker.evaluate({"extra": current[1]}):
                other = canonicalize_name(needed.name)
                waiting += [(other, extra) for extra in ("", *needed.extras)]
    del found[name]
    return dict(sorted(found.items()))


def read_pins(file: Path = FILE) -> dict[str, str]:
    """Return name -> version of a constraints file."""
    matches = map(_PIN.fullmatch, file.read_text(encoding="utf-8").splitlines())
    return {match[1]: match[2] for match in matches if match}


def differences(pins: dict[str, str], found: dict[str, str]) -> Iterator[str]:
    """Yield the differences of an environment from the pins."""
    for name in sorted(pins.keys() | found.keys()):
        if name not in pins:
            yield f"{name} {found[name]} is installed, and not in {FILE.name}"
        elif name not in found:
            yield f"{name} {pins[name]} is in {FILE.name}, and not needed here"
        elif pins[name] != found[name]:
            yield f"{name} {found[name]} is installed, {pins[name]} is in {FILE.name}"


def main() -> int:
    """Write or check the file; return the exit code."""
    found = installed_closure("buildsys", frozenset({"test"}))
    if "--check" in sys.argv[1:]:
        listed = list(differences(read_pins(), found))
        lines = listed or [f"{FILE.name} has the {len(found)} versions of this environment"]
        sys.stdout.writelines(f"{line}\n" for line in lines)
        return 1 if listed else 0
    header = _HEADER.format(
        version=distribution("buildsys").version,
        platform=f"{platform.system()} {platform.machine()}",
        python=".".join(platform.python_version_tuple()[:2]),
    )
    pins = "".join(f"{name}=={version}\n" for name, version in found.items())
    FILE.write_text(header + pins, encoding="utf-8")
    sys.stdout.write(f"wrote {FILE.name}: {len(found)} packages\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
