"""buildsys list: models, stages and targets."""

from argparse import ArgumentParser, Namespace

from buildsys.cli.command import add_json, add_names, print_answer
from buildsys.cli.commands.explain import state_word
from buildsys.cli.session import BuildSession
from buildsys.cli.target_names import STAGE_DOCS, ModelFilter, add_filter
from buildsys.stages.table import stage_info

SCHEMA = "buildsys/list/1"


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options of ``buildsys list``."""
    add_names(parser, "[TARGET ...]")
    parser.epilog = "without a TARGET: the names of models and stages"
    parser.add_argument("--all", action="store_true", help="list every target")
    parser.add_argument("--status", action="store_true", help="list targets with their state")
    add_json(parser)
    add_filter(parser)


def run(options: Namespace) -> int:
    """Print names with a description."""
    only = ModelFilter.of(options)
    session = BuildSession.read_only(options.root, options.names)
    states: dict[str, str] = {}
    if options.all or options.status or options.names or only:
        targets = session.in_order(session.select(options.names, only=only))
        if options.status:
            explained = session.explain(targets)
            states = {target: state_word(explained[target]) for target in targets}
        docs = {target: stage_info(session.actions[target].stage).doc for target in targets}
    else:
        stages = {stage: STAGE_DOCS.get(stage, "") for stage in session.actions.stages()}
        models = {f"build:{model}": f"everything of {model}" for model in session.project.models}
        docs = {"build": STAGE_DOCS["build"], **stages, **models}
    width = max(map(len, docs), default=0)
    rows = [{"name": name, "doc": doc, "state": states.get(name)} for name, doc in docs.items()]
    before = max(map(len, states.values()), default=-2) + 2
    lines = (f"{states.get(n, ''):<{before}}{n:<{width}}  {doc}" for n, doc in docs.items())
    print_answer(options, {"schema": SCHEMA, "targets": rows}, lines)
    return session.exit_code
