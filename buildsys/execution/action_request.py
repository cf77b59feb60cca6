"""Action requests: targets to be built on other machines.

A request is a JSON object of the shared cache, named by its digest like every object. It holds the
action, the parts of its key, and the digests of its inputs and of the project's files. Nothing in
it was pickled, and nothing refers to a path outside of the cache.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NoReturn

from buildsys import __version__
from buildsys.errors import StageError, UsageError
from buildsys.execution.action_key import ActionKey, listed_files
from buildsys.execution.baselines import ENGINE, Baselines
from buildsys.execution.recorded_reads import READ
from buildsys.execution.stale_reasons import format_reasons, part_reasons
from buildsys.history.recorder import Checkout
from buildsys.plan.action import RESULT, Action
from buildsys.store.file_digests import DigestCache, hash_file
from buildsys.store.ledger import OutputFile
from buildsys.store.object_store import Store
from buildsys.store.record_file import (
    DIGEST,
    MAX_SHARED_BYTES,
    RecordError,
    check_name,
    output_file,
    shown,
)
from buildsys.store.shared_cache import SharedCache
from buildsys.store.signatures import SigningKey, TrustPolicy
from buildsys.system.interpreters.toolchain import override_variable
from buildsys.system.signatures import SignatureError

if TYPE_CHECKING:
    from pydantic import TypeAdapter

SCHEMA = "buildsys/action-request/1"
BUILD, STATE = "build", ".buildsys"  # folders of a materialized request, besides its files
_PAYLOAD_TYPE = "application/vnd.buildsys.action-request+json"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]{0,99}")
_STAGE = re.compile(r"[a-z]{1,30}")
_PACKAGE = str(Path(__file__).resolve().parents[1])
_BASELINE = ".baseline"  # folder of a gate's earlier engine, in the build folder
_SHOWN = 6  # differences of two keys
_REQUEST_AGAIN = "make a new request with `doit request-action`"


@dataclass(frozen=True)
class Baseline:
    """What a gate compares with."""

    described: Mapping[str, Any]  # as ``Baselines.fetch`` returns it
    files: Mapping[str, str]  # role -> path in the build folder


@dataclass(frozen=True)
class ActionRequest:
    """A target to build elsewhere."""

    schema: str
    buildsys: str  # version
    action: Action
    key: str
    parts: Mapping[str, str]  # of the key, without what the last run read
    inputs: Mapping[str, OutputFile]  # path in the build folder -> object
    files: Mapping[str, OutputFile]  # path in the project -> object
    baseline: Baseline | None = None  # of a gate
    source: Checkout | None = None  # of the project, for provenance
    signature: Mapping[str, str] | None = None

    @property
    def objects(self) -> list[OutputFile]:
        """The objects of all files, each once."""
        return list(dict.fromkeys((*self.inputs.values(), *self.files.values())))


def make_request(
    action: Action,
    key: ActionKey,
    project: Path,
    build: Path,
    store: Store,
    *,
    baselines: Baselines | None = None,
    source: Checkout | None = None,
) -> ActionRequest:
    """Return an action's request; its files go into ``store``.

    Without ``baselines``, targets whose figures belong to one project are refused.

    Raises: UsageError: the action depends on this machine or project. StageError: a file changed.
    OSError: the store cannot be written.
    """
    if action.measures and baselines is None:
        problem = f"{action.target} measures the machine that it runs on"
        raise UsageError(problem, f"run `doit {action.target}` on the machine to measure")
    if action.baseline is not None and baselines is None:
        problem = f"{action.target} compares with earlier builds of this project"
        raise UsageError(problem, f"run `doit {action.target}` here")
    refs = (*action.inputs.values(), *action.advisory.values())
    listed = [name for ref in refs if ref.folder for name in listed_files(ref, build)]
    names = (*(ref.path for ref in refs), *listed)
    inputs = {name: build / name for name in names if (build / name).exists()}
    files = dict(_project_files(action, key, project, build))

    def stored(paths: Mapping[str, Path]) -> dict[str, OutputFile]:
        found = {}
        for name, path in sorted(paths.items()):
            digest, stamp = hash_file(str(path))
            found[name] = OutputFile(digest, stamp.size)
            if not store.put(path, found[name]):
                raise StageError(f"{path} changed meanwhile", "request the target again")
        return found

    known = key.without_reads()
    parts = dict(sorted(known.parts.items()))
    action = replace(action, executor="")
    baseline = None
    with ExitStack() as stack:
        if action.baseline is not None and baselines is not None:
            folder = Path(stack.enter_context(TemporaryDirectory()))
            described, earlier = baselines.fetch(action, key.parts, store, folder)
            named = {role: f"{_BASELINE}/{path.name}" for role, path in earlier.items()}
            inputs |= {named[role]: path for role, path in earlier.items()}
            baseline = Baseline(described, named)
        kept = stored(inputs), stored(files)
    return ActionRequest(SCHEMA, __version__, action, known.digest, parts, *kept, baseline, source)


def _project_files(
    action: Action, key: ActionKey, project: Path, build: Path
) -> Iterator[tuple[str, Path]]:
    """Yield an action's project files, relative and absolute.

    Raises: UsageError: a file in the key is outside of the project.
    """
    read = (label.removeprefix(READ) for label in key.reads if label.startswith(READ))
    recorded = {os.path.normpath(project / name) for name in read}
    for path in sorted(key.covered | recorded):
        file = Path(path)
        if file.is_relative_to(build) or not file.is_file() or path.startswith(f"{_PACKAGE}/"):
            continue
        if file.is_relative_to(project):
            yield str(file.relative_to(project)), file
        elif path in key.covered:
            raise UsageError(
                f"{action.target} needs {path}, which is outside of the project",
                "move it into the project, or install it as a package on all machines",
            )


def store_content(store: Store, content: bytes) -> OutputFile:
    """Add an object to a store. Raises: OSError."""
    from blake3 import blake3

    file = OutputFile(blake3(content).hexdigest(), len(content))
    store.add(file, [content])
    return file


def sign_request(request: ActionRequest, key: SigningKey) -> ActionRequest:
    """Return a signed request. Raises: StageError: the key cannot be used."""
    return replace(request, signature=key.sign_payload(_PAYLOAD_TYPE, _payload(request)))


def encode_request(request: ActionRequest) -> bytes:
    """Return a request's bytes, in the order of its fields."""
    document = _adapter().dump_python(request, mode="json")
    return json.dumps(document, separators=(",", ":")).encode()


