"""Engine presets of ``configs/engines.yaml`` and their use in ``engines:``."""

from __future__ import annotations

from collections.abc import Mapping

from buildsys.manifest.layers import merge
from buildsys.manifest.problem import Problem, expected, show_value, suggest
from buildsys.manifest.value_tree import ValueNode

Presets = Mapping[str, "ValueNode | None"]  # None: broken and already reported


def build_presets(document: ValueNode) -> tuple[dict[str, ValueNode | None], list[Problem]]:
    """Return every preset of engines.yaml, merged over its base."""
    if not isinstance(document.value, dict):
        return {}, [Problem(document.origin, expected("a map of engine presets", document.value))]
    presets: dict[str, ValueNode | None] = dict.fromkeys(document.value)
    problems: list[Problem] = []
    for name, node in document.items():
        if not isinstance(node.value, dict):
            problems.append(Problem(node.origin, expected("a map of engine fields", node.value)))
            continue
        if named := node.get("name"):
            text = "an engine preset is named by its key"
            problems.append(Problem(named.origin, text, "remove name", of_key=True))
        built = _build(document, name, (), problems)
        if built is not None:
            presets[name] = built.with_member("name", ValueNode(name, node.origin))
    return presets, problems


def _build(
    document: ValueNode, name: str, users: tuple[str, ...], problems: list[Problem]
) -> ValueNode | None:
    node = document.value[name]
    if not isinstance(node.value, dict):
        return None
    used = node.get("use")
    if used is None:
        return ValueNode(node.value, node.origin)
    if used.value in (*users, name):
        chain = " → ".join([*users, name, used.value])
        text = f"the engine preset uses itself: {chain}"
        problems.append(Problem(used.origin, text, "break the cycle"))
        return None
    if not _is_known(used, document.value, problems):
        return None
    base = _build(document, used.value, (*users, name), problems)
    return merge(base, node.without("use")) if base is not None else None


def resolve_engines(tree: ValueNode, presets: Presets | None) -> tuple[ValueNode, list[Problem]]:
    """Return the tree with every entry of ``engines`` written out.

    Entries with a broken preset are dropped, as it has been reported; ``presets`` is None if
    engines.yaml cannot be read.
    """
    engines = tree.get("engines")
    if engines is None or not isinstance(engines.value, list):
        return tree, []
    problems: list[Problem] = []
    complete = [_resolve_entry(entry, presets, problems) for entry in engines.value]
    kept = ValueNode([entry for entry in complete if entry is not None], engines.origin)
    return tree.with_member("engines", kept), problems


def _resolve_entry(
    entry: ValueNode, presets: Presets | None, problems: list[Problem]
) -> ValueNode | None:
    used = entry if isinstance(entry.value, str) else entry.get("use")
    if used is None:
        if isinstance(entry.value, dict):
            return entry
        what = "the name of an engine preset or a map of engine fields"
        problems.append(Problem(entry.origin, expected(what, entry.value)))
        return None
    if presets is None or not _is_known(used, presets, problems):
        return None
    preset = presets[used.value]
    if preset is None:
        return None
    preset = preset.with_member("name", ValueNode(used.value, used.origin))
    return preset if used is entry else merge(preset, entry.without("use"))


def _is_known(used: ValueNode, presets: Presets, problems: list[Problem]) -> bool:
    if isinstance(used.value, str) and used.value in presets:
        return True
    if isinstance(used.value, str):
        text = f"unknown engine preset {show_value(used.value)}"
        problems.append(Problem(used.origin, text, suggest(used.value, presets, what="presets")))
    else:
        problems.append(Problem(used.origin, expected("the name of an engine preset", used.value)))
    return False
