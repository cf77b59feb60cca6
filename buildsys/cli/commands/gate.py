"""buildsys gate accept: make a build that its gate rejects the baseline of later builds."""

import sys
from argparse import ArgumentParser, Namespace

from buildsys.cli.command import add_names
from buildsys.cli.engine_checks import one_engine
from buildsys.cli.session import BuildSession
from buildsys.errors import UsageError
from buildsys.stages.table import GATE, target_of
from buildsys.system.printable import printable

_ACCEPT = "accept"


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options of ``buildsys gate``."""
    add_names(parser, 'accept MODEL:ENGINE --reason "TEXT"')
    parser.add_argument("--reason", default="", help="why the build may be worse")


def run(options: Namespace) -> int:
    """Record the acceptance. Raises: UsageError: there is nothing to accept."""
    if len(options.names) != 2 or options.names[0] != _ACCEPT:
        hint = 'write `buildsys gate accept MODEL:ENGINE --reason "TEXT"`'
        raise UsageError("gate takes accept and one engine", hint)
    reason = " ".join(options.reason.split())
    if not reason:
        raise UsageError("gate accept needs a reason", 'add --reason "TEXT"')
    session = BuildSession.load(options.root)
    try:
        name = options.names[1]
        engine = one_engine(session, name)
        target = target_of(GATE, engine.model, engine.variant)
        action = session.actions.get(target)
        if action is None:
            raise UsageError(f"{name} has no gates", "add `gates` to its manifest")
        if action.baseline is None:
            problem = f"the gate of {name} compares with another engine"
            raise UsageError(problem, "change its tolerance, or `gates.engine`")
        session.executor.accept(target, reason)
    finally:
        session.close()
    accepted = f"{target.partition(':')[2]} is accepted; later builds are compared with it"
    sys.stdout.write(printable(f"{accepted}, `buildsys build {target}` checks its limits\n"))
    return 0