def checked_content(request: ActionRequest) -> bytes:
    """Return a request's bytes. Raises: UsageError: they could not be read."""
    content = encode_request(request)
    decode_request(content)
    return content


def decode_request(content: bytes) -> ActionRequest:
    """Return the request in an object. Raises: UsageError: it is not one."""
    problem, hint = "is not an action request", _REQUEST_AGAIN
    if len(content) > MAX_SHARED_BYTES:
        raise UsageError(f"the request has more than {MAX_SHARED_BYTES >> 20} MiB", hint)
    try:
        document = json.loads(content)
        made_by, is_ours = document["buildsys"], document["schema"] == SCHEMA
    except (ValueError, RecursionError, TypeError, KeyError):
        raise UsageError(f"the object {problem}", hint) from None
    if is_ours and made_by != __version__:
        problem = f"was made by buildsys {shown(made_by)}, and this is buildsys {__version__}"
        raise UsageError(f"the request {problem}", "install the same version on all machines")
    try:
        request: ActionRequest = _adapter().validate_python(document)
        # else it has unknown fields, or values of other types
        if not is_ours or encode_request(request) != content:
            raise ValueError("it is not as buildsys writes it")
        _check(request)
    except (ValueError, TypeError, RecursionError) as error:
        # the text of pydantic's errors has several lines
        reason = f": {error}" if type(error) is ValueError else ""
        raise UsageError(f"the object {problem}{reason}", hint) from None
    return request


def load_request(shared: SharedCache, digest: str, trust: TrustPolicy) -> ActionRequest:
    """Return a request of a shared cache.

    Raises: UsageError: it is missing, altered or untrusted. TemporaryError: the cache cannot be
    used.
    """
    try:
        content = shared.read_object(digest)
    except RecordError as error:
        problem = f"the request {digest} was altered: it {error}"
        raise UsageError(problem, f"remove it there, and {_REQUEST_AGAIN}") from None
    if content is None:
        raise UsageError(f"there is no request {digest}", "check the digest and the URL")
    request = decode_request(content)
    try:
        if trust.is_active:
            trust.payload_signer(request.signature, _PAYLOAD_TYPE, _payload(request))
    except SignatureError as error:
        hint = error.remedy or "sign requests with BUILDSYS_SIGNING_KEY or cache.signing_key"
        raise UsageError(f"the request {digest} {error.problem}", hint) from None
    return request


def materialize(
    request: ActionRequest,
    shared: SharedCache,
    store: Store,
    project: Path,
    digests: DigestCache,
) -> None:
    """Write a request's files into the folder ``project``, through ``store``.

    Of another request's files there, those that both have stay: after many removals ext4 takes up
    to a millisecond to create a file.

    Raises: UsageError: an object is missing or damaged. TemporaryError, OSError.
    """
    build = project / BUILD
    with store.lock(shared=True):
        shared.fetch(request.objects, store)
    places = {build / name: file for name, file in request.inputs.items()}
    places |= {project / name: file for name, file in request.files.items()}
    if lost := [path for path, file in places.items() if not store.holds(file)]:
        more = f" and {len(lost) - 1} more" if len(lost) > 1 else ""
        problem = f"the cache has no valid {lost[0].relative_to(project)}{more} of the request"
        digest = places[lost[0]].digest
        hint = f"remove the object {digest} there if it is damaged, and {_REQUEST_AGAIN}"
        raise UsageError(problem, hint)
    _remove_others(project, places)
    sizes = {str(path): file.size for path, file in places.items()}
    present = digests.digests(sizes, sizes)
    build.mkdir(exist_ok=True)
    for path, file in places.items():
        found = present[str(path)]
        if found is None or found.digest != file.digest:
            path.parent.mkdir(parents=True, exist_ok=True)
            store.fetch(file, path)


