"""Named engine profiles of ``configs/engines.yaml``, and the entries of ``engines:`` that use them."""

from __future__ import annotations

from collections.abc import Mapping

from buildsys.manifest.problem import Problem, show_value, suggest
from buildsys.manifest.value_tree import Node, merge

Profiles = Mapping[str, "Node | None"]  # None: a profile that is broken and already reported


def build_profiles(document: Node) -> tuple[dict[str, Node | None], list[Problem]]:
    """Return every profile of engines.yaml with those that it uses laid under it; a profile's key is its name."""
    if not isinstance(document.value, dict):
        text = f"found {show_value(document.value)}; a map of engine names is wanted"
        return {}, [Problem(document.origin, text)]
    profiles: dict[str, Node | None] = dict.fromkeys(document.value)
    problems: list[Problem] = []
    for name, node in document.items():
        if not isinstance(node.value, dict):
            problems.append(
                Problem(
                    node.origin, f"found {show_value(node.value)}; a map of engine fields is wanted"
                )
            )
            continue
        if "name" in node.value:
            problems.append(
                Problem(node.value["name"].origin, "a profile's key is its name", of_key=True)
            )
        built = _build(document, name, (), problems)
        if built is not None:
            profiles[name] = built.with_member("name", Node(name, node.origin))
    return profiles, problems


def _build(
    document: Node, name: str, users: tuple[str, ...], problems: list[Problem]
) -> Node | None:
    node = document.value[name]
    if not isinstance(node.value, dict):
        return None
    used = node.get("use")
    if used is None:
        return Node(node.value, node.origin)
    if used.value in (*users, name):
        problems.append(
            Problem(
                used.origin, f"the profile uses itself: {' → '.join([*users, name, used.value])}"
            )
        )
        return None
    if not _known(used, document.value, problems):
        return None
    under = _build(document, used.value, (*users, name), problems)
    return merge(under, node.without("use")) if under is not None else None


def resolve_engines(tree: Node, profiles: Profiles | None) -> tuple[Node, list[Problem]]:
    """Return the tree with every entry of ``engines`` complete.

    ``profiles`` is None where engines.yaml is broken: entries that need it are dropped without a further error.
    """
    engines = tree.get("engines")
    if engines is None or not isinstance(engines.value, list):
        return tree, []
    problems: list[Problem] = []
    complete = [_resolve(entry, profiles, problems) for entry in engines.value]
    kept = Node([entry for entry in complete if entry is not None], engines.origin)
    return tree.with_member("engines", kept), problems


def _resolve(entry: Node, profiles: Profiles | None, problems: list[Problem]) -> Node | None:
    used = Node(entry.value, entry.origin) if isinstance(entry.value, str) else entry.get("use")
    if used is None:
        if isinstance(entry.value, dict):
            return entry
        text = f"found {show_value(entry.value)}; the name of a profile or a map of engine fields is wanted"
        problems.append(Problem(entry.origin, text))
        return None
    if profiles is None or not _known(used, profiles, problems):
        return None
    profile = profiles[used.value]
    if profile is None:
        return None
    profile = profile.with_member("name", Node(used.value, used.origin))
    return profile if isinstance(entry.value, str) else merge(profile, entry.without("use"))


def _known(used: Node, known: Mapping[str, Node | None], problems: list[Problem]) -> bool:
    if isinstance(used.value, str) and used.value in known:
        return True
    if isinstance(used.value, str):
        text = f"no engine profile is named {show_value(used.value)}"
        problems.append(Problem(used.origin, text, suggest(used.value, known, what="profiles")))
    else:
        text = f"found {show_value(used.value)}; the name of an engine profile is wanted"
        problems.append(Problem(used.origin, text))
    return False
