"""Removal of releases that no channel needs, and of uploads that were given up.

A release goes in three steps: its index moves into ``releases/removed/``, so that no reader finds
it; its engines are removed; then the moved index. A killed process leaves what the next one needs
to continue. Engines that no release names stay: `buildsys publish --version` made them.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import datetime, timezone
from typing import NamedTuple

from buildsys.deploy.versions import DOCUMENT, PROVENANCE
from buildsys.errors import EngineError, StageError
from buildsys.release.channels import Pointer, earlier_release, read_history
from buildsys.release.documents import NAME
from buildsys.release.index import Index, index_name, load_index
from buildsys.store.remote_folder import RemoteFolder
from buildsys.system.signatures import TrustedKeys

_REMOVED = "releases/removed"


class Listing(NamedTuple):
    """The channels and releases at a URL, the newest release first."""

    channels: Mapping[str, list[Pointer]]
    releases: list[Index]
    problems: list[str]  # indexes that cannot be relied on

    @property
    def needed(self) -> set[str]:
        """The releases that a channel points to, or would after a rollback."""
        needed: set[str] = set()
        for history in self.channels.values():
            with suppress(StageError):
                needed.add(earlier_release(history).release)
            needed |= {pointer.release for pointer in history[-1:]}
        return needed


class Collection(NamedTuple):
    """What was removed, or would be."""

    releases: list[str]
    engines: list[str]  # folders
    uploads: list[str]  # folders of unfinished publications


def list_releases(folder: RemoteFolder, keys: TrustedKeys | None) -> Listing:
    """Read all channels and releases at a URL.

    Raises: EngineError: a channel cannot be relied on.
    """
    channels = {
        name: read_history(folder, name, keys) for name in folder.names("channels", "directory")
    }
    releases, problems = [], []
    for file in folder.names("releases", "file"):
        name = file.removesuffix(".json")
        if file.endswith(".json") and NAME.fullmatch(name):
            try:
                releases.append(load_index(folder, index_name(name), name, keys))
            except EngineError as error:
                problems.append(str(error))
    releases.sort(key=lambda index: (index.published, index.release), reverse=True)
    return Listing(channels, releases, problems)


def collect(
    folder: RemoteFolder,
    keys: TrustedKeys | None,
    *,
    keep: int,
    spared_s: float,
    dry_run: bool,
) -> Collection:
    """Remove all but the ``keep`` newest releases and those that channels need.

    What is younger than ``spared_s`` stays: it may be a publication at work.
    Raises: EngineError: a channel cannot be relied on. Exception: a problem of the place.
    """
    listing = list_releases(folder, keys)
    limit = time.time() - spared_s
    old = [
        index
        for index in listing.releases[keep:]
        if index.release not in listing.needed and _published(index) < limit
    ]
    interrupted = [
        load_index(folder, f"{_REMOVED}/{file}", file.removesuffix(".json"), keys)
        for file in folder.names(_REMOVED, "file")
    ]
    done = Collection([], [], [])
    kept = {index.release for index in listing.releases if index not in old}
    for index in [*interrupted, *old]:
        if index.release in kept:
            continue
        name, moved = index_name(index.release), f"{_REMOVED}/{index.release}.json"
        if not dry_run and index in old:
            with folder.open_to_read(name) as reader:
                content = reader.read()
            folder.write(moved, [content])
            folder.remove(name)
            if index.release in list_releases(folder, keys).needed:  # promoted meanwhile
                folder.write(name, [content])
                folder.remove(moved)
                continue
        done.releases.append(index.release)
        for variant in index.variants:
            done.engines.append(index.place(variant))
            if not dry_run:
                folder.remove(f"{done.engines[-1]}/{DOCUMENT}")
                folder.remove(done.engines[-1])
        if not dry_run:
            folder.remove(moved)
    for place in _uploads(folder, limit):
        done.uploads.append(place)
        if not dry_run:
            folder.remove(place)
    return done


def _uploads(folder: RemoteFolder, limit: float) -> Iterator[str]:
    """Yield the folders of versions that were not completed, and not written to since."""
    for model in folder.names("", "directory"):
        for engine in folder.names(model, "directory"):
            for version in folder.names(f"{model}/{engine}", "directory"):
                place = f"{model}/{engine}/{version}"
                files = folder.names(place, "file")
                is_unfinished = PROVENANCE in files and DOCUMENT not in files
                if is_unfinished and _newest(folder, place) < limit:
                    yield place


def _newest(folder: RemoteFolder, place: str) -> float:
    """Return the time of the last write in a folder, infinity if its place does not know."""
    try:
        paths = folder.system.find(f"{folder.root}/{place}")
        times = [folder.system.modified(path) for path in paths]
    except (NotImplementedError, AttributeError, KeyError, FileNotFoundError):
        return float("inf")
    return max((moment.timestamp() for moment in times), default=float("inf"))


def _published(index: Index) -> float:
    try:
        moment = datetime.strptime(index.published, "%Y-%m-%dT%H:%M:%SZ")
    except ValueError:
        return float("inf")
    return moment.replace(tzinfo=timezone.utc).timestamp()
