"""``buildsys.resolve``: the best engine of a release for this machine, downloaded and checked.

Standard library only. What comes from the URL is untrusted: index, names, sizes, digests and
signatures are checked before a file is used, and nothing is loaded before all are.
"""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from buildsys.deploy.can_run import can_run
from buildsys.errors import EngineError, describe_os_error
from buildsys.release.channels import Pointer, channel_name, read_pointer
from buildsys.release.decision import Choice, Decision, Refusal, Wishes, decide
from buildsys.release.documents import MAX_BYTES, NAME
from buildsys.release.index import Index, Variant, index_name, read_index
from buildsys.release.places import Open, open_place, place_problem, read_place
from buildsys.system.backend_registry import Machine, Reason
from buildsys.system.compatibility import this_machine
from buildsys.system.engine_files import content_digest
from buildsys.system.files import replace_file, sha256_of
from buildsys.system.printable import mask_secrets
from buildsys.system.signatures import TrustedKeys, key_name

SCHEMA = "buildsys/resolve/1"
STABLE = "stable"
TIMEOUT_S = 30.0
_BLOCK_BYTES = 1 << 20
_SPARE_BYTES = 64 << 20  # of the disk


@dataclass(frozen=True)
class Resolution(os.PathLike[str]):
    """The engine of a release for a machine; ``load_engine`` takes it as a path.

    ``folder`` is None if nothing was downloaded.
    """

    url: str
    index: Index
    pointer: Pointer | None  # of the channel, if it was asked
    decision: Decision
    folder: Path | None = None

    @property
    def variant(self) -> Variant | None:
        """The chosen engine: the first one, once those that failed are refused."""
        return next((choice.variant for choice in self.decision.choices), None)

    def __fspath__(self) -> str:
        """Return the folder of the engine."""
        if self.folder is None:
            raise EngineError("no engine was downloaded", "call resolve without download=False")
        return str(self.folder)

    def __str__(self) -> str:
        """Format the ranked engines, and the reasons against all others."""
        signed = f", signed by {key_name(self.index.signed_by)}" if self.index.signed_by else ""
        lines = [f"{self.url}: {self._source()}{signed}"]
        for number, choice in enumerate(self.decision.choices, 1):
            lines.append(f"  {number}. {choice.variant.name}  {_describe(choice)}")
        for refusal in self.decision.refusals:
            lines.append(f"  -  {refusal.variant.name}  refused:")
            lines += [f"       {reason}" for reason in refusal.reasons]
        lines += [f"engine: {self.folder}"] if self.folder else []
        return "\n".join(lines)

    def _source(self) -> str:
        if self.pointer is None:
            return f"release {self.index.release}"
        return f"release {self.index.release} (channel {self.pointer.channel})"

    def as_json(self) -> dict[str, Any]:
        """Convert it to a JSON document."""
        pointer = self.pointer
        return {
            "schema": SCHEMA,
            "url": self.url,
            "release": self.index.release,
            "channel": pointer and {"name": pointer.channel, "serial": pointer.serial},
            "signed_by": self.index.signed_by,
            "engine": self.variant.name if self.variant else None,
            "folder": None if self.folder is None else str(self.folder),
            "ranked": [
                {
                    "engine": choice.variant.name, "backend": choice.variant.backend,
                    "precision": choice.variant.precision, "error": choice.variant.error,
                    "p50_ms": choice.p50_ms, "device": choice.device,
                    "same_device": choice.same_device, "bytes": choice.variant.bytes,
                }
                for choice in self.decision.choices
            ],
            "refused": [
                {
                    "engine": refusal.variant.name,
                    "reasons": [reason.__dict__ for reason in refusal.reasons],
                }
                for refusal in self.decision.refusals
            ],
        }  # fmt: skip


