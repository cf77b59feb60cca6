"""Seeded random changes of JSON documents and of the bytes of files."""

import copy
import json
import os
import random
import time
from collections.abc import Iterator
from typing import Any

STRANGE: list[Any] = [
    None, True, False, 0, -1, 1, 10**20, 10**400, 0.5, -0.0, 1e308, float("inf"), float("nan"),
    "", "a", "\0", "\x1b[31m", "\ud800", "\udc80", "é" * 300, "../../x", "/etc/passwd",
    "x" * 70_000, "d" * 64, "passed", "unavailable", "failed", "2026-01-01T00:00:00Z", [], {}, [[]],
    {"": None}, ["d" * 64, 5], json.loads("[" * 300 + "]" * 300), list(range(2000)),
]  # fmt: skip


def seeds(fixed: int, default_s: float) -> Iterator[random.Random]:
    """Yield generators for ``default_s`` seconds, at least 20; FUZZ_SEED repeats one."""
    if chosen := os.environ.get("FUZZ_SEED"):
        yield random.Random(int(chosen))
        return
    end, seed = time.monotonic() + default_s, fixed
    while seed < fixed + 20 or time.monotonic() < end:
        draw = random.Random(seed)
        try:
            yield draw
        except GeneratorExit:  # the test failed, or was interrupted
            print(f"FUZZ_SEED={seed} repeats it")
            raise
        seed += 1


def mutated(document: Any, draw: random.Random) -> Any:
    """Return a copy of a document with one to three changes."""
    root = [copy.deepcopy(document)]
    for _ in range(draw.randint(1, 3)):
        place: Any = root
        key: Any = 0
        while isinstance(place[key], (dict, list)) and place[key] and draw.random() < 0.75:
            place = place[key]
            key = draw.choice(list(place) if isinstance(place, dict) else range(len(place)))
        change = draw.choice(["replace", "replace", "delete", "add", "swap"])
        if change == "delete" and place is not root:
            del place[key]
        elif change == "add" and isinstance(place, dict):
            place[draw.choice(["x", "", "\0", "../x", "schema", "status"])] = draw.choice(STRANGE)
        elif change == "swap":
            others = [one for one in _leaves(root) if type(one) is type(place[key])]
            place[key] = copy.deepcopy(draw.choice(others or STRANGE))
        else:
            place[key] = copy.deepcopy(draw.choice(STRANGE))
    return root[0]


def damaged(content: bytes, draw: random.Random) -> bytes:
    """Return bytes with a few changes, cut, or repeated."""
    how = draw.choice(["flip", "cut", "insert", "repeat", "empty"])
    at = draw.randrange(len(content) + 1)
    if how == "flip" and content:
        at = min(at, len(content) - 1)
        return content[:at] + bytes([content[at] ^ (1 << draw.randrange(8))]) + content[at + 1 :]
    if how == "cut":
        return content[:at]
    if how == "insert":
        return content[:at] + draw.randbytes(draw.randint(1, 20)) + content[at:]
    return content * 3 if how == "repeat" else b""


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, (dict, list)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _leaves(item)
    else:
        yield value
