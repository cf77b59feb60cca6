"""Check an engine: ``python -m buildsys.doctor ENGINE [--json] [--project=FOLDER]``.

``--trusted-key=KEY`` requires a signature of one of these keys, ``--revoked-key=KEY`` refuses one.
"""

import json
import sys
from argparse import ArgumentParser

from buildsys.deploy.can_run import can_run
from buildsys.errors import EngineError
from buildsys.system.printable import printable, tolerate_other_encodings

_USAGE = 3


def main(arguments: list[str]) -> int:
    """Print the result of the check; return 0 if the engine can run."""
    parser = ArgumentParser(prog="python -m buildsys.doctor")
    parser.add_argument("engine")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--project")
    for name in ("trusted", "revoked"):
        parser.add_argument(f"--{name}-key", action="append")
    try:
        options = parser.parse_args(arguments)
        keys = {"trusted_keys": options.trusted_key, "revoked_keys": options.revoked_key or ()}
        result = can_run(options.engine, project=options.project, **keys)
    except SystemExit as end:
        return _USAGE if end.code else 0
    except EngineError as error:
        sys.stderr.write(printable(f"{error}\n"))
        return _USAGE
    text = json.dumps(result.as_json(), indent=2) if options.json else str(result)
    tolerate_other_encodings(sys.stdout)
    sys.stdout.write(printable(f"{text}\n"))
    return 0 if result else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