def resolve(
    url: str | os.PathLike[str],
    *,
    model: str = "",
    channel: str = STABLE,
    release: str = "",
    backend: str = "",
    precision: str = "",
    max_error: float | None = None,
    trusted_keys: Iterable[str] | None = None,
    revoked_keys: Iterable[str] = (),
    folder: str | os.PathLike[str] | None = None,
    download: bool = True,
    timeout_s: float = TIMEOUT_S,
    machine: Machine | None = None,
) -> Resolution:
    """Choose the best engine of a release that runs here, download and check it.

    ``release`` takes the place of ``channel``. Engines are ranked by latency and tried in order.
    With ``trusted_keys``, index and channel must be signed by one of them. ``folder`` keeps
    downloads, and the serial numbers of channels: an older pointer than before is refused.
    ``download=False`` only ranks, perhaps for another ``machine``.

    Raises: EngineError: the release cannot be read or trusted, or no engine of it can run.
    """
    url = os.fspath(url)
    try:
        keys = None if trusted_keys is None else TrustedKeys.of(trusted_keys, revoked_keys)
    except (ValueError, TypeError) as error:
        raise EngineError(f"wrong keys: {error}", "pass keys of `buildsys cache keygen`") from None
    for what, name in (("channel", channel), ("release", release or "1")):
        if not NAME.fullmatch(name):
            raise EngineError(f"{name!a:.100} is not a valid name of a {what}", "check it")
    cache = Path(folder) if folder is not None else _default_folder()
    open_file, shown = _opened(url, timeout_s), mask_secrets(url)
    index, pointer = read_release(open_file, channel, release, keys, shown)
    if pointer is not None and keys is not None:
        _check_serial(cache, url, pointer)
    decision = decide(
        index, machine or this_machine(), Wishes(model, backend, precision, max_error)
    )
    if not download:
        return Resolution(shown, index, pointer, decision)
    choices, refusals = list(decision.choices), list(decision.refusals)
    while choices:
        engine = _obtain(open_file, index, choices[0].variant, cache)
        tried = Decision(tuple(choices), tuple(refusals))
        if isinstance(engine, Path):
            return Resolution(shown, index, pointer, tried, engine)
        refusals.append(Refusal(choices.pop(0).variant, engine))
    raise _nothing_runs(Resolution(shown, index, pointer, Decision((), tuple(refusals))))


def read_release(
    open_file: Open, channel: str, release: str, keys: TrustedKeys | None, url: str = ""
) -> tuple[Index, Pointer | None]:
    """Read the index of a release, or of a channel's with its pointer.

    Raises: EngineError: one of them is missing, damaged, or not signed by a trusted key.
    """
    pointer = None
    if not release:
        name = f"{channel_name(channel)}.json"
        pointer = read_pointer(read_place(open_file, url, name, MAX_BYTES), channel, keys)
        release = pointer.release
    index = read_index(read_place(open_file, url, index_name(release), MAX_BYTES), release, keys)
    if pointer is not None and content_digest(index.document) != pointer.index_sha256:
        problem = f"{index_name(release)} is not the index that {channel_name(channel)} names"
        raise EngineError(problem, "promote the release again")
    return index, pointer


def _opened(url: str, timeout_s: float) -> Open:
    try:
        return open_place(url, timeout_s)
    except Exception as error:  # each protocol has its own
        hint = "check the URL"
        raise EngineError(
            f"cannot use {mask_secrets(url)}: {place_problem(error)}", hint
        ) from error


def _nothing_runs(result: Resolution) -> EngineError:
    first = "; ".join(
        f"{refusal.variant.name}: {refusal.reasons[0].problem}"
        for refusal in result.decision.refusals
    )
    hint = "`python -m buildsys.release URL` shows all reasons"
    problem = f"no engine of the {result._source()} can be used here: {first or 'it has none'}"
    return EngineError(problem, hint)


def _describe(choice: Choice) -> str:
    variant = choice.variant
    error = "" if variant.error is None else f", error {variant.error:.2g}"
    timed = "not measured on such a device"
    if choice.p50_ms is not None:
        where = "this device" if choice.same_device else choice.device
        timed = f"p50 {choice.p50_ms:.3g} ms on {where}"
    return f"{variant.backend} {variant.precision}, {timed}{error}"


def _default_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "buildsys" / "releases"


