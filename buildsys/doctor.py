"""``python -m buildsys.doctor ENGINE [--json] [--project=FOLDER]``: the check in an interpreter of its own."""

from __future__ import annotations

import json
import sys

from buildsys.system.compatibility.check import check


def main(arguments: list[str]) -> int:
    """Print the answer; return 0 where the engine can run, else 1."""
    as_json = "--json" in arguments
    project = next(
        (option.partition("=")[2] for option in arguments if option.startswith("--project=")), None
    )
    engines = [argument for argument in arguments if not argument.startswith("-")]
    if len(engines) != 1:
        sys.stderr.write("usage: python -m buildsys.doctor ENGINE [--json] [--project=FOLDER]\n")
        return 3
    verdict = check(engines[0], project=project)
    sys.stdout.write(json.dumps(verdict.as_json(), indent=2) + "\n" if as_json else f"{verdict}\n")
    return 0 if verdict else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
