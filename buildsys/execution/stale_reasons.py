"""Why a target is stale, as data and in words: every reason, field by field.

Nothing is looked up here: what is known of a target comes as ``Facts``. The words for a reason are here alone, so that
a run, ``doit info``, ``doit explain`` and ``doit plan`` say the same.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from buildsys.execution.action_key import ABSENT, PartChange, changed_parts

FRESH, STALE, MAY_RERUN = "fresh", "stale", "may rerun"
NEVER_BUILT, FORGOTTEN, LOST_RECORD, OTHER_KEYS = (
    "never-built",
    "forgotten",
    "lost-record",
    "other-keys",
)
FAILED, UNAVAILABLE, UNREADABLE, ASKED_FOR, UPSTREAM = (
    "failed",
    "unavailable",
    "unreadable",
    "asked-for",
    "upstream",
)
OUTPUT_MISSING, OUTPUT_EDITED, OUTPUT_ADDED = "output-missing", "output-edited", "output-added"
_KEPT_REASONS, _KEPT_CHARACTERS = 30, 200  # of a run, in its history
_SHOWN_CHARACTERS = 60  # of a value; JSON has it whole
_SHOWN_NAMES = 3  # of targets upstream, on one line
_CONTEXT = 16  # characters before the first difference of two long values
_DIGEST = re.compile(r"[0-9a-f]{32,128}")
_PREFIX = {"config": "", "source": "", "tool": ""}  # of other kinds: their name


class Reason(NamedTuple):
    """One reason for which a target is made: its kind, what it is about, and what was there before and is now."""

    kind: str  # of a part of the key: what stands before the colon of its label
    subject: str = ""  # a field, file, library, device fact or target; or a sentence
    old: str | None = None
    new: str | None = None

    def __str__(self) -> str:
        """Return ``export.opset: 17 → 18``, ``plugins/x.py changed``, ``onnx 1.21.0 → 1.23.2``."""
        text = _WORDS.get(self.kind, _tell_part)(self)
        return (
            text
            if text.isprintable()
            else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
        )


@dataclass(frozen=True)
class LastRun:
    """How a target was last made, and why."""

    status: str
    started: str  # ISO, UTC
    seconds: float
    reason: str = ""  # why it failed or is unavailable
    reasons: tuple[Reason, ...] = ()  # why it was made


@dataclass(frozen=True)
class Facts:
    """All that is known of a target at one moment."""

    target: str
    fresh: bool = False
    parts: Mapping[str, str] = field(default_factory=dict)  # of its key now
    recorded: Mapping[str, str] | None = None  # of the key of its latest record
    no_record: str = NEVER_BUILT  # why there is none: NEVER_BUILT, FORGOTTEN or LOST_RECORD
    outputs: tuple[tuple[str, str], ...] = ()  # (OUTPUT_…, path) for those that are not as recorded
    failure: str | None = None  # of its last run
    failed_as_is: bool = False  # that run had the very key of now
    unavailable: str | None = None  # why a required target could not run here
    unreadable: str = ""  # the sentence on a file that cannot be read
    last: LastRun | None = None
    expected_s: float | None = None  # the usual time of a run
    restorable: bool = False  # the store has the outputs of this key


@dataclass(frozen=True)
class Explanation:
    """What becomes of a target in the next run, and why."""

    target: str
    state: str  # FRESH, STALE or MAY_RERUN: its own key still matches, but its inputs will be made anew
    reasons: tuple[Reason, ...]
    last: LastRun | None
    expected_s: float | None
    restorable: bool


def explain(found: Iterable[Facts], after: Mapping[str, Sequence[str]]) -> dict[str, Explanation]:
    """Return the explanations of targets; ``found`` has each one after those that it takes inputs from (``after``)."""
    explained: dict[str, Explanation] = {}
    for facts in found:
        own = own_reasons(facts)
        behind = list(_upstream_reasons(after.get(facts.target, ()), explained))
        state = STALE if own else MAY_RERUN if behind else FRESH
        explained[facts.target] = Explanation(
            facts.target,
            state,
            (*own, *behind),
            facts.last,
            facts.expected_s,
            facts.restorable and bool(own),
        )
    return explained


def own_reasons(facts: Facts) -> list[Reason]:
    """Return why a target itself is stale, nothing when it is fresh."""
    if facts.fresh:
        return []
    if facts.unreadable:
        return [Reason(UNREADABLE, facts.unreadable)]
    reasons = [] if facts.failure is None else [Reason(FAILED, facts.failure)]
    if facts.recorded is None:
        return reasons or [Reason(facts.no_record)]
    reasons += part_reasons(facts.recorded, facts.parts)
    reasons += [Reason(kind, path) for kind, path in facts.outputs]
    if not reasons and facts.unavailable is not None:
        reasons.append(Reason(UNAVAILABLE, facts.unavailable))
    return reasons or [Reason(OTHER_KEYS)]


def part_reasons(old: Mapping[str, str], new: Mapping[str, str]) -> list[Reason]:
    """Return what differs between the parts of two keys."""
    return [reason for change in changed_parts(old, new) for reason in _reasons_of(change)]


def told(reasons: Iterable[Reason]) -> list[str]:
    """Return one line per reason; targets upstream that do the same share one."""
    lines: dict[tuple[str, str] | Reason, list[Reason]] = {}
    for reason in reasons:
        lines.setdefault(
            (UPSTREAM, reason.new or "") if reason.kind == UPSTREAM else reason, []
        ).append(reason)
    return [str(_joined(same)) for same in lines.values()]


def in_brief(reasons: Sequence[Reason], shown: int = 1) -> str:
    """Return the first reasons on one line, and how many more there are."""
    lines = told(reasons)
    more = f" and {len(lines) - shown} more" if len(lines) > shown else ""
    return "; ".join(lines[:shown]) + more


def encode_reasons(reasons: Sequence[Reason]) -> str:
    """Return reasons as JSON for the history; long values are cut, and of very many the first are kept."""
    kept = [
        [text[:_KEPT_CHARACTERS] if isinstance(text, str) else text for text in r]
        for r in reasons[:_KEPT_REASONS]
    ]
    return json.dumps(kept, ensure_ascii=False, separators=(",", ":"))


def decode_reasons(text: object) -> tuple[Reason, ...]:
    """Return the reasons in a history; what cannot be read is left out."""
    try:
        # older histories have a fifth field, the first changed line
        return tuple(Reason(*item[:4]) for item in json.loads(text) if _is_reason(item))  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return ()


def _is_reason(item: Any) -> bool:
    if not isinstance(item, list) or len(item) not in (4, 5):
        return False
    kind, subject, old, new = item[:4]
    return (
        isinstance(kind, str)
        and isinstance(subject, str)
        and all(value is None or isinstance(value, str) for value in (old, new))
    )


def _joined(same: Sequence[Reason]) -> Reason:
    names = [reason.subject for reason in same]
    more = f" and {len(names) - _SHOWN_NAMES} more" if len(names) > _SHOWN_NAMES else ""
    return same[0]._replace(subject=", ".join(names[:_SHOWN_NAMES]) + more)


def _upstream_reasons(
    after: Iterable[str], explained: Mapping[str, Explanation]
) -> Iterator[Reason]:
    for target in after:
        state = explained[target].state if target in explained else FRESH
        if state != FRESH:
            yield Reason(UPSTREAM, target, None, "will rerun" if state == STALE else "may rerun")


def _reasons_of(change: PartChange) -> Iterator[Reason]:
    """Yield a changed part; one that is a map (which file plays which role) entry by entry."""
    kind, colon, name = change.label.partition(":")
    old, new = _map(change.old), _map(change.new)
    if colon or old is None or new is None:
        yield Reason(kind, name if colon else kind, change.old, change.new)
        return
    for entry in sorted(old.keys() | new.keys()):
        if old.get(entry) != new.get(entry):
            yield Reason(kind, entry, old.get(entry), new.get(entry))


def _map(value: str | None) -> dict[str, str] | None:
    if value is None or not value.startswith("{"):
        return None
    try:
        found = json.loads(value)
    except ValueError:
        return None
    return {
        str(key): item if isinstance(item, str) else json.dumps(item) for key, item in found.items()
    }


def _tell_part(reason: Reason) -> str:
    """Return the words for a part of the key, of whichever kind: content by digest, or values that can be read."""
    prefix = _PREFIX.get(reason.kind, f"{reason.kind} ")
    name = reason.subject if reason.subject == reason.kind else prefix + reason.subject
    values = [value for value in (reason.old, reason.new) if value not in (None, ABSENT)]
    if reason.kind != "config" and (
        not values or all(_DIGEST.fullmatch(value or "") for value in values)
    ):
        return f"{name} {_content_change(reason)}"
    tool = reason.kind == "tool"
    unset = "not used" if tool else "unset"
    old, new = _shown_pair(_named(reason.old, unset), _named(reason.new, unset))
    return f"{name}{'' if tool else ':'} {old} → {new}"


def _content_change(reason: Reason) -> str:
    if reason.new == ABSENT:
        return "is missing"
    if reason.new is None:
        return "no longer used"
    if reason.old in (None, ABSENT):
        return "added"
    return "changed"


def _named(value: str | None, unset: str) -> str:
    return unset if value is None else "not installed" if value == ABSENT else value


def _shown_pair(old: str, new: str) -> tuple[str, str]:
    """Return two values short enough for a line: of long ones what surrounds their first difference."""
    if max(len(old), len(new)) <= _SHOWN_CHARACTERS:
        return old, new
    same = next(
        (i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b),
        min(len(old), len(new)),
    )
    start = max(0, same - _CONTEXT)
    return _cut(old, start), _cut(new, start)


def _cut(value: str, start: int = 0) -> str:
    if len(value) <= _SHOWN_CHARACTERS:
        return value
    piece = value[start : start + _SHOWN_CHARACTERS]
    return f"{'…' if start else ''}{piece}{'…' if start + _SHOWN_CHARACTERS < len(value) else ''}"


def _first_line(text: str) -> str:
    """Return a text without the list of what can be done that may follow it."""
    return next(iter(text.strip().splitlines()), "")


_WORDS: Mapping[str, Callable[[Reason], str]] = {
    NEVER_BUILT: lambda _: "never built",
    FORGOTTEN: lambda _: "forgotten by `doit forget`",
    LOST_RECORD: lambda _: "the record of its last build cannot be read",
    OTHER_KEYS: lambda _: "built by a buildsys that made its keys in another way",
    FAILED: lambda reason: f"last run failed: {' '.join(_first_line(reason.subject).split())}",
    UNAVAILABLE: lambda reason: f"required, but unavailable: {reason.subject}",
    UNREADABLE: lambda reason: reason.subject,
    ASKED_FOR: lambda _: "asked for",
    UPSTREAM: lambda reason: f"upstream: {reason.subject} {reason.new}",
    OUTPUT_MISSING: lambda reason: f"output missing: {reason.subject}",
    OUTPUT_EDITED: lambda reason: f"output edited by hand: {reason.subject}",
    OUTPUT_ADDED: lambda reason: f"output added by somebody else: {reason.subject}",
}
