"""Commands, options, variables and fields named in messages, compared with the real ones.

The texts are all string constants of the package with a space in them. ``…`` stands for a value
that is only known at run time.
"""

import ast
import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import jsonschema
import pytest
import yaml
from documented_commands import check_command, options_of
from doit.cmdparse import CmdParseError
from doit.exceptions import InvalidCommand

from buildsys.cli.commands import COMMANDS
from buildsys.cli.environment_variables import FORMS
from buildsys.cli.target_names import STAGE_DOCS
from buildsys.errors import UsageError
from buildsys.project.json_schema import schema_texts

PACKAGE = Path(__file__).resolve().parents[2] / "buildsys"
ANY = "…"
BUILDSYS, DOIT = "buildsys", "doit"
_OF_DOIT = ("info", "forget", "ignore")
_CODE = re.compile(r"\n *(import|from|def) |^import ")
_QUOTED = re.compile(r"`([^`]+)`")
_OPTION = re.compile(r"(?<![\w-])--[a-z][\w-]*")
_VARIABLE = re.compile(r"\bBUILDSYS_[A-Z_]+\b")
_PATH = r"[a-z][a-z_0-9]*(?:\.[\w…]+)*"
_DOTTED = re.compile(r"(?<![\w./\"'])[a-z][a-z_0-9]*(?:\.[\w…]+)+(?![\w(/])")
_SETTING = re.compile(rf"(?<![\w./\"'-])({_PATH}): (?=[\w\[{{…])")
# words before a setting, so that it is no part of a sentence
_VERBS = re.compile(r"(?:set|add|use|try|with|write|or|and|needs|without|keep|remove|section) $")
_FILES = ("json", "yaml", "yml", "py", "onnx", "data", "safetensors", "db", "toml", "lock", "cfg")
# what belongs to other programs and libraries
_OTHER_OPTIONS = {
    "--onnx": "trtexec", "--trt": "polygraphy", "--onnxrt": "polygraphy",
    "--data-loader-script": "polygraphy",
    "--detach": "git", "--tags": "git", "--revision": "hf", "--no-deps": "pip",
    "--force-reinstall": "pip", "--use_xnnpack": "onnxruntime", "--project": "buildsys.doctor",
    "--address": "ray start", "--num-cpus": "ray start", "--resources": "ray start",
}  # fmt: skip
_OTHER_WORDS = {BUILDSYS, DOIT, "configs", "exec", "opt", "out", "profile"}
_ENGLISH = {"a", "float32", "it", "its", "not", "the", "there"}  # around a colon of a sentence
_MODULES = (
    "json", "numpy", "onnx", "onnxruntime", "onnxscript", "os", "platform", "safetensors", "sys",
    "timm", "torch", "torchvision", "transformers",
)  # fmt: skip
_OF_RECORDS = {"timing_cache.digest", "tool.buildsys"}  # of engine.json and pyproject.toml


class Text(NamedTuple):
    """A string constant and its place."""

    place: str
    text: str


@cache
def texts() -> tuple[Text, ...]:
    found: list[Text] = []
    for file in sorted(PACKAGE.rglob("*.py")):
        name = file.relative_to(PACKAGE).as_posix()
        strings = _strings(ast.parse(file.read_text(encoding="utf-8")))
        found += (Text(f"{name}:{line}", one) for line, one in strings)
    return tuple(one for one in found if " " in one.text.strip() and not _CODE.search(one.text))


def _strings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the strings of a module with their lines, without docstrings."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.JoinedStr):
            parts = (v.value if isinstance(v, ast.Constant) else ANY for v in node.values)
            yield node.lineno, "".join(map(str, parts))
        for child in ast.iter_child_nodes(node):
            if not isinstance(child, ast.Constant):
                waiting.append(child)
            elif isinstance(child.value, str) and not isinstance(node, (ast.Expr, ast.JoinedStr)):
                yield child.lineno, child.value


# --- commands, options, variables ---


