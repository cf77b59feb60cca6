"""Choose an engine of a release: ``python -m buildsys.release URL [--json] …``."""

import sys
from argparse import ArgumentParser

from buildsys.errors import EngineError
from buildsys.release.command import add_resolve_arguments, resolve_and_print
from buildsys.system.printable import printable, tolerate_other_encodings

_USAGE = 3


def main(arguments: list[str]) -> int:
    """Print the ranked engines; return 0 if one can run."""
    parser = ArgumentParser(prog="python -m buildsys.release")
    parser.add_argument("url")
    parser.add_argument("--json", action="store_true")
    add_resolve_arguments(parser)
    try:
        options = parser.parse_args(arguments)
    except SystemExit as end:
        return _USAGE if end.code else 0
    tolerate_other_encodings(sys.stdout)
    try:
        return resolve_and_print(options.url, options)
    except EngineError as error:
        sys.stderr.write(printable(f"{error}\n"))
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