def _remove_others(project: Path, wanted: Collection[Path]) -> None:
    """Remove what is no wanted file from a folder, except empty folders.

    Raises: OSError.
    """

    def fail(error: OSError) -> NoReturn:
        raise error

    for folder, folders, files in os.walk(project, onerror=fail):
        if folder == str(project) and STATE in folders:
            folders.remove(STATE)
        for name in [*folders]:
            path = Path(folder, name)
            if path.is_symlink():
                path.unlink()
                folders.remove(name)
            elif path in wanted:
                shutil.rmtree(path)
                folders.remove(name)
        for path in (Path(folder, name) for name in files):
            if path not in wanted or path.is_symlink():
                path.unlink()


class RequestedBaselines(Baselines):
    """The baseline of the present ``request``, in place of a project's records."""

    request: ActionRequest

    def __init__(self, build: Path) -> None:
        self._folder = build

    def parts(self, action: Action, parts: Mapping[str, str]) -> dict[str, str]:
        """Return the part of the baseline, as requested."""
        del action, parts
        return {label: value for label, value in self.request.parts.items() if label == ENGINE}

    def fetch(
        self, action: Action, parts: Mapping[str, str], store: Store, folder: Path
    ) -> tuple[dict[str, Any], dict[str, Path]]:
        """Return the baseline and its files, as requested."""
        del parts, store, folder
        found = self.request.baseline
        if found is None:
            raise UsageError(f"the request of {action.target} has no baseline", _REQUEST_AGAIN)
        files = {role: self._folder / name for role, name in found.files.items()}
        return dict(found.described), files


def check_machine(request: ActionRequest, key: ActionKey) -> None:
    """Compare the key here with the requested one. Raises: UsageError: they differ."""
    if key.digest == request.key and dict(key.parts) == request.parts:
        return
    reasons = part_reasons(request.parts, key.parts)
    texts = format_reasons(reason for reason in reasons if reason.kind != "code")
    if len(texts) < len(format_reasons(reasons)):
        texts.append("other code of buildsys")
    more = f" and {len(texts) - _SHOWN} more" if len(texts) > _SHOWN else ""
    listed = "; ".join(texts[:_SHOWN]) or "the digest of the key"
    hint = "use a machine like the one that made the request, or request it from one like this"
    toolchain = request.action.toolchain
    if toolchain is not None:
        hint += f"; {override_variable(toolchain.name)} names the interpreter of its toolchain"
    problem = "this machine would build something else than requested (requested → here)"
    raise UsageError(f"{problem}: {listed}{more}", hint)


def _payload(request: ActionRequest) -> bytes:
    return encode_request(replace(request, signature=None))


@cache
def _adapter() -> TypeAdapter[Any]:
    from pydantic import TypeAdapter  # not needed by builds

    return TypeAdapter(ActionRequest)


def _check(request: ActionRequest) -> None:
    """Check what the types do not say. Raises: ValueError."""
    action = request.action
    names = (action.model, *([action.variant] if action.variant else []))
    if not _STAGE.fullmatch(action.stage) or not all(map(_NAME.fullmatch, names)):
        raise ValueError("its target has no valid name")
    if action.target != ":".join((action.stage, *names)):
        raise ValueError(f"{shown(action.target)} is not the name of its target")
    if not DIGEST.fullmatch(request.key):
        raise ValueError("its key is not a digest")
    if RESULT not in action.outputs:
        raise ValueError("its target has no result")
    for ref in (*action.inputs.values(), *action.outputs.values(), *action.advisory.values()):
        check_name(ref.path)
        if ref.folder:
            check_name(ref.folder)
    for files in (request.inputs, request.files):
        for name, file in files.items():
            check_name(name)
            output_file(list(file))
        for name in files:
            if any(str(folder) in files for folder in Path(name).parents):
                raise ValueError(f"{shown(name)} is inside another file")
    if request.baseline is not None and (
        lost := request.baseline.files.values() - request.inputs.keys()
    ):
        raise ValueError(f"it has no {shown(min(lost))}")
    if reserved := [name for name in request.files if name.split("/")[0] in (BUILD, STATE)]:
        raise ValueError(f"{shown(reserved[0])} is in a folder of buildsys")
