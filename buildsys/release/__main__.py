"""Choose an engine of a release: ``python -m buildsys.release URL [--json] …``."""

import json
import sys
from argparse import ArgumentParser, Namespace

from buildsys.errors import EngineError
from buildsys.release.resolve import STABLE, resolve
from buildsys.system.printable import printable, tolerate_other_encodings

_USAGE = 3


def add_resolve_arguments(parser: ArgumentParser) -> None:
    """Declare the options of a choice."""
    parser.add_argument("--channel", default=STABLE, help="the channel to follow")
    parser.add_argument("--release", default="", help="a release, instead of a channel")
    parser.add_argument("--model", default="", help="the model, if the release has several")
    parser.add_argument("--backend", default="", help="resolve: use this backend only")
    parser.add_argument("--precision", default="", help="resolve: use this precision only")
    parser.add_argument("--max-error", type=float, help="resolve: largest relative error")
    parser.add_argument("--trusted-key", action="append", help="require a signature of this key")
    parser.add_argument("--revoked-key", action="append", help="never trust this key")
    parser.add_argument("--download", metavar="FOLDER", help="resolve: get the best engine")


def resolve_and_print(url: str, options: Namespace) -> int:
    """Print the engines that can run here; return 1 if none can.

    Raises: EngineError: the release cannot be read or trusted, or no download can be used.
    """
    result = resolve(
        url,
        model=options.model,
        channel=options.channel,
        release=options.release,
        backend=options.backend,
        precision=options.precision,
        max_error=options.max_error,
        trusted_keys=options.trusted_key,
        revoked_keys=options.revoked_key or (),
        folder=options.download,
        download=options.download is not None,
    )
    text = json.dumps(result.as_json(), indent=2) if options.json else str(result)
    sys.stdout.write(printable(f"{text}\n"))
    return 0 if result.decision.choices else 1


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
