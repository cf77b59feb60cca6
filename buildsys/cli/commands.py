"""Our own commands on doit's command line; what they answer is in modules that know nothing of doit."""

from __future__ import annotations

import getopt
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from doit.cmd_base import Command, opt_dodo
from doit.exceptions import InvalidCommand, InvalidDodoFile

from buildsys.cli import name_suggestions
from buildsys.cli.doit_overrides import INTERRUPTED, drop_unwritten, leave_broken_pipe
from buildsys.errors import BuildsysError, UsageError

_OPT_JSON = {
    "name": "json",
    "long": "json",
    "type": bool,
    "default": False,
    "help": "one JSON document on stdout",
}


class _ProjectCommand(Command):  # type: ignore[misc]
    """A command of ours: a function of the project's folder and the arguments that returns what to print."""

    cmd_options: tuple[dict[str, Any], ...] = (opt_dodo,)
    answer: staticmethod[[Path, Sequence[str]], str]

    def parse_execute(self, in_args: list[str]) -> Any:
        """Take options behind names as well: ``doit explain export:resnet50 --json``."""
        parser = self.cmdparser
        try:
            found, names = getopt.gnu_getopt(in_args, parser.get_short(), parser.get_long())
        except getopt.GetoptError as error:
            raise InvalidCommand(f"{error}; `doit help {self.name}` tells the options") from None
        flags = {option for option, _ in found if parser.get_option(option)[0].type is bool}
        options = [word for pair in found for word in (pair[:1] if pair[0] in flags else pair)]
        return super().parse_execute([*options, "--", *names])

    def execute(self, params: Any, args: list[str]) -> int:
        """Print the answer; an expected failure is one line, with exit code 3 where the command was wrong."""
        try:
            code = self.tell(_project_root(params), params, args)
            sys.stdout.flush()  # a closed pipe is met here, not when Python exits
            return code
        except BuildsysError as error:
            if error.exit_code == UsageError.exit_code:
                raise InvalidCommand(str(error)) from None
            sys.stderr.write(f"ERROR: {error}\n")
            return error.exit_code
        except KeyboardInterrupt:
            return INTERRUPTED
        except BrokenPipeError:
            return leave_broken_pipe()
        except (
            OSError
        ) as error:  # a full disk, most likely: of the temporary folder, or behind stdout
            told = ": ".join(str(part) for part in (error.filename, error.strerror) if part)
            sys.stderr.write(f"ERROR: {told}\n")
            drop_unwritten()
            return BuildsysError.exit_code

    def tell(self, root: Path, params: Any, args: Sequence[str]) -> int:
        """Print what the command answers; return the exit code."""
        del params
        sys.stdout.write(self.answer(root, args))
        return 0


def _project_root(params: Any) -> Path:
    dodo = Path(params["dodoFile"]).resolve()
    if not dodo.is_file():
        raise InvalidDodoFile(f"there is no {params['dodoFile']} here; name it with -f")
    return dodo.parent


class Resolve(_ProjectCommand):
    """``doit resolve MODEL``."""

    doc_purpose = "print a model's manifest as its targets use it"
    doc_usage = "MODEL"
    answer = staticmethod(name_suggestions.resolve)


class Workers(_ProjectCommand):
    """``doit workers``."""

    doc_purpose = "list the worker servers that wait for a next run, or end them"
    cmd_options = (
        opt_dodo,
        {
            "name": "stop",
            "long": "stop",
            "type": bool,
            "default": False,
            "help": "end them, with what runs in them",
        },
    )
    answer = staticmethod(name_suggestions.workers)

    def execute(self, params: Any, args: list[str]) -> int:
        """Hand the option on as an argument."""
        return super().execute(params, [*args, *(["--stop"] if params["stop"] else [])])


class Cache(_ProjectCommand):
    """``doit cache``."""

    doc_purpose = "show, verify or collect what is stored of earlier builds"
    doc_usage = "[show | verify | gc]"
    doc_description = (
        "show    what each stage has in the store (the default)\n"
        "verify  read everything; what is damaged goes into quarantine (exit code 1)\n"
        "gc      remove what the manifests here do not reach, or only what is too old or too much of it"
    )
    cmd_options = (
        opt_dodo,
        _OPT_JSON,
        {"name": "older_than", "long": "older-than", "type": str, "default": "", "help": "gc: unused that long (30d)"},
        {"name": "max_size", "long": "max-size", "type": str, "default": "", "help": "gc: down to this size (20GiB)"},
        {"name": "keep_refs", "long": "keep-refs", "type": str, "default": "",
         "help": "gc: keep what the manifests of these git revisions reach, separated by commas"},
        {"name": "dry_run", "long": "dry-run", "type": bool, "default": False, "help": "gc: tell, and remove nothing"},
    )  # fmt: skip

    def tell(self, root: Path, params: Any, args: Sequence[str]) -> int:
        """Print the answer; return 1 when something in the store is damaged."""
        text, code = name_suggestions.cache(root, args, params)
        sys.stdout.write(text)
        return code


