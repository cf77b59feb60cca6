"""buildsys publish: verified engines, copied to a URL under a version."""

import os
import re
from argparse import ArgumentParser, Namespace
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from buildsys import __version__
from buildsys.cli.command import add_json, add_names, print_answer, print_json, typed_path
from buildsys.cli.console.rows import Row, format_table, print_rows
from buildsys.cli.engine_checks import engines_of, project_reasons, required_checks
from buildsys.cli.session import BuildSession
from buildsys.cli.target_names import ModelFilter, add_filter
from buildsys.deploy.versions import EngineVersion, VersionFile, list_versions, publish_version
from buildsys.errors import StageError, UsageError
from buildsys.execution.freshness import FRESH
from buildsys.history.database import History, history_file
from buildsys.manifest.schema.base import NAME_PATTERN
from buildsys.plan.action import RESULT, Action
from buildsys.project.load import STATE_FOLDER, Project
from buildsys.report.formatting import plural, size
from buildsys.stages.table import BENCH, REPORT, target_of
from buildsys.store.ledger import ActionRecord
from buildsys.store.remote_folder import RemoteFolder, connect, place_errors
from buildsys.store.signatures import SigningKey
from buildsys.system.backend_registry import Reason
from buildsys.system.engine_files import ENVELOPE
from buildsys.system.printable import mask_secrets
from buildsys.system.signatures import TrustedKeys

SCHEMA, LIST_SCHEMA = "buildsys/publish/1", "buildsys/publish-list/1"
PROVENANCE_SCHEMA = "buildsys/provenance/1"
PUBLISHED, UNCHANGED, REFUSED, SKIPPED = "published", "unchanged", "refused", "skipped"
_REFUSED = 1
_TIMEOUT_S = 30.0  # for SFTP connections


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options of ``buildsys publish``."""
    add_names(parser, "[MODEL[:ENGINE] ...] URL --version V | --release V | --list URL")
    parser.epilog = (
        "URL is a folder (./releases) or a place of fsspec (s3://bucket/dir, sftp://host/dir).\n"
        "An engine is refused unless it matches its manifest and has passed validate, verify and\n"
        "its gates; if one is refused, none is published (exit code 1).\n"
        "`buildsys help release` has the commands for releases and their channels"
    )
    add_json(parser)
    parser.add_argument("--version", default="", help="version of the engines, such as 1.4.0")
    parser.add_argument(
        "--release",
        default="",
        help="version of the engines, and of a release of all engines of their models with it",
    )
    parser.add_argument("--list", action="store_true", help="list the published versions")
    add_filter(parser)


def run(options: Namespace) -> int:
    """Publish engines, or list the published ones."""
    only = ModelFilter.of(options)
    if options.list:
        if len(options.names) != 1 or only or options.version or options.release:
            hint = "write `buildsys publish --list URL`"
            raise UsageError("publish --list takes a URL and nothing else", hint)
        return _list(options, checked_url(options.names[0]))
    *names, url = options.names or [""]
    url = checked_url(url)
    if not (names or only):
        hint = f"name a model or MODEL:ENGINE before {url}, or `engine` for all of them"
        raise UsageError("publish takes the engines to publish", hint)
    if options.version and options.release:
        raise UsageError("--release is the version, too", "remove --version")
    version = options.release or options.version
    if not re.fullmatch(NAME_PATTERN, version):
        hint = "add --version 1.0.0: letters, digits and _ . + -, beginning with a letter or digit"
        raise UsageError(f"{version!r} is not a valid version", hint)
    session = BuildSession.read_only(options.root, names)
    engines = list(_select(session, names, only))
    release: dict[str, Any] = {}
    is_refused = any(engine.state == REFUSED for engine in engines)
    if is_refused:
        engines = [engine if engine.state else engine._replace(state=SKIPPED) for engine in engines]
    else:
        with open_url(options.root, url) as folder:
            if options.release:
                from buildsys.release.making import check_release

                names = [engine.name for engine in engines if not engine.state]
                check_release(folder, version, names, release_keys(session.project)[1])
            engines = [_publish(folder, session, engine, version) for engine in engines]
            if options.release:
                release = _release(folder, session, engines, version)
    shown_url = mask_secrets(url)
    documents = [engine.as_json() for engine in engines]
    document = {"schema": SCHEMA, "url": shown_url, "version": version, "engines": documents}
    document |= {"release": release} if release else {}
    if options.json:
        print_json(document)
    else:
        _print(engines, shown_url, version, release)
    return _REFUSED if is_refused else session.exit_code


class _Publication(NamedTuple):
    """A selected engine and its publication."""

    action: Action
    state: str = ""  # until it is published
    reasons: Sequence[Reason] = ()
    files: Mapping[str, VersionFile] = {}

    @property
    def name(self) -> str:
        """The engine as MODEL:ENGINE."""
        return f"{self.action.model}:{self.action.variant}"

    def as_json(self) -> dict[str, Any]:
        """Convert the engine for ``--json``."""
        files = {name: file.recorded.size for name, file in self.files.items()}
        reasons = [asdict(reason) for reason in self.reasons]
        return {"engine": self.name, "state": self.state, "reasons": reasons, "files": files}


def checked_url(typed: str) -> str:
    """Return the URL or folder on the command line. Raises: UsageError: it is neither."""
    if "/" not in typed:
        hint = "write s3://bucket/engines, or ./releases for a folder"
        raise UsageError("publish takes a URL or a folder as its last argument", hint)
    if "memory://" in typed:
        raise UsageError("memory:// ends with this command", "name a folder or another URL")
    return typed if "://" in typed else os.path.abspath(typed_path(typed))  # noqa: PTH100


@contextmanager
def open_url(root: Path, url: str) -> Iterator[RemoteFolder]:
    """Connect to a URL; raise StageError for a problem of its place, in one sentence."""
    hint = "check the URL, its credentials and its permissions"
    with place_errors(f"cannot use {mask_secrets(url)}", hint):
        known_hosts = root / STATE_FOLDER / "known_hosts"
        yield connect(url, known_hosts=known_hosts, timeout_s=_TIMEOUT_S)


def _publish(
    folder: RemoteFolder, session: BuildSession, engine: _Publication, version: str
) -> _Publication:
    """Publish an engine, which is then complete or absent.

    Raises: StageError: the version exists with other files, or the engine has become stale.
    """
    if engine.state:
        return engine
    action = engine.action
    records = _records(session, action)
    files = _files(session, action, records)
    provenance = _provenance(session, action, records)
    made = EngineVersion(action.model, action.variant, version, files, provenance)
    is_new = publish_version(folder, made)
    return engine._replace(state=PUBLISHED if is_new else UNCHANGED, files=files)


def _release(
    folder: RemoteFolder, session: BuildSession, engines: Sequence[_Publication], version: str
) -> dict[str, Any]:
    """Make a release of the engines' models; describe it."""
    from buildsys.release.making import document_signer, make_release

    key, keys = release_keys(session.project)
    models = {engine.action.model for engine in engines}
    index, is_new = make_release(folder, version, models, document_signer(key), keys)
    return {
        "release": version,
        "state": PUBLISHED if is_new else UNCHANGED,
        "engines": [variant.name for variant in index.variants],
        "signed": ENVELOPE in index.document,
    }


