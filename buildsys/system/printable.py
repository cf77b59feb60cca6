"""Text from outside, made safe to print: without control characters and secrets.

Names in models, messages of libraries and manifests may contain anything. JSON output keeps them
as they are, because ``json.dumps`` escapes them; everything that a terminal or a page shows goes
through ``printable``.
"""

import re
from collections.abc import Iterable
from typing import TextIO

# Control characters except tab and newline, characters that reorder or hide others, surrogates,
# and two that XML does not allow.
_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f"
    "\ud800-\udfff\ufeff\ufff9-\ufffb\ufffe\uffff\U000e0000-\U000e007f]"
)

_SHORTEST_PART = 3  # shorter parts suggest too many names
_MASK = "***"
_LOGIN = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(?=[^/?#]*[:@])(.*)@", re.DOTALL)
_QUERY = re.compile(r"[?#].*", re.DOTALL)
_VALUE = re.compile(r"(?<==)[^&;#]+")
_USER_IS_PUBLIC = ("sftp", "ssh", "ftp")  # elsewhere a user without password may be a token
_IN_TEXT = re.compile(r"""[^\s'"<>(),]{1,99}://[^\s'"<>]*""")
_ENCODED_LOGIN = re.compile(r"(?i)(%3A)(?:(?!%2F|%40)\S){1,999}(%40)")
_KEY_LIKE = re.compile(r"(?=.*\d)[\w.~+=-]{12,}")  # a user that is rather a token or an access key
_QUOTED = r"""b?'(?:[^'\\]|\\.)*' | b?"(?:[^"\\]|\\.)*" | \\"[^"]*\\" """
_NAME = (
    r"(?:pass(?:word|wd|phrase|code)?|pwd?|key|secret|token|"
    r"credentials?|sig(?:nature)?|auth|bearer)"
)
_SECRETS = tuple(
    re.compile(f"(?isx) {pattern}")
    for pattern in (
        r"(-----BEGIN [^-]*PRIVATE\ KEY-----) .*? (?=-----END|\Z)",
        # headers, as text to the end of the line, and in a dict or list
        rf"""(\b(?:authorization|cookie)\b ['"]? \s*[:=,]\s*) (?: {_QUOTED} | [^\n]+ )""",
        r"(\b(?:bearer|basic|digest|negotiate)\ +) (?!auth|token|realm|scheme) [\w.~+/=-]{8,}",
        r"((?<!\S)(?:-u|-{2}user)[ =]+) [^\s:]+:\S+",
        # options of storage libraries, as in S3FileSystem(key='…') and {"token": "…"}
        rf"""(\b[\w-]{{0,40}}{_NAME} (?: [\\]?['"]?\s*[=:]\s* | ['"]\s*,\s* | >))
        (?: {_QUOTED} | \([^)]*\) | \{{[^}}]*\}} | \[[^]]*\] | [^\s,;&)}}\]'"<]+ )""",
        # an option of a program; words that look like secrets after their names
        rf"""(-[\w-]{{0,40}}{_NAME}\ +) (?: {_QUOTED} | \S+ )""",
        rf"(\b{_NAME}\ +(?:(?:is|was)\ +)?) (?=[^\s/]*\d) [\w.~+=-]{{8,}}",
        # tokens of known services, and JSON Web Tokens
        r"\b(gh[a-z]_|github_pat_|glpat-|hf_|sk-|xox[a-z]-|AKIA|ASIA|eyJ) [\w.~+/=-]{8,}",
    )
)


def tolerate_other_encodings(*streams: TextIO) -> None:
    """Let streams in ASCII or Latin-1 print a question mark where they would fail."""
    for stream in streams:
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")


def printable(text: str) -> str:
    """Replace unsafe characters. Lines stay lines."""
    if text.isascii() and text.isprintable():  # nearly always, and three times as fast
        return text
    return _UNSAFE.sub("\N{REPLACEMENT CHARACTER}", text)


def printable_line(text: str) -> str:
    """Make one printable line."""
    return printable(text.replace("\n", " "))


def mask_secrets(url: str) -> str:
    """Mask the passwords and query values of a URL, perhaps a chained one.

    A password may contain any character: everything from the first colon to the last ``@`` counts.
    """
    url = _LOGIN.sub(_mask_login, url)
    return _QUERY.sub(lambda query: _VALUE.sub(_MASK, query[0]), url)


def _mask_login(match: re.Match[str]) -> str:
    user, colon, _ = match[2].partition(":")
    is_public = match[1].lower() in _USER_IS_PUBLIC or (colon and not _KEY_LIKE.fullmatch(user))
    return f"{match[1]}://{user if is_public else _MASK}{f':{_MASK}' if colon else ''}@"


def mask_text(text: str) -> str:
    """Mask what looks like a secret in a message; prose and paths of URLs are not recognized."""
    if "://" in text:
        text = _IN_TEXT.sub(lambda match: mask_secrets(match[0]), text)
    text = _ENCODED_LOGIN.sub(rf"\g<1>{_MASK}\g<2>", text)
    for pattern in _SECRETS:
        text = pattern.sub(rf"\g<1>{_MASK}", text)
    return text


def nearest(name: str, known: Iterable[str], count: int = 3, cutoff: float = 0.6) -> list[str]:
    """List the known names most similar to ``name``, best first.

    Names that differ only in case follow, then (if ``count`` > 1) those that contain ``name``.
    """
    import difflib  # only needed for errors

    names = list(dict.fromkeys(known))
    close = difflib.get_close_matches(name, names, n=count, cutoff=cutoff)
    close += [other for other in names if other.lower() == name.lower()]
    if count > 1 and len(name) >= _SHORTEST_PART:
        close += [other for other in names if name in other]
    return list(dict.fromkeys(close))[:count]


def did_you_mean(
    name: str, known: Iterable[str], otherwise: str = "", *, cutoff: float = 0.5
) -> str:
    """Suggest the known names most similar to ``name``."""
    near = nearest(name, known, cutoff=cutoff)
    return f"did you mean {' or '.join(near)}?" if near else otherwise
