"""buildsys release: channels and releases at a URL, and the choice of an engine."""

import json
import re
import shutil
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from buildsys.cli.command import add_json, add_names, find_project, print_answer, typed_path
from buildsys.cli.commands.publish import checked_url, open_url, release_keys
from buildsys.cli.console.rows import format_table
from buildsys.errors import Unavailable, UsageError
from buildsys.manifest.schema.base import NAME_PATTERN
from buildsys.project.load import empty_project
from buildsys.release.__main__ import add_resolve_arguments, resolve_and_print
from buildsys.report.formatting import plural
from buildsys.system.files import replace_file
from buildsys.system.printable import mask_secrets
from buildsys.system.signatures import TrustedKeys
from buildsys.system.units import parse_duration

SCHEMA = "buildsys/release-command/1"
_KEPT = 5
Answer = tuple[dict[str, Any], Sequence[str]]


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options of ``buildsys release``."""
    add_names(parser, "SUBCOMMAND URL [RELEASE | TARGET]")
    parser.epilog = (
        "list      the releases and channels at a URL\n"
        "promote   point a channel to a release\n"
        "rollback  point a channel to its release before the present one\n"
        "gc        remove releases that no channel needs, and uploads that were given up\n"
        "resolve   rank the engines of a release for this machine, with every refusal\n"
        "triton    add the engines to the Triton model repository TARGET\n"
        "oci       make ModelPack artifacts: TARGET is a folder, or HOST/NAME to push them\n"
        "sign      copy them to TARGET, with a bundle of OpenSSF model_signing for each\n"
        "card      write a model card in Markdown; bom a CycloneDX bill of materials\n"
        "`buildsys publish … --release V` makes a release"
    )
    add_json(parser)
    add_resolve_arguments(parser)
    parser.add_argument(
        "--keep", type=int, default=_KEPT, help=f"gc: keep the newest releases (default: {_KEPT})"
    )
    parser.add_argument("--older-than", default="1d", help="gc: spare what is younger (1d)")
    parser.add_argument("--dry-run", action="store_true", help="gc: remove nothing")
    parser.add_argument("--key", default="", help="sign: private elliptic-curve key, PEM")
    parser.add_argument("--insecure", action="store_true", help="oci: push over HTTP")


def needs_project(_options: Namespace) -> bool:
    """Use the settings of the project around the folder, if there is one."""
    return find_project(Path.cwd()) is not None


def run(options: Namespace) -> int:
    """Run the subcommand."""
    commands: dict[str, tuple[Callable[..., Answer], int]] = {
        "list": (_list, 0),
        "promote": (_promote, 1),
        "rollback": (_rollback, 0),
        "gc": (_collect, 0),
        **dict.fromkeys(("triton", "oci", "sign", "card", "bom"), (_serve, 1)),
    }
    name, *others = options.names or [""]
    if name == "resolve" and len(others) == 1:
        if (keys := _trusted(options)) is not None:
            options.trusted_key, options.revoked_key = keys.trusted, keys.revoked
        return resolve_and_print(checked_url(others[0]), options)
    if name not in commands or len(others) != commands[name][1] + 1:
        hint = "run `buildsys help release` for its subcommands"
        raise UsageError("release takes a subcommand and a URL", hint)
    command, url = commands[name][0], checked_url(others[0])
    options.names = [name]
    for name in (options.channel, *(others[1:] if command is _promote else ())):
        if not re.fullmatch(NAME_PATTERN, name):
            raise UsageError(f"{name!r} is not a valid name", "use letters, digits and _ . + -")
    with open_url(options.root, url) as folder:
        document, lines = command(folder, options, *others[1:])
    document = {"schema": SCHEMA, "url": mask_secrets(url), **document}
    print_answer(options, document, lines)
    return 0


def _trusted(options: Namespace) -> TrustedKeys | None:
    """Return the keys of the command line, else those of the project; None: no check."""
    if not options.trusted_key:
        return release_keys(empty_project(options.root))[1]
    try:
        return TrustedKeys.of(options.trusted_key, options.revoked_key or ())
    except ValueError as error:
        raise UsageError(str(error), "`buildsys cache keygen FILE` prints keys") from None


def _list(folder: Any, options: Namespace) -> Answer:
    from buildsys.release.collection import list_releases

    listing = list_releases(folder, _trusted(options))
    at: dict[str, list[str]] = {}
    for channel, history in listing.channels.items():
        if history:
            at.setdefault(history[-1].release, []).append(f"{channel} ({history[-1].serial})")
    rows = [
        (
            index.release,
            index.published[:16].replace("T", " "),
            ", ".join(sorted(variant.name for variant in index.variants)),
            ", ".join(sorted(at.get(index.release, []))),
        )
        for index in listing.releases
    ]
    document = {
        "channels": {
            name: [pointer._asdict() for pointer in history]
            for name, history in listing.channels.items()
        },
        "releases": [index.document for index in listing.releases],
        "problems": listing.problems,
    }
    titles = ("release", "published (UTC)", "engines", "channels")
    lines = format_table(titles, rows) if rows else ["there are no releases"]
    return document, [*lines, *listing.problems]


def _promote(folder: Any, options: Namespace, release: str) -> Answer:
    from buildsys.release.channels import PROMOTE
    from buildsys.release.making import find_release
    from buildsys.system.engine_files import content_digest

    keys = _trusted(options)

    def digest() -> str:
        if (index := find_release(folder, release, keys)) is None:
            hint = "`buildsys release list URL` lists all"
            raise UsageError(f"there is no release {release}", hint)
        return content_digest(index.document)

    answer = _change(folder, options, lambda _: (PROMOTE, release, digest()))
    digest()  # else it was removed meanwhile
    return answer


def _rollback(folder: Any, options: Namespace) -> Answer:
    from buildsys.release.channels import ROLLBACK, Pointer, earlier_release

    def earlier(history: list[Pointer]) -> tuple[str, str, str]:
        pointer = earlier_release(history)
        return ROLLBACK, pointer.release, pointer.index_sha256

    return _change(folder, options, earlier)


def _change(folder: Any, options: Namespace, choose: Callable[[Any], Any]) -> Answer:
    from buildsys.release.channels import change_channel
    from buildsys.release.making import document_signer

    key, keys = release_keys(empty_project(options.root))
    pointer = change_channel(folder, options.channel, choose, document_signer(key), keys)
    line = f"{pointer.channel} is {pointer.release} (serial {pointer.serial})"
    return {"channel": pointer._asdict()}, [line if key else f"{line}; it is not signed"]


def _collect(folder: Any, options: Namespace) -> Answer:
    from buildsys.release.collection import collect

    try:
        spared_s = parse_duration(options.older_than)
    except ValueError:
        text = f"--older-than is {options.older_than}"
        raise UsageError(text, "write a duration such as 12h or 3d") from None
    if options.keep < 0:
        raise UsageError(f"--keep is {options.keep}", "write a number from 0")
    limits = {"keep": options.keep, "spared_s": spared_s, "dry_run": options.dry_run}
    done = collect(folder, _trusted(options), **limits)
    verb = "would remove" if options.dry_run else "removed"
    lines = [f"{verb}  release {release}" for release in done.releases]
    lines += [f"{verb}  {place}" for place in (*done.engines, *done.uploads)]
    parts = plural(len(done.releases), "release"), plural(len(done.uploads), "unfinished upload")
    lines.append(f"{verb} {' and '.join(parts)}")
    return {"dry_run": options.dry_run, **done._asdict()}, lines


def _serve(folder: Any, options: Namespace, target: str) -> Answer:
    """Make the artifacts of another program from the engines of a release."""
    from buildsys.release.resolve import read_release
    from buildsys.release.serving import fetch_engine

    index, pointer = read_release(
        folder.open_to_read, options.channel, options.release, _trusted(options)
    )
    variants = [
        variant
        for variant in index.variants
        if options.model in ("", variant.model) and options.backend in ("", variant.backend)
    ]
    if not variants:
        raise UsageError(f"the release {index.release} has no such engine", "check --model")
    with TemporaryDirectory(prefix="buildsys-serve-") as name:
        engines = [fetch_engine(folder.open_to_read, index, v, Path(name)) for v in variants]
        write = {"triton": _triton, "oci": _oci, "sign": _sign}.get(options.names[0], _describe)
        document, lines = write(engines, options, target, pointer)
    return {"release": index.release, **document}, lines


def _triton(engines: Any, _options: Namespace, target: str, pointer: Any) -> Answer:
    from buildsys.release.serving.triton import write_repository

    folder = typed_path(target)
    versions = (int(path.name) for path in folder.glob("*/*") if path.name.isdecimal())
    version = pointer.serial if pointer else max(versions, default=0) + 1
    models, refused = write_repository(engines, folder, version)
    lines = [f"wrote    {folder / name}/{version}  {', '.join(e)}" for name, e in models.items()]
    lines += [f"refused  {name}: {problem}" for name, problem in refused.items()]
    return {"version": version, "models": models, "refused": refused}, lines


def _oci(engines: Any, options: Namespace, target: str, _pointer: Any) -> Answer:
    from buildsys.release.serving.oci import push_layout, write_layout

    host, slash, _ = target.partition("/")  # as docker tells registries from names
    is_folder = not (slash and (host == "localhost" or {*host.strip(".")} & {".", ":"}))
    with TemporaryDirectory(prefix="buildsys-oci-") as name:
        layout = typed_path(target) if is_folder else Path(name)
        if is_folder and layout.exists() and any(layout.iterdir()):
            raise UsageError(f"{layout} is not an empty folder", "name a new one")
        tags = write_layout(engines, layout)
        lines = [f"wrote   {layout}:{tag}" for tag in tags.values()]
        if not is_folder:
            pushed = push_layout(layout, target, insecure=options.insecure)
            lines = [f"pushed  {reference}" for reference in pushed]
    return {"tags": tags, "target": target}, lines


def _sign(engines: Any, options: Namespace, target: str, _pointer: Any) -> Answer:
    try:
        from model_signing.signing import Config
    except ImportError as error:
        raise Unavailable("model_signing is missing", "pip install 'buildsys[openssf]'") from error
    if not options.key:
        hint = "`openssl ecparam -name prime256v1 -genkey -noout -out FILE` makes one"
        raise UsageError("release sign takes a private key with --key FILE", hint)
    config: Any = Config  # without types
    signer = config().use_elliptic_key_signer(private_key=typed_path(options.key))
    bundles = {}
    for engine in engines:
        place = typed_path(target) / engine.variant.model / engine.variant.engine
        shutil.copytree(engine.folder, place)
        bundle = place.with_name(f"{place.name}.sig")
        signer.sign(place, bundle)
        bundles[engine.variant.name] = str(bundle)
    return {"bundles": bundles}, [f"signed  {bundle}" for bundle in bundles.values()]


def _describe(engines: Any, options: Namespace, target: str, _pointer: Any) -> Answer:
    from buildsys.release.serving.card import bill_of_materials, model_card

    is_bom = options.names[0] == "bom"
    text = json.dumps(bill_of_materials(engines), indent=2) if is_bom else model_card(engines)
    replace_file(typed_path(target), text.encode())
    return {"file": target}, [f"wrote {target}"]