class Explain(_ProjectCommand):
    """``doit explain``."""

    doc_purpose = "tell why targets are stale, or when and why they were built"
    doc_usage = "[TARGET ...]"
    cmd_options = (opt_dodo, _OPT_JSON)

    def tell(self, root: Path, params: Any, args: Sequence[str]) -> int:
        """Print the explanations."""
        from buildsys.cli.explain.explain import explain_targets

        explain_targets(root, args, sys.stdout, as_json=params["json"])
        return 0


class Plan(_ProjectCommand):
    """``doit plan``."""

    doc_purpose = (
        "tell what would run and how long it usually takes, or what differs from a git revision"
    )
    doc_usage = "[TARGET ...]"
    cmd_options = (
        opt_dodo,
        _OPT_JSON,
        {
            "name": "since",
            "long": "since",
            "type": str,
            "default": None,
            "help": "compare with a git revision",
        },
        {
            "name": "jobs",
            "short": "n",
            "type": str,
            "default": "1",
            "help": "the targets that would run at a time",
        },
    )

    def tell(self, root: Path, params: Any, args: Sequence[str]) -> int:
        """Print the plan."""
        if params["since"] is not None:
            from buildsys.cli.explain.plan_since import plan_since

            plan_since(root, args, sys.stdout, revision=params["since"], as_json=params["json"])
        else:
            from buildsys.cli.explain.plan import plan_run

            plan_run(root, args, sys.stdout, jobs=_jobs(params["jobs"]), as_json=params["json"])
        return 0


def _jobs(asked: str) -> int:
    if not asked.isdecimal() or int(asked) < 1:
        raise UsageError(f"-n takes a number from 1 on, not {asked!r}")
    return int(asked)


class Inspect(_ProjectCommand):
    """``doit inspect:MODEL[:STAGE]``."""

    doc_purpose = "show a graph: operators, tensors, weights, multiply-accumulates; or draw it"
    doc_usage = "MODEL[:STAGE]"
    doc_description = (
        "also written as `doit inspect:MODEL:STAGE`\n"
        "STAGE is export, simplify (the default), convert:PRECISION or engine:NAME, as it was built last;\n"
        "STAGE~1 is the graph before that, STAGE@REV the one built from a git revision"
    )
    cmd_options = (
        opt_dodo,
        _OPT_JSON,
        {
            "name": "nodes",
            "long": "nodes",
            "type": bool,
            "default": False,
            "help": "tell every node",
        },
        {
            "name": "node",
            "long": "node",
            "type": str,
            "default": "",
            "help": "all of the node of this name",
        },
        {
            "name": "tensor",
            "long": "tensor",
            "type": str,
            "default": "",
            "help": "all of the tensor of this name",
        },
        {
            "name": "svg",
            "long": "svg",
            "type": str,
            "default": "",
            "help": "draw the graph into this file",
        },
        {
            "name": "begin",
            "long": "from",
            "type": str,
            "default": "",
            "help": "draw from this node or tensor on",
        },
        {
            "name": "end",
            "long": "to",
            "type": str,
            "default": "",
            "help": "draw up to this node or tensor",
        },
        {
            "name": "depth",
            "long": "depth",
            "type": str,
            "default": "",
            "help": "draw so many nodes from there",
        },
    )

    def tell(self, root: Path, params: Any, args: Sequence[str]) -> int:
        """Print the graph, or draw it."""
        from buildsys.cli.inspect.command import Asked, asked_name, inspect_graph

        options = {
            name: params[name]
            for name in ("nodes", "node", "tensor", "svg", "begin", "end", "depth")
        }
        inspect_graph(root, Asked(asked_name(args), params["json"], **options), sys.stdout)
        return 0