def release_keys(project: Project) -> tuple[SigningKey | None, TrustedKeys | None]:
    """Return the key that signs releases, and the keys to trust; None if nothing is checked."""
    settings = project.signing()
    key = SigningKey(settings.key) if settings.key else None
    if not settings.trusted or settings.unsigned != "refuse":
        return key, None
    own = (key.public_key,) if key else ()
    return key, TrustedKeys.of((*settings.trusted, *own), settings.revoked)


def _select(
    session: BuildSession, names: Sequence[str], only: ModelFilter
) -> Iterator[_Publication]:
    """Yield the engines of names, with the reasons against publishing them.

    Engines that cannot be built here are skipped, unless they are named.
    Raises: UsageError: there are none.
    """
    engines = engines_of(session, session.select(names, only=only))
    if not engines:
        hint = "`buildsys list engine` lists all"
        raise UsageError(f"there is no engine of {' '.join(names)}", hint)
    explained = session.explain(action.target for action in engines)
    named = {session.full_name(name) for name in names}
    are_all = all(explained[action.target].unavailable is not None for action in engines)
    for action in engines:
        unavailable = explained[action.target].unavailable
        if unavailable is None:
            reasons = list(project_reasons(session, action))
            yield _Publication(action, REFUSED if reasons else "", reasons)
        else:
            state = REFUSED if are_all or action.target in named else SKIPPED
            problem = f"{action.target} could not be built here: {unavailable}"
            remedy = f"buildsys explain {action.target}"
            yield _Publication(action, state, [Reason("unavailable", problem, remedy)])


def _others(action: Action) -> list[str]:
    """Name the targets whose results are published with an engine, if they are up to date."""
    return [target_of(BENCH, action.model, action.variant), target_of(REPORT, action.model)]


