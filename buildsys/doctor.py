"""Check an engine: ``python -m buildsys.doctor ENGINE [--json] [--project=FOLDER]``.

``--trusted-key=KEY`` requires a signature of one of these keys, ``--revoked-key=KEY`` refuses one.
"""

from __future__ import annotations

import json
import sys

from buildsys.deploy.can_run import can_run
from buildsys.errors import EngineError
from buildsys.system.printable import printable, use_plain_symbols


def main(arguments: list[str]) -> int:
    """Print the result of the check.

    Return 0 if the engine can run.
    """

    def values(name: str) -> list[str]:
        pairs = (each.partition("=") for each in arguments)
        return [value for option, equals, value in pairs if option == name and equals]

    projects, trusted = values("--project"), values("--trusted-key")
    engines = [argument for argument in arguments if not argument.startswith("-")]
    if len(engines) != 1:
        sys.stderr.write(
            "usage: python -m buildsys.doctor ENGINE [--json] [--project=FOLDER]"
            " [--trusted-key=KEY ...] [--revoked-key=KEY ...]\n"
        )
        return 3
    try:
        result = can_run(
            engines[0],
            project=projects[0] if projects else None,
            trusted_keys=trusted or None,
            revoked_keys=values("--revoked-key"),
        )
    except EngineError as error:
        sys.stderr.write(printable(f"{error}\n"))
        return 3
    text = json.dumps(result.as_json(), indent=2) if "--json" in arguments else str(result)
    use_plain_symbols(sys.stdout)
    sys.stdout.write(printable(f"{text}\n"))
    return 0 if result else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
