"""Channels: signed pointers to releases, with a history that only grows.

Each change creates ``channels/CHANNEL/SERIAL.json``, exclusively: of two processes at the same time
one gets the serial number, and the other continues from there. Readers read the copy of the newest
one, ``channels/CHANNEL.json``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from buildsys.errors import EngineError, StageError
from buildsys.release.documents import (
    MAX_BYTES,
    NAME,
    SHA256,
    WrongDocument,
    integer_of,
    read_document,
    text_of,
    to_json,
)
from buildsys.system.signatures import TrustedKeys

if TYPE_CHECKING:
    from buildsys.store.remote_folder import RemoteFolder

SCHEMA = "buildsys/channel/1"
PROMOTE, ROLLBACK = "promote", "rollback"
SignedDocument = Callable[[Mapping[str, Any], str], Mapping[str, Any]]  # of a document and its name


class Pointer(NamedTuple):
    """The release of a channel after a change."""

    channel: str
    serial: int  # of the change, from 1
    release: str
    index_sha256: str  # of the index, without its signature
    action: str
    changed: str  # when
    signed_by: str = ""


def channel_name(channel: str) -> str:
    """Return the path of a channel below the URL, without its suffix."""
    return f"channels/{channel}"


def read_pointer(content: bytes, channel: str, keys: TrustedKeys | None) -> Pointer:
    """Parse a pointer.

    Raises: EngineError: it is damaged, of another channel, or not signed by a trusted key.
    """
    name = channel_name(channel)
    document, signer = read_document(content, name, SCHEMA, keys)
    try:
        if text_of(document.get("channel"), "its channel") != channel:
            raise WrongDocument(f"it is a pointer of {document['channel']!a:.100}")
        return Pointer(
            channel,
            integer_of(document.get("serial"), "its serial", 1),
            text_of(document.get("release"), "its release", NAME),
            text_of(document.get("index_sha256"), "its index_sha256", SHA256),
            text_of(document.get("action"), "its action", re.compile(f"{PROMOTE}|{ROLLBACK}")),
            text_of(document.get("changed", ""), "its date"),
            signer,
        )
    except WrongDocument as error:
        hint = "promote a release again"
        raise EngineError(f"{name} is not a valid pointer: {error}", hint) from None


def read_history(folder: RemoteFolder, channel: str, keys: TrustedKeys | None) -> list[Pointer]:
    """Read all changes of a channel.

    Raises: EngineError: one cannot be relied on.
    """
    history: list[Pointer] = []
    while content := _read(folder, _change(channel, len(history) + 1)):
        history.append(read_pointer(content, channel, keys))
        if history[-1].serial != len(history):
            problem = f"{_change(channel, len(history))} has the serial {history[-1].serial}"
            raise EngineError(problem, "restore it from a backup of the URL")
    return history


def change_channel(
    folder: RemoteFolder,
    channel: str,
    choose: Callable[[list[Pointer]], tuple[str, str, str]],
    signed: SignedDocument,
    keys: TrustedKeys | None,
) -> Pointer:
    """Point a channel to another release.

    ``choose`` gets the history and returns action, release and digest of its index.
    Raises: EngineError: the history cannot be relied on. Exception: a problem of the place.
    """
    from buildsys.store.ledger import utc_now  # readers do without

    while True:
        history = read_history(folder, channel, keys)
        action, release, digest = choose(history)
        document = {
            "schema": SCHEMA, "channel": channel, "serial": len(history) + 1, "release": release,
            "index_sha256": digest, "action": action, "changed": utc_now(),
        }  # fmt: skip
        content = to_json(signed(document, channel_name(channel)))
        try:
            folder.create(_change(channel, len(history) + 1), content)
        except FileExistsError:  # by another process, from which this one continues
            continue
        _show_newest(folder, channel, len(history) + 1)
        return read_pointer(content, channel, None)


def _show_newest(folder: RemoteFolder, channel: str, serial: int) -> None:
    """Copy the newest change to where readers look; others may change the channel meanwhile."""
    while content := _read(folder, _change(channel, serial)):
        folder.write(f"{channel_name(channel)}.json", [content])
        serial += 1


def earlier_release(history: list[Pointer]) -> Pointer:
    """Find the release before the present one, as promotions and rollbacks left it.

    Raises: StageError: there is none.
    """
    stack: list[Pointer] = []
    for pointer in history:
        if pointer.action == ROLLBACK:
            while len(stack) > 1 and stack[-1].release != pointer.release:
                stack.pop()
        elif not stack or stack[-1].release != pointer.release:
            stack.append(pointer)
    if len(stack) < 2:
        at = f"{stack[0].release} is its first" if stack else "it has none"
        raise StageError(f"the channel has no earlier release: {at}", "promote another release")
    return stack[-2]


def _change(channel: str, serial: int) -> str:
    return f"{channel_name(channel)}/{serial}.json"


def _read(folder: RemoteFolder, path: str) -> bytes:
    """Read a file, b"" without it."""
    try:
        with folder.open_to_read(path) as reader:
            return bytes(reader.read(MAX_BYTES))
    except FileNotFoundError:
        return b""
