"""URLs for messages, without the secrets in them."""

from __future__ import annotations

import re

_MASK = "***"
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_SEGMENT = re.compile(r"[/?#]")
_VALUE = re.compile(r"(?<==)[^&;#]+")
_USER_IS_PUBLIC = ("sftp", "ssh", "ftp")  # elsewhere a user without password may be a token
_IN_TEXT = re.compile(r"""[^\s'"<>(),]+://[^\s'"<>]*""")
# options of storage libraries, as in ``S3FileSystem(key='…', secret='…')`` and ``{"token": "…"}``
_OPTION = re.compile(
    r"""(?ix) (\b[\w-]*(?:key|secret|token|password|passwd|passphrase|credentials?|signature|sig)
    ['"]?\s*[=:]\s*) (?: '[^']*' | "[^"]*" | [^\s,;&)}\]'"]+ )"""
)


def mask_secrets(url: str) -> str:
    """Return a URL, perhaps chained, without passwords and values of its query.

    A password may contain any character: everything from the first colon to the last ``@`` counts
    as one, where both exist before or after the first slash.
    """
    parts: list[str] = []
    for part in url.split("::"):
        if parts and "://" in parts[-1] and not _SCHEME.match(part):
            parts[-1] += f"::{part}"  # of a password with two colons
        else:
            parts.append(part)
    return "::".join(map(_mask_part, parts))


def mask_text(text: str) -> str:
    """Return a message with masked URLs and options."""
    if "://" in text:
        text = _IN_TEXT.sub(lambda found: mask_secrets(found[0]), text)
    return _OPTION.sub(rf"\g<1>{_MASK}", text)


def _mask_part(part: str) -> str:
    scheme = found[0] if (found := _SCHEME.match(part)) else ""
    rest = part[len(scheme) :]
    first = _SEGMENT.split(rest, maxsplit=1)[0]
    login = ""
    if scheme and "@" in rest and (":" in first or "@" in first):
        before, _, rest = rest.rpartition("@")
        user, colon, _ = before.partition(":")
        public = scheme.rstrip(":/").lower() in _USER_IS_PUBLIC or bool(colon)
        login = f"{user if public else _MASK}{f':{_MASK}' if colon else ''}@"
    path, *query = re.split(r"([?#])", rest, maxsplit=1)
    return f"{scheme}{login}{path}{_VALUE.sub(_MASK, ''.join(query))}"
