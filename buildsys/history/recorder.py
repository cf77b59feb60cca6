"""Recorder of finished targets, which never fails a build, and the baselines of clean checkouts."""

import hashlib
import json
import os
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from buildsys.history.builds import Build, build_figures, read_measurements
from buildsys.history.database import History, digest_of
from buildsys.store.state_db import warn_on_stderr
from buildsys.system.git import Checkout

_ENVIRONMENT = ("device:", "tool:", "env:")  # parts of a key
CHECKOUT_FILE = "checkout.json"  # in the state folder of a project that another machine packed


class HistoryRecorder:
    """Records the targets of one run. Thread-safe.

    After a problem, such as a full disk, it records nothing more. ``manifest`` is called with the
    name of a model.
    """

    def __init__(
        self,
        history: History,
        checkout: Callable[[], Checkout],
        manifest: Callable[[str], str],
        notify: Callable[[str], None] = warn_on_stderr,
    ) -> None:
        self._history = history
        self._manifest = manifest
        self._notify = notify
        self._run = uuid.uuid4().hex
        self._machine, self._machine_id = os.uname().nodename, machine_id()
        self._guard = threading.Lock()
        self._has_failed = False
        self._known_texts: set[str] = set()
        self._checkout = Checkout()
        with suppress(Exception):  # without git, or outside of a repository
            self._checkout = checkout()

    def add(
        self,
        names: Mapping[str, Any],
        *,
        parts: Mapping[str, str],
        figures: Mapping[str, Any],
        **more: Any,
    ) -> Build | None:
        """Record a finished target.

        ``names`` are target, stage, model and variant, ``parts`` those of its key, ``figures`` the
        content of its result file, ``more`` other fields of a build. None: nothing can be recorded.
        """
        try:
            environment = _environment(parts)
            manifest = self._manifest(names["model"])
            checkout = self._checkout
            build = Build(
                id=uuid.uuid4().hex,
                position=time.time(),
                machine=self._machine,
                machine_id=self._machine_id,
                environment=digest_of(environment),
                manifest=digest_of(manifest),
                figures=build_figures(names["stage"], figures),
                **checkout._replace(run=checkout.run or self._run)._asdict(),
                **names,
                **more,
            )
            texts = {digest_of(text): text for text in (environment, manifest)}
            new = [text for digest, text in texts.items() if digest not in self._known_texts]
            self._known_texts |= texts.keys()
            with self._guard:
                if not self._has_failed:
                    self._history.add(build, texts=new)
        except Exception as error:  # a build is worth more than its record
            self._warn(error)
            return None
        return build

    def add_measurements(self, build: Build, result: Path) -> None:
        """Record the samples in the result file of a benchmark."""
        try:
            measurements = read_measurements(result)
        except Exception as error:  # the history itself is fine
            if not self._has_failed:
                self._notify(f"builds of this run are missing in the history: {error}")
            return
        try:
            with self._guard:
                if not self._has_failed:
                    self._history.add_measurements(build, measurements)
        except Exception as error:
            self._warn(error)

    def close(self) -> None:
        """Close the history."""
        self._history.close()

    def _warn(self, error: Exception) -> None:
        if not self._has_failed:
            self._has_failed = True
            self._notify(f"builds of this run are missing in the history: {error}")


def machine_id() -> str:
    """Read an id of this machine, "" if the system has none."""
    with suppress(OSError):
        number = Path("/etc/machine-id").read_text(encoding="ascii", errors="replace").strip()
        # systemd asks not to publish the number itself
        return hashlib.sha256(f"buildsys {number}".encode()).hexdigest()[:12] if number else ""
    return ""


def _environment(parts: Mapping[str, str]) -> str:
    return json.dumps({k: v for k, v in sorted(parts.items()) if k.startswith(_ENVIRONMENT)})