def wrong_commands(text: str) -> Iterator[str]:
    """Yield the quoted command lines that a program refuses."""
    names = {*COMMANDS, *_OF_DOIT}
    for quoted in _QUOTED.findall(text):
        program, _, rest = quoted.partition(" ")
        if program == ANY and rest.partition(" ")[0] in names:
            program = BUILDSYS
        if program not in (DOIT, BUILDSYS):
            continue
        line = f"{program} {rest}".replace(f"<{ANY}>", "X").replace(ANY, "X")
        try:
            check_command(line)
        except (CmdParseError, InvalidCommand, UsageError) as error:
            yield f"`{line}`: {error}"
            continue
        words = [word for word in line.split()[1:] if not word.startswith("-")]
        named = words if words and words[0] not in names else words[1:]
        stages = {word.partition(":")[0] for word in named if re.fullmatch(r"[^=]+:.+", word)}
        models = {one for one in stages if one.isupper()} | {"X", "resnet50"}
        if wrong := stages - models - {"build", "inspect", *STAGE_DOCS}:
            yield f"`{line}`: no target {', '.join(wrong)}"


@cache
def options() -> frozenset[str]:
    of_commands = map(options_of, COMMANDS)
    return frozenset({"--help", "--version"}.union(*of_commands))


def wrong_options(text: str) -> Iterator[str]:
    for option in _OPTION.findall(text):
        program = _OTHER_OPTIONS.get(option)
        if option not in options() and (program is None or program not in text):
            yield f"there is no option {option}"


def wrong_variables(text: str) -> Iterator[str]:
    known = {*FORMS}
    for name in _VARIABLE.findall(text):
        if name not in known and not name.startswith("BUILDSYS_TOOLCHAIN_"):
            yield f"there is no variable {name}"


# --- fields of manifests ---


Schema = dict[str, Any]


class Fields:
    """The fields of all manifest files."""

    def __init__(self) -> None:
        self._roots = [json.loads(text) for text in schema_texts().values()]
        self._definitions = {k: v for root in self._roots for k, v in root["$defs"].items()}
        self.by_name: dict[str, list[Schema]] = {}
        for node in (*self._roots, *self._definitions.values()):
            for name, field in self._properties(node).items():
                self.by_name.setdefault(name, []).append(field)
        self._validator = jsonschema.Draft202012Validator({"$defs": self._definitions})

    def find(self, path: str) -> list[Schema]:
        """Return the fields at a path, which may begin in any section."""
        first, *rest = path.split(".")
        found = self.by_name.get(first, [])
        for name in rest if rest[-1:] != [ANY] else rest[:-1]:
            found = [one for field in found for one in self._below(field, name)]
        return found

    def accepts(self, field: Schema, value: Any) -> bool:
        """Check a value, in which a text with ``…`` or in capitals stands for any other."""
        if isinstance(value, str) and (ANY in value or value.isupper() or value[:1].isupper()):
            return True
        if isinstance(value, dict):
            named = [name for name in value if ANY not in name or value[name] is not None]
            names = [(name, self._below(field, name.strip(ANY))) for name in named]
            return all(any(self.accepts(one, value[n]) for one in found) for n, found in names)
        if isinstance(value, list):
            items = [one["items"] for one in self._choices(field) if "items" in one]
            return all(any(self.accepts(one, each) for one in items) for each in value)
        return self._validator.evolve(schema={**field, "$defs": self._definitions}).is_valid(value)

    def _choices(self, field: Schema) -> Iterator[Schema]:
        """Yield the alternatives of a field."""
        yield field
        nested = [*field.get("anyOf", ()), *field.get("oneOf", ()), *field.get("allOf", ())]
        if reference := field.get("$ref"):
            nested.append(self._definitions[reference.rpartition("/")[2]])
        for one in nested:
            yield from self._choices(one)

    def _properties(self, node: Schema) -> dict[str, Schema]:
        return {n: f for one in self._choices(node) for n, f in one.get("properties", {}).items()}

    def _below(self, field: Schema, name: str) -> list[Schema]:
        found = []
        for one in self._choices(field):
            one = one if "items" not in one else {"anyOf": [one["items"]]}
            for choice in self._choices(one):
                if name in choice.get("properties", {}):
                    found.append(choice["properties"][name])
                elif choice.get("type") == "object" or "additionalProperties" in choice:
                    found += choice.get("patternProperties", {}).values()
                    others = choice.get("additionalProperties", True)
                    found += [{} if others is True else others] if others else []
        return found


