"""doit request-action: one target, to be built by another machine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from buildsys.cli.command import JSON, Options, ProjectCommand, option, print_answer
from buildsys.cli.project_root import typed_path
from buildsys.cli.session import Session
from buildsys.errors import StageError, UsageError
from buildsys.execution.action_request import (
    checked_content,
    make_request,
    sign_request,
    store_content,
)
from buildsys.execution.build_cache import store_folder
from buildsys.execution.freshness import FRESH
from buildsys.manifest.project import Project
from buildsys.plan.action import Action
from buildsys.store.object_store import Store
from buildsys.store.shared_cache import READ_WRITE, SharedCache
from buildsys.store.signatures import SigningKey
from buildsys.store.state_db import warn_on_stderr

SCHEMA = "buildsys/request-action/1"
TIMEOUT_S = 600.0  # for all files of one target


class RequestAction(ProjectCommand):
    """Put a target with its inputs and code into a shared cache."""

    name = "request-action"
    doc_purpose = "put a target with its inputs and code into a store; prints its digest"
    doc_usage = "TARGET [--store URL]"
    doc_description = "Any machine with the same libraries builds it: doit help run-action"
    options = (
        option("store", "URL or folder of the shared cache; default: cache.remote"),
        JSON,
    )

    def run(self, root: Path, names: Sequence[str], options: Options) -> int:
        """Print the digest of the request."""
        session = Session.read_only(root)
        action = session.actions[session.one_target(self.name, names)]
        _check_inputs(session, action)
        key = session.read_only_checker().examine(action).key
        if key is None:
            raise StageError(f"{action.target} has a file that cannot be read", "check its files")
        project, key_file = session.project, session.project.signing().key
        shared = _shared_cache(project, options["store"])
        store = Store(store_folder(project.state))
        with store.lock(shared=True):
            folders = project.root, project.build
            request = make_request(action, key, *folders, store, source=session.checkout)
            if key_file is not None:
                request = sign_request(request, SigningKey(key_file))
            content = checked_content(request)
            own = store_content(store, content)
            shared.push_objects([*request.objects, own], store)  # the request last
        total = sum(file.size for file in request.objects)
        document = {
            "schema": SCHEMA, "target": action.target, "request": own.digest, "key": request.key,
            "inputs": len(request.inputs), "files": len(request.files), "bytes": total,
        }  # fmt: skip
        print_answer(options, document, [own.digest])
        return 0


def store_url(url: str) -> str:
    """Return a store's URL, or a folder's absolute path."""
    return url if "://" in url else str(typed_path(url).absolute())


def _shared_cache(project: Project, url: str) -> SharedCache:
    """Return the shared cache to write. Raises: UsageError: there is none."""
    settings = project.shared_cache() or {}
    if not url and not settings:
        hint = "add --store URL, or set cache.remote in configs/project.yaml"
        raise UsageError("request-action needs a shared cache", hint)
    settings = {**settings, "mode": READ_WRITE}
    settings["timeout_s"] = max(TIMEOUT_S, settings.get("timeout_s", 0.0))
    if url:
        settings["url"] = store_url(url)
    known_hosts = project.state / "known_hosts"
    return SharedCache(notify=warn_on_stderr, known_hosts=known_hosts, required=True, **settings)


def _check_inputs(session: Session, action: Action) -> None:
    """Raise UsageError for a stale or missing input."""
    states = session.explain(action.after) if action.after else {}
    if stale := [name for name in action.after if states[name].state != FRESH]:
        more = f" and {len(stale) - 1} more" if len(stale) > 1 else ""
        problem = f"{action.target} reads outputs of {stale[0]}{more}, which must be up to date"
        raise UsageError(problem, f"run `doit {stale[0]}` first")
    for ref in action.inputs.values():
        if not ref.optional and not (session.project.build / ref.path).exists():
            unavailable = (name for name in action.after if states[name].unavailable)
            maker = next(unavailable, action.after[0] if action.after else action.target)
            problem = f"{action.target} needs {ref.path}, which {maker} did not write"
            raise UsageError(problem, f"see `doit explain {maker}`")