def _records(session: BuildSession, action: Action) -> dict[str, ActionRecord]:
    """Read the records of an engine, its checks, benchmark and report, and of all upstream.

    Raises: StageError: it is not up to date any more.
    """
    required = [action.target, *required_checks(session, action)]
    checker, records = session.read_only_checker(), {}
    for target, explanation in session.explain([*required, *_others(action)]).items():
        record = checker.up_to_date_record(session.actions[target])
        if record is not None and explanation.state == FRESH and explanation.noise is None:
            records[target] = record
        elif target in required:  # another process builds
            raise StageError(f"{target} has just become stale", f"buildsys build {target}")
    return records


def _files(
    session: BuildSession, action: Action, records: Mapping[str, ActionRecord]
) -> dict[str, VersionFile]:
    """List the files of a version by their names in it."""
    build, folder = session.project.build, PurePosixPath(action.outputs[RESULT].path).parent
    files = {
        str(PurePosixPath(path).relative_to(folder)): VersionFile(build / path, file)
        for path, file in records[action.target].files.items()
        if PurePosixPath(path).is_relative_to(folder)
    }
    reports = (*required_checks(session, action), *_others(action))
    for target in filter(records.__contains__, reports):
        stage, recorded = session.actions[target].stage, records[target].files
        for role, ref in session.actions[target].outputs.items():
            if ref.path in recorded:
                name = f"{stage}.json" if role == RESULT else PurePosixPath(ref.path).name
                files[f"reports/{name}"] = VersionFile(build / ref.path, recorded[ref.path])
    return files


def _provenance(
    session: BuildSession, action: Action, records: Mapping[str, ActionRecord]
) -> dict[str, Any]:
    """Describe the manifest, commit, keys and libraries of an engine."""
    history = History.read_only(history_file(session.project.state))
    key = records[action.target].key
    builds = [build for build in history.builds(target=action.target) if build.key == key]
    built = builds[-1] if builds else None  # the first build of this key
    manifest = session.project.models[action.model].data
    needed = session.needed([action.target, *required_checks(session, action)])
    return {
        "schema": PROVENANCE_SCHEMA,
        "engine": f"{action.model}:{action.variant}",
        "buildsys": __version__,
        "source": built and {
            "repository": built.project, "commit": built.revision, "dirty": built.dirty,
            "machine": built.machine,
        },
        # without the paths of interpreters
        "manifest": {name: value for name, value in manifest.items() if name != "toolchains"},
        "targets": {
            target: _target_json(record) for target, record in records.items() if target in needed
        },
    }  # fmt: skip


def _target_json(record: ActionRecord) -> dict[str, Any]:
    outputs = {name: {"blake3": f.digest, "bytes": f.size} for name, f in record.files.items()}
    return {
        "key": record.key, "status": record.status, "started": record.started,
        "seconds": record.seconds, "parts": dict(record.parts), "outputs": outputs,
    }  # fmt: skip


def _print(
    engines: Sequence[_Publication], url: str, version: str, release: Mapping[str, Any]
) -> None:
    rows = []
    for engine in engines:
        details = [f"{reason.problem}; run `{reason.remedy}`" for reason in engine.reasons]
        note = "" if engine.reasons or engine.state != SKIPPED else "as another engine is refused"
        if engine.files:
            total = size(sum(file.recorded.size for file in engine.files.values()))
            where = f"{url}/{engine.name.replace(':', '/')}/{version}"
            note = f"{where}, {plural(len(engine.files), 'file')}, {total}"
        rows.append(Row(engine.state, engine.name, details, note=note))
    counts = Counter(engine.state for engine in engines)
    states = (state for state in (PUBLISHED, UNCHANGED, SKIPPED, REFUSED) if counts[state])
    summary = ", ".join(f"{counts[state]} {state}" for state in states)
    closing = [f"{summary}; nothing was published" if counts[REFUSED] else summary]
    if release:
        signed = "" if release["signed"] else "; it is not signed: cache.signing_key names a key"
        number = plural(len(release["engines"]), "engine")
        closing += [f"{release['state']} the release {version} with {number}{signed}"]
        closing += [f"next: buildsys release promote {url} {version}"]
    print_rows(rows, closing)


def _list(options: Namespace, url: str) -> int:
    with open_url(options.root, url) as folder:
        versions = list(list_versions(folder))
    rows = [
        [
            f"{version['model']}:{version['engine']}",
            version["version"],
            version.get("problem") or str(version.get("published"))[:16].replace("T", " "),
            size(sum(file["bytes"] for file in version["files"].values())),
        ]
        for version in versions
    ]
    titles = ("engine", "version", "published (UTC)", "size>")
    lines = (
        format_table(titles, rows) if rows else [f"{mask_secrets(url)} has no published engines"]
    )
    document = {"schema": LIST_SCHEMA, "url": mask_secrets(url), "versions": versions}
    print_answer(options, document, lines)
    return 0