@cache
def fields() -> Fields:
    return Fields()


def wrong_fields(text: str) -> Iterator[str]:
    """Yield paths that no manifest has, and settings that the schema refuses."""
    for found in _DOTTED.finditer(text):
        first, *rest = found[0].split(".")
        is_other = first in _MODULES or rest[-1] in _FILES or found[0] in _OF_RECORDS
        if first in fields().by_name and not is_other and not fields().find(found[0]):
            yield f"there is no field {found[0]}"
    quoted = [found.span() for found in _QUOTED.finditer(text)]
    for found in _SETTING.finditer(text):
        path, value, before = found[1], _value(text[found.end() :]), text[: found.start()]
        is_quoted = any(begin + 1 == found.start() for begin, _ in quoted)
        is_meant = value[0] in "[{" or "_" in path or "." in path
        is_sentence = not _ENGLISH.isdisjoint((path, value)) or re.fullmatch(r"\{\w+\}", value)
        is_inside = before.count("{") > before.count("}")  # of another setting
        is_other = path.partition(".")[0] in _MODULES or path.rpartition(".")[2] in _FILES
        if is_sentence or is_inside or is_other:
            continue
        if not (is_quoted or is_meant or _VERBS.search(before)):
            continue
        try:
            given = yaml.safe_load(value)
        except yaml.YAMLError as error:
            yield f"{path}: {value} is no YAML: {error}"
            continue
        known = fields().find(path)
        if not known:
            yield f"there is no field {path}"
        elif not any(fields().accepts(one, given) for one in known):
            yield f"{path} does not take {value}"


def _value(text: str) -> str:
    """Return the value at the beginning of a text: a word, a map or a list."""
    if text[0] not in "[{":
        return re.match(rf"[\w%-]*[\w%]|{ANY}", text)[0]  # type: ignore[index]
    depth = 0
    for index, character in enumerate(text):
        depth += (character in "[{") - (character in "]}")
        if depth == 0:
            return text[: index + 1]
    return text


def wrong_words(text: str) -> Iterator[str]:
    """Yield quoted words that are neither a field, a command nor a stage."""
    known = {*fields().by_name, *COMMANDS, *_OF_DOIT, *STAGE_DOCS}
    for word in _QUOTED.findall(text):
        if re.fullmatch(r"[a-z_]+", word) and word not in known | _OTHER_WORDS:
            yield f"`{word}` is no field, command or stage"


CHECKS = (wrong_commands, wrong_options, wrong_variables, wrong_fields, wrong_words)


def test_messages_name_only_what_exists() -> None:
    found = [
        f"{one.place}: {problem} ({one.text[:120]})"
        for one in texts()
        for check in CHECKS
        for problem in check(one.text)
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "text",
    [
        "`buildsys explain --sinse main` lists them",
        "`buildsys build exprot:X` builds it",
        "`… new --form X` writes one",
        "name it with --ouptut FILE",
        "set BUILDSYS_STRICKT or leave it",
        "raise bench.niose, or repeat",
        "declare it in inputs.NAME.daat for all",
        "set calibration.algorithm: entropie",
        "use tool: onnxslimm",
        "try simplify: {toool: onnxslim}",
        "add calibration: {dataa: {…: 1}}",
        "the field `prepocess` is missing",
    ],
)
def test_a_wrong_name_is_found(text: str) -> None:
    assert [problem for check in CHECKS for problem in check(text)]
