"""Check an engine: ``python -m buildsys.doctor ENGINE [--json] [--project=FOLDER]``."""

from __future__ import annotations

import json
import sys

from buildsys.system.compatibility.check import can_run
from buildsys.system.printable import printable, use_plain_symbols


def main(arguments: list[str]) -> int:
    """Print the result of the check.

    Return 0 if the engine can run.
    """
    prefix = "--project="
    projects = [option.removeprefix(prefix) for option in arguments if option.startswith(prefix)]
    engines = [argument for argument in arguments if not argument.startswith("-")]
    if len(engines) != 1:
        sys.stderr.write("usage: python -m buildsys.doctor ENGINE [--json] [--project=FOLDER]\n")
        return 3
    result = can_run(engines[0], project=projects[0] if projects else None)
    text = json.dumps(result.as_json(), indent=2) if "--json" in arguments else str(result)
    use_plain_symbols(sys.stdout)
    sys.stdout.write(printable(f"{text}\n"))
    return 0 if result else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