def _check_serial(cache: Path, url: str, pointer: Pointer) -> None:
    """Refuse an older pointer than the last one, and remember this one.

    Raises: EngineError: it is older, or another one of the same serial number.
    """
    place = hashlib.sha256(f"{url.rstrip('/')}\0{pointer.channel}".encode()).hexdigest()[:32]
    file, seen = cache / "channels" / f"{place}.json", (0, "")
    with suppress(OSError, ValueError, LookupError, TypeError):
        serial, release = json.loads(file.read_bytes())
        seen = int(serial), str(release)
    here = pointer.serial, pointer.release
    if pointer.serial < seen[0] or (pointer.serial == seen[0] and here != seen):
        problem = f"{channel_name(pointer.channel)} has serial {here[0]} with {here[1]}"
        problem += f", but serial {seen[0]} with {seen[1]} was seen here: an old or forged pointer"
        raise EngineError(problem, f"restore the channel; if it was made anew, delete {file}")
    if here != seen:
        try:
            replace_file(file, json.dumps(here).encode())
        except OSError as error:
            raise EngineError(describe_os_error(error)) from error


def _obtain(
    open_file: Open, index: Index, variant: Variant, cache: Path
) -> Path | tuple[Reason, ...]:
    """Return the folder of an engine that can run here, or the reasons against it.

    Raises: EngineError: the folder of downloads cannot be used.
    """
    place = index.place(variant)
    digest = hashlib.sha256(repr(sorted(variant.files.items())).encode()).hexdigest()[:16]
    target = cache / f"{variant.model}-{variant.engine}-{index.release}-{digest}"
    try:
        if not _is_whole(target, variant):
            cache.mkdir(parents=True, exist_ok=True)
            free = shutil.disk_usage(cache).free
            if variant.bytes + _SPARE_BYTES > free:
                problem = f"it has {variant.bytes:,} bytes, and {cache} has room for {free:,}"
                return (Reason("file", problem, "free some space"),)
            with tempfile.TemporaryDirectory(prefix=".partial-", dir=cache) as name:
                new = Path(name, "engine")
                new.mkdir()
                if reason := download_engine(open_file, place, variant, new):
                    return (reason,)
                with suppress(FileNotFoundError):  # a damaged one
                    target.rename(Path(name, "old"))
                try:
                    new.rename(target)
                except OSError:  # another process may have been first
                    if not _is_whole(target, variant):
                        raise
    except OSError as error:
        raise EngineError(describe_os_error(error)) from error
    result = can_run(target, digest=False)  # checked against the index, which may be signed
    return target if result else result.reasons


def _is_whole(folder: Path, variant: Variant) -> bool:
    """Compare the files of an earlier download with their digests."""
    try:
        return all(
            (folder / name).stat().st_size == size and sha256_of(folder / name) == digest
            for name, (size, digest) in variant.files.items()
        )
    except OSError:
        return False


def download_engine(open_file: Open, place: str, variant: Variant, folder: Path) -> Reason | None:
    """Copy the files of an engine; return the reason against it, if any. Raises: OSError."""
    for name, (size, digest) in variant.files.items():
        sha256, count, path = hashlib.sha256(), 0, f"{place}/{name}"
        with (folder / name).open("xb") as writer:
            try:
                # one byte more than expected shows that the file is longer
                for block in _blocks(open_file, path, size + 1):
                    sha256.update(block)
                    count += len(block)
                    writer.write(block)
            except EngineError as error:
                return Reason("file", error.problem, error.hint)
        if count != size or sha256.hexdigest() != digest:
            problem = f"{path} is not the file of the index: it has another SHA-256"
            if count != size:
                problem = f"{path} is not the file of the index, which has {size} bytes"
            return Reason("digest", problem, "publish it again as another release")
    return None


def _blocks(open_file: Open, path: str, most: int) -> Iterator[bytes]:
    """Read up to ``most`` bytes. Raises: EngineError: a problem of the place."""
    try:
        with open_file(path) as reader:
            while most and (block := reader.read(min(_BLOCK_BYTES, most))):
                most -= len(block)
                yield block
    except Exception as error:  # each protocol has its own
        problem = f"{path} cannot be downloaded: {place_problem(error)}"
        raise EngineError(problem, "check the URL") from error