class Diff(_ProjectCommand):
    """``doit diff MODEL A B``."""

    doc_purpose = "tell what differs between two graphs of a model: of two stages, or of two builds"
    doc_usage = "MODEL [A B]"
    doc_description = (
        "A and B are names of graphs as in `doit inspect`: export, simplify, convert:PRECISION, engine:NAME;\n"
        "simplify~1 is the graph before the last one, simplify@REV the one built from a git revision;\n"
        "without them, export and simplify"
    )
    cmd_options = (opt_dodo, _OPT_JSON)

    def tell(self, root: Path, params: Any, args: Sequence[str]) -> int:
        """Print the differences."""
        from buildsys.cli.inspect.diff import diff_graphs

        diff_graphs(root, args, sys.stdout, as_json=params["json"])
        return 0


class Netron(_ProjectCommand):
    """``doit netron MODEL[:STAGE]``."""

    doc_purpose = "serve a graph in the netron viewer until Ctrl-C"
    doc_usage = "MODEL[:STAGE]"
    doc_description = "STAGE is a name of a graph as in `doit inspect`, simplify unless given"
    cmd_options = (
        opt_dodo,
        {
            "name": "port",
            "long": "port",
            "type": str,
            "default": "",
            "help": "the port, 8080 or the next free one",
        },
        {
            "name": "browse",
            "long": "browse",
            "type": bool,
            "default": False,
            "help": "open a browser",
        },
    )

    def tell(self, root: Path, params: Any, args: Sequence[str]) -> int:
        """Serve until interrupted."""
        from buildsys.cli.inspect.netron import serve

        if len(args) != 1:
            raise UsageError(
                "netron takes one MODEL or MODEL:STAGE", "for example `doit netron resnet50:export`"
            )
        serve(root, args[0], sys.stdout, port=params["port"], browse=params["browse"])
        return 0


class Ops(_ProjectCommand):
    """``doit ops``."""

    doc_purpose = "tell which operators are translated, known and run by what is installed here"
    doc_usage = "[OPERATOR ...]"
    cmd_options = (
        opt_dodo,
        _OPT_JSON,
        {"name": "all", "long": "all", "type": bool, "default": False, "help": "all operators"},
        {
            "name": "model",
            "long": "model",
            "type": str,
            "default": "",
            "help": "those in a built model's graph",
        },
    )

    def tell(self, root: Path, params: Any, args: Sequence[str]) -> int:
        """Print rows of the table, or a summary."""
        options = {"model": params["model"], "everything": params["all"], "as_json": params["json"]}
        sys.stdout.write(name_suggestions.ops(root, args, **options))
        return 0


class Doctor(_ProjectCommand):
    """``doit doctor``."""

    doc_purpose = "tell what is installed, what it can build and run here, and what mends the rest; or ask for engines"
    doc_usage = "[ENGINE ...]"
    doc_description = (
        "ENGINE is an engine file, its folder, or MODEL:NAME of an engine of this project:\n"
        "whether it can run here and, of this project, whether it is what its manifest asks for now\n"
        "and has passed its checks; if not all reasons, with what to do; exit code 1 where one is not fine"
    )
    cmd_options = (opt_dodo, _OPT_JSON)

    def tell(self, root: Path, params: Any, args: Sequence[str]) -> int:
        """Print what was found; return 1 where something that the project needs is broken, or an engine is not fine."""
        if args:
            from buildsys.cli.doctor.engine_check import examine

            text, code = examine(root, args, as_json=params["json"])
            sys.stdout.write(text)
            return code
        from buildsys.cli.doctor.machine_check import examine_machine

        return examine_machine(root, sys.stdout, as_json=params["json"])


class Schema(_ProjectCommand):
    """``doit schema``."""

    doc_purpose = "write the JSON Schemas for editors into configs/schema"
    answer = staticmethod(name_suggestions.schema)


class Repro(_ProjectCommand):
    """``doit repro MODEL [STAGE…]``."""

    doc_purpose = "build a model twice in clean folders and tell which artifacts are byte-equal"
    doc_usage = "MODEL [STAGE ...]"
    cmd_options = (
        opt_dodo,
        {
            "name": "until",
            "long": "until",
            "type": str,
            "default": "",
            "help": "the last stage to build",
        },
        _OPT_JSON,
        {
            "name": "keep",
            "long": "keep",
            "type": bool,
            "default": False,
            "help": "keep both folders, and say where",
        },
    )

    def tell(self, root: Path, params: Any, args: Sequence[str]) -> int:
        """Print the comparison; return 1 where something differs that should not."""
        options = {"until": params["until"], "as_json": params["json"], "keep": params["keep"]}
        text, code = name_suggestions.repro(root, args, **options)
        sys.stdout.write(text)
        return code
