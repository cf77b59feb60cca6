"""Reasons for stale targets, as data and as text.

The text of a reason is defined here only, so that a run, ``doit info``, ``buildsys explain`` and
``buildsys plan`` agree.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from buildsys.execution.action_key import ABSENT
from buildsys.execution.key_parts import FILES

NEVER_BUILT, FORGOTTEN = "never-built", "forgotten"
LOST_RECORD, OTHER_KEYS = "lost-record", "other-keys"
FAILED, UNAVAILABLE, UNREADABLE = "failed", "unavailable", "unreadable"
NOISY = "noisy"
ASKED_FOR, UPSTREAM, UNDECLARED = "asked-for", "upstream", "undeclared-read"
UNTRUSTED, REBUILD = "untrusted", "rebuild"
OUTPUT_MISSING, OUTPUT_EDITED, OUTPUT_ADDED = "output-missing", "output-edited", "output-added"
FOLLOWING = (UPSTREAM, "input", "baseline")  # kinds that follow from a change of another target
_KEPT_REASONS, _KEPT_CHARACTERS = 30, 200  # per run, in the history
_SHOWN_CHARACTERS = 60  # in a value; JSON has it whole
_SHOWN_NAMES = 3  # upstream targets on one line
_CONTEXT = 16  # characters before the first difference of two long values
# in the order of reasons
_KINDS = [
    "machines", "needs", "config", "weights", "source", "read", "input", "tool", "device", "env",
    "code",
]  # fmt: skip
_DIGEST = re.compile(r"[0-9a-f]{32,128}")
_PREFIX = {"config": "", "source": "", "tool": ""}  # other kinds are named
_NO_VALUE = {None, "null"}  # before and after
TEXTS = {
    NEVER_BUILT: "never built",
    FORGOTTEN: "forgotten by `doit forget`",
    LOST_RECORD: "the record of its last build cannot be read",
    OTHER_KEYS: "built by a version of buildsys with other keys",
    FAILED: "last run failed: {subject}",
    NOISY: "last measurement was noisy: {subject}",
    UNAVAILABLE: "required, but unavailable: {subject}",
    UNREADABLE: "{subject}",
    UNTRUSTED: "restored from a shared cache without a trusted signature",
    ASKED_FOR: "requested",
    REBUILD: "rebuild of {subject} requested",
    UNDECLARED: "{subject}",
    UPSTREAM: "upstream: {subject} {new}",
    OUTPUT_MISSING: "output missing: {subject}",
    OUTPUT_EDITED: "output edited by hand: {subject}",
    OUTPUT_ADDED: "output added by somebody else: {subject}",
}


class StaleReason(NamedTuple):
    """One reason for a stale target, with old and new value."""

    kind: str  # one of the constants above, or the kind of a key part such as "config"
    subject: str = ""  # a field, file, library, device fact, target or sentence
    old: str | None = None
    new: str | None = None

    def __str__(self) -> str:
        """Write ``export.opset: 17 → 18``, ``plugins/x.py changed``, ``onnx 1.21.0 → 1.23.2``."""
        subject = self.subject
        if self.kind in (FAILED, NOISY):  # without the remedies on the lines below
            subject = " ".join(next(iter(subject.strip().splitlines()), "").split())
        template = TEXTS.get(self.kind)
        text = template.format(subject=subject, new=self.new) if template else _describe_part(self)
        if text.isprintable():
            return text
        return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def part_reasons(old: Mapping[str, str], new: Mapping[str, str]) -> list[StaleReason]:
    """Compare two keys: fields first, code last.

    Fields of another version of buildsys that nobody has set are no reasons.
    """
    ranks = {kind: rank for rank, kind in enumerate(_KINDS)}
    changed = [label for label in old.keys() | new.keys() if old.get(label) != new.get(label)]
    reasons = []
    # other files say nothing more than another version
    implied = {f"{label}{FILES}" for label in changed if label.startswith("tool:")}
    changed = [label for label in changed if label not in implied]

    for label in sorted(changed, key=lambda label: (ranks.get(label.partition(":")[0], 99), label)):
        kind, colon, name = label.partition(":")
        before, after = old.get(label), new.get(label)
        if kind != "config" or {before, after} != _NO_VALUE:
            reasons.append(StaleReason(kind, name if colon else kind, before, after))
    return reasons


def format_reasons(reasons: Iterable[StaleReason]) -> list[str]:
    """Write one line per reason, upstream targets joined."""
    return [text for text, _ in _lines(reasons)]


def summarize_reasons(reasons: Sequence[StaleReason], listed: int = 1) -> str:
    """Write the first reasons and the number of others on one line."""
    lines = list(_lines(reasons))
    text = "; ".join(line for line, _ in lines[:listed])
    hidden = sum(count for _, count in lines[listed:])
    return f"{text} and {hidden} more" if hidden else text


def encode_reasons(reasons: Sequence[StaleReason]) -> str:
    """Encode reasons as JSON for the history, shortened."""
    shortened = [
        [text[:_KEPT_CHARACTERS] if isinstance(text, str) else text for text in reason]
        for reason in reasons[:_KEPT_REASONS]
    ]
    return json.dumps(shortened, ensure_ascii=False, separators=(",", ":"))


def decode_reasons(text: object) -> tuple[StaleReason, ...]:
    """Decode the reasons in a history, without unreadable ones."""
    reasons = []
    with suppress(TypeError, ValueError, RecursionError):
        for item in json.loads(text):  # type: ignore[arg-type]
            match item:
                # older histories have a fifth field, the first changed line
                case [str(kind), str(subject), str() | None as old, str() | None as new, *_]:
                    reasons.append(StaleReason(kind, subject, old, new))
    return tuple(reasons)


def _lines(reasons: Iterable[StaleReason]) -> Iterator[tuple[str, int]]:
    """Yield the text of each line and its number of reasons; targets upstream share one."""
    groups: dict[object, list[StaleReason]] = {}
    for reason in reasons:
        shared: object = (UPSTREAM, reason.new) if reason.kind == UPSTREAM else reason
        groups.setdefault(shared, []).append(reason)
    for same in groups.values():
        names = ", ".join(reason.subject for reason in same[:_SHOWN_NAMES])
        names += f" and {len(same) - _SHOWN_NAMES} more" if len(same) > _SHOWN_NAMES else ""
        yield str(same[0]._replace(subject=names)), len(same)


def _describe_part(reason: StaleReason) -> str:
    """Describe a changed part."""
    kind, subject, old, new = reason
    if kind == "machines":
        return f"the libraries and devices of {subject} are not known yet"
    if kind == "needs":
        return f"this machine lacks {new}" if new else f"this machine no longer lacks {old}"
    if kind == "baseline":  # a digest, or none
        return f"baseline {subject} changed"
    if kind in ("inputs", "outputs"):  # maps of roles
        return f"the list of its {kind} changed"
    where = ""
    if kind == "read":  # a digest and the line that reads it
        where = next((v.split(" ", 1)[1] for v in (new, old) if v and " " in v), "")
        old, new = (v and v.split(" ", 1)[0] for v in (old, new))
        where = f" ({where})" if where else ""
    if kind == "tool" and subject.endswith(FILES):
        return f"installed files of {subject.removesuffix(FILES)} changed"
    name = subject if subject == kind else _PREFIX.get(kind, f"{kind} ") + subject
    values = [value for value in (old, new) if value is not None and value != ABSENT]
    if kind != "config" and all(map(_DIGEST.fullmatch, values)):
        if new == ABSENT:
            return f"{name} is {'unset' if subject[:1] == '$' else 'missing'}{where}"
        if new is None:
            return f"{name} no longer used{where}"
        return f"{name} {'added' if old in (None, ABSENT) else 'changed'}{where}"
    is_tool = kind == "tool"
    names = {None: "not used" if is_tool else "unset", ABSENT: "not installed"}
    texts = [names.get(old, old or ""), names.get(new, new or "")]
    pairs = enumerate(zip(*texts, strict=False))
    start = max(0, next((place for place, (a, b) in pairs if a != b), 0) - _CONTEXT)
    end = start + _SHOWN_CHARACTERS
    before, after = (
        f"{'…' if start else ''}{value[start:end]}{'…' if end < len(value) else ''}"
        if len(value) > _SHOWN_CHARACTERS
        else value
        for value in texts
    )
    return f"{name}{'' if is_tool else ':'} {before} → {after}"
