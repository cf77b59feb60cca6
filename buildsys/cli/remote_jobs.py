"""Store, keys and answers of the commands for other machines."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from buildsys.cli.command import Options, option
from buildsys.cli.commands.request_action import TIMEOUT_S, store_url
from buildsys.cli.project_root import typed_path
from buildsys.errors import StageError, UsageError
from buildsys.execution.job_answer import Answer, encode_answer, is_name
from buildsys.execution.model_jobs import Order, decode_order
from buildsys.manifest.project import key_source
from buildsys.manifest.units import number_or_text, parse_duration
from buildsys.store.locks import private_folder
from buildsys.store.record_file import DIGEST
from buildsys.store.shared_cache import READ_WRITE, SharedCache
from buildsys.store.signatures import REFUSE, SigningKey, TrustPolicy
from buildsys.store.state_db import warn_on_stderr

# between two looks for the next request: late by a twentieth of the wait on average
_SHORTEST_S, _LONGEST_S, _GROWTH = 0.002, 0.5, 1.1
FACTS = "facts.db"  # about libraries, kept for all requests of this user
STORE_OPTIONS = (
    option("store", "URL or folder of the shared cache; default: BUILDSYS_REMOTE"),
    option("key", "private key that signs the record; default: BUILDSYS_SIGNING_KEY"),
    option("timeout", "limit for everything that is read from or added to the store (10min)"),
    option("answer", "write the outcome into the store under this name, as executors ask"),
    option("attached", "end when the standard input closes", type=bool, default=False),
)


def requests_folder() -> Path:
    """Return the folder of all requests of this user on this machine."""
    folder = private_folder("work", "set TMPDIR to a folder of yours") / "run-action"
    folder.mkdir(exist_ok=True)
    return folder


def shared_cache(command: str, options: Options, known_hosts: Path) -> SharedCache:
    """Return the store of the command line. Raises: UsageError: there is none."""
    url = options["store"] or os.environ.get("BUILDSYS_REMOTE", "")
    if not url:
        raise UsageError(f"{command} needs a store", "add --store URL, or set BUILDSYS_REMOTE")
    timeout_s = number_of_seconds(options, "timeout", TIMEOUT_S)
    return SharedCache(
        store_url(url),
        warn_on_stderr,
        mode=READ_WRITE,
        timeout_s=timeout_s,
        known_hosts=known_hosts,
        required=True,
    )


def number_of_seconds(options: Options, name: str, default: float) -> float:
    """Return a duration of the command line. Raises: UsageError: it is none."""
    if not options[name]:
        return default
    try:
        return parse_duration(number_or_text(options[name]))
    except ValueError as error:
        raise UsageError(f"--{name}: {error}", "write 600, 600s or 10min") from None


def signing_key(options: Options) -> SigningKey | None:
    """Return the signing key. Raises: UsageError: it is unusable."""
    file = options["key"] or os.environ.get("BUILDSYS_SIGNING_KEY", "")
    key = SigningKey(key_source(file, typed_path("."))) if file else None
    try:
        _ = key and key.public_key  # before anything is built
    except StageError as error:
        raise UsageError(error.problem, error.hint) from None
    return key


def trust_policy(trusted: Sequence[str], key: SigningKey | None) -> TrustPolicy:
    """Return the policy for trusted keys, and one's own.

    Raises: UsageError: one is no key.
    """
    from buildsys.manifest.schema.base import PUBLIC_KEY_PATTERN

    for text in trusted:
        if not re.fullmatch(PUBLIC_KEY_PATTERN, text):
            hint = "`doit cache keygen FILE` prints public keys, ed25519: and 44 characters"
            raise UsageError(f"--trusted-key {text} is not a public key", hint)
    own = [key.public_key] if key else []
    return TrustPolicy([*trusted, *own] if trusted else [], REFUSE)


def request_digest(command: str, names: Sequence[str], made_by: str) -> str:
    """Return the digest on the command line. Raises: UsageError."""
    if len(names) != 1 or not DIGEST.fullmatch(names[0]):
        problem = f"{command} takes the digest of one request, 64 hexadecimal digits"
        raise UsageError(problem, f"{made_by} prints it")
    return names[0]


@dataclass(frozen=True)
class RequestPlace:
    """Where requests come from, and what this machine keeps for all of them."""

    shared: SharedCache
    key: SigningKey | None
    trust: TrustPolicy
    folder: Path  # of this user

    @classmethod
    def of(cls, options: Options) -> RequestPlace:
        """Return the place on the command line. Raises: UsageError."""
        key = signing_key(options)
        trust = trust_policy(options["trusted_key"], key)
        folder = requests_folder()
        return cls(shared_cache("run-action", options, folder / "known_hosts"), key, trust, folder)


def answer_name(options: Options) -> str:
    """Return the answer's name, "" for none. Raises: UsageError."""
    name: str = options["answer"]
    if name and not is_name(name):
        raise UsageError(f"--answer {name} is not a name", "write 32 hexadecimal digits")
    return name


def write_answer(
    shared: SharedCache, answer: Answer, key: SigningKey | None, *, with_gpus: bool
) -> None:
    """Add an answer to the store. Raises: StageError, TemporaryError."""
    machine = this_machine(with_gpus=with_gpus)
    content = encode_answer(replace(answer, machine=machine), key)
    shared.write_answer(answer.name, content)


def next_order(shared: SharedCache, answer: str, limit_s: float) -> Order | None:
    """Wait for what follows an answer; return None if nothing does."""
    deadline, pause_s = time.monotonic() + limit_s, _SHORTEST_S
    while (content := shared.read_order(answer)) is None and time.monotonic() < deadline:
        time.sleep(pause_s)
        pause_s = min(pause_s * _GROWTH, _LONGEST_S)
    return decode_order(content) if content is not None else None


def this_machine(*, with_gpus: bool) -> dict[str, str]:
    """Return name and id of this machine, and its GPUs: asking their driver takes 0.1 s."""
    from buildsys.history.recorder import machine_id
    from buildsys.system.devices import visible_gpus

    counts = Counter(gpu["name"] for gpu in visible_gpus()) if with_gpus else {}
    gpus = [f"{count}x {name}" if count > 1 else name for name, count in counts.items()]
    return {"name": os.uname().nodename, "id": machine_id(), "gpus": ", ".join(gpus)}


def end_with_stdin(options: Options) -> None:
    """End this process with its standard input, if so requested."""

    def watch() -> None:
        # not sys.stdin: at its end, Python would wait for the lock of this thread, and abort
        while os.read(0, 1 << 10):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    if options["attached"]:
        threading.Thread(target=watch, daemon=True, name="stdin").start()
