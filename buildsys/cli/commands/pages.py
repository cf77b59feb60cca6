"""buildsys pages: HTML pages of models and their index, also written after a run.

They are no outputs of a target: they also show the history, failures and the states of targets,
which change without any input of the report.
"""

import base64
import json
import os
import warnings
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import partial
from io import BytesIO
from itertools import islice, zip_longest
from pathlib import Path
from types import MappingProxyType
from typing import Any

from buildsys.cli.command import add_names, print_lines, shown_path
from buildsys.cli.failure_report import current_report
from buildsys.cli.session import BuildSession
from buildsys.cli.target_names import ModelFilter, add_filter
from buildsys.errors import BuildsysError
from buildsys.execution.key_parts import FILES
from buildsys.execution.stale_reasons import (
    FOLLOWING,
    StaleReason,
    decode_reasons,
    summarize_reasons,
)
from buildsys.history.builds import Build
from buildsys.history.compare import machine_differences
from buildsys.history.database import History, history_file
from buildsys.history.recorder import machine_id
from buildsys.plan.action import Action
from buildsys.project.load import Project, names_of_broken
from buildsys.project.plan import model_of
from buildsys.report.formatting import first_names
from buildsys.report.html.figures import EngineHistory, PastBuild
from buildsys.report.html.pages import (
    INDEX,
    MACROS,
    MODEL,
    IndexRow,
    ModelPage,
    Picture,
    PipelineRow,
    environment,
    index_row,
    page_name,
    render_index,
    render_model,
)
from buildsys.report.report_types import Report, load_types, read_report
from buildsys.report.result_files import adapter
from buildsys.stages.table import BENCH, ENGINE, GATE, REPORT, VERIFY, target_of
from buildsys.store.ledger import ACCEPTED, utc_now
from buildsys.store.publish import refuse_links
from buildsys.store.state_db import warn_on_stderr
from buildsys.system.files import (
    IMAGE_FORMATS,
    IMAGE_SUFFIXES,
    read_end,
    read_limited,
    replace_file,
)

CANNOT_WRITE = "the pages cannot be written"
FOLDER = "report"  # in the build folder
BROKEN = "broken"  # the status of a row
_ROW = "<!-- row: "  # at the end of a page: its line in the index
_ROW_BYTES = 64 << 10
_MOST_BUILDS = 100
_LAST_BUILDS = 64  # enough for the causes of a model's last run
_MOST_REASONS = 2
_MOST_DIFFERENCES = 3
_MOST_SAMPLES = 12  # pictures
_THUMBNAIL_PIXELS = 96
_LARGEST_PICTURE = 60_000  # bytes inside a page


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options of ``buildsys pages``."""
    add_names(parser, "[MODEL ...]")
    add_filter(parser)


def run(options: Namespace) -> int:
    """Write the pages and print the path of the index."""
    session = BuildSession.read_only(options.root, options.names)
    selected = session.select(options.names, only=ModelFilter.of(options))
    chosen = set(map(model_of, selected))
    index = write_pages(session, [name for name in session.project.models if name in chosen])
    print_lines([f"pages: {shown_path(index)}" if index else "no model has a page"])
    return session.exit_code


def prepare() -> None:
    """Load templates and types: they take longer than a page."""
    for name in (MODEL, INDEX, MACROS):
        environment().get_template(name)
    load_types()


def update_pages(
    session: BuildSession, models: Iterable[str], reports: Mapping[str, Path] = MappingProxyType({})
) -> str:
    """Write the pages of ``models``; return a line for the console.

    ``reports`` are those of other machines, by model. A fault of a page fails no build.
    """
    try:
        index = write_pages(session, models, reports)
    except BuildsysError as error:
        return f"{CANNOT_WRITE}: {error}"
    except OSError as error:  # such as a full disk
        return f"{CANNOT_WRITE}: {error}; check the permissions and space of the build folder"
    except Exception as error:  # the border: one line, with the traceback in a file
        return f"{CANNOT_WRITE}: {session.keep_traceback('pages', error)}"
    return f"pages: {shown_path(index)}" if index else ""


def write_pages(
    session: BuildSession, models: Iterable[str], reports: Mapping[str, Path] = MappingProxyType({})
) -> Path | None:
    """Write pages and index; return the index, None without pages.

    Raises: BuildsysError, OSError: a page cannot be written.
    """
    project, folder = session.project, session.project.build / FOLDER
    refuse_links(project.build, [f"{FOLDER}/{INDEX}"])
    # a run has warned of an unreadable history when it recorded its targets
    notify: Callable[[str], None] = (lambda _: None) if session.is_run else warn_on_stderr
    with closing(History.read_only(history_file(project.state), notify)) as history:
        for model in models:
            # its text, as parsed manifests of thousands of models would stay: 60 kB each
            manifest = json.loads(project.models[model].text)
            if "html" in manifest["report"]["formats"]:
                page = _page(session, manifest, history, reports.get(model))
                row = base64.b64encode(adapter(IndexRow).dump_json(index_row(page))).decode()
                text = f"{render_model(page)}{_ROW}{row} -->\n"
                replace_file(folder / page_name(model), text.encode())
    return _write_index(folder, partial(_marked, project, names_of_broken(project)))


def remove_pages(session: BuildSession, models: Collection[str], *, dry_run: bool) -> list[Path]:
    """Remove the pages of ``models`` and their index entries; list the pages.

    Raises: StageError, OSError: the index cannot be written.
    """
    folder = session.project.build / FOLDER
    refuse_links(session.project.build, [f"{FOLDER}/{INDEX}"])
    pages = [path for model in models if (path := folder / page_name(model)).is_file()]
    if pages and not dry_run:
        project, names = session.project, names_of_broken(session.project)
        _write_index(
            folder, lambda row: None if row.model in models else _marked(project, names, row)
        )
    return pages


def _marked(project: Project, names: Mapping[str, str], row: IndexRow) -> IndexRow | None:
    """Mark the row of a broken manifest; None for a model that has no manifest."""
    if row.model in project.models:
        return row
    patterns = (name for name in names if "*" in name and fnmatchcase(row.model, name))
    if file := names.get(row.model) or names.get(next(patterns, "")):
        text = f"{project.broken[file][0]}; the last build is shown"
        return replace(row, status=BROKEN, text=text)
    return row if project.broken else None  # perhaps a name that cannot be read


def _write_index(folder: Path, mark: Callable[[IndexRow], IndexRow | None]) -> Path | None:
    """Write the index of all pages and return it; None without pages."""
    rows: list[IndexRow] = []
    for path in folder.glob("*.html"):
        text = read_end(path, _ROW_BYTES).rpartition(_ROW)[2].removesuffix(" -->\n")
        with suppress(ValueError, OSError):  # the index itself, or a file of somebody else
            row = adapter(IndexRow).validate_json(base64.b64decode(text, validate=True))
            if marked := mark(row):
                rows.append(marked)
            else:
                path.unlink()
    index = folder / INDEX
    if rows:
        replace_file(index, render_index(rows, utc_now()).encode())
        return index
    index.unlink(missing_ok=True)
    with suppress(OSError):  # not empty, or not there
        folder.rmdir()
    return None


def _page(
    session: BuildSession, manifest: Mapping[str, Any], history: History, elsewhere: Path | None
) -> ModelPage:
    project, model = session.project, str(manifest["model"])
    build = project.build
    folder = build / FOLDER

    def link(name: str) -> str:
        is_there = name and (build / model / name).is_file()
        return os.path.relpath(build / model / name, folder) if is_there else ""

    report, is_current = None if elsewhere is None else read_report(elsewhere), False
    if report is None:
        report, is_current = current_report(session, model)
    # pictures of another run may show another graph
    action = session.actions[target_of(REPORT, model)] if is_current else None
    return ModelPage(
        report=report,
        generated=utc_now(),
        pipeline=tuple(PipelineRow(n, link(n.log), link(n.file)) for n in report.summary),
        history=tuple(
            _engine_histories(history, model, [engine.name for engine in report.engines])
        ),
        history_is_readable=not history.problem,
        pictures=tuple(_pictures(action, build, folder)) if action else (),
        samples=tuple(islice(_samples(report, project.root), _MOST_SAMPLES)),
        tags=tuple(map(str, manifest.get("tags") or ())),
        owner=str(manifest.get("owner") or ""),
    )


def _pictures(report: Action, build: Path, folder: Path) -> Iterator[Picture]:
    for role, ref in report.outputs.items():
        kind, _, name = role.partition(".")
        path = build / ref.path
        if kind == "picture" and path.is_file():
            link = os.path.relpath(path, folder)
            if path.stat().st_size <= _LARGEST_PICTURE:
                # an image runs no scripts, wherever its file came from
                encoded = base64.b64encode(read_limited(path, _LARGEST_PICTURE)).decode()
                link = f"data:image/svg+xml;base64,{encoded}"
            yield Picture(f"Picture of the {name} graph", link)


def _samples(report: Report, root: Path) -> Iterator[Picture]:
    """Yield small pictures of the images of the project that tables name."""
    for own in report.tables:
        for name, cells in zip(own.images, own.rows, strict=False):
            if name.lower().endswith(IMAGE_SUFFIXES) and (small := _thumbnail(root, name)):
                encoded = base64.b64encode(small).decode()
                title = "\n".join(map(" ".join, zip(own.columns, cells, strict=True)))
                yield Picture(title, f"data:image/png;base64,{encoded}")


def _thumbnail(root: Path, name: str) -> bytes:
    """Encode a small PNG of an image inside ``root``, nothing if it cannot be read."""
    from PIL import Image  # only pages with samples need it

    small = BytesIO()
    try:
        path = (root / name).resolve().relative_to(root.resolve())
        with warnings.catch_warnings(), Image.open(root / path, formats=IMAGE_FORMATS) as image:
            warnings.simplefilter("error")  # Pillow warns of huge pictures
            image.draft("RGB", (_THUMBNAIL_PIXELS, _THUMBNAIL_PIXELS))
            image.thumbnail((_THUMBNAIL_PIXELS, _THUMBNAIL_PIXELS))
            image.convert("RGB").save(small, "PNG")
    except Exception:  # Pillow raises many classes, and a page does not need the picture
        return b""
    return small.getvalue()


def _engine_histories(
    history: History, model: str, engines: Iterable[str]
) -> Iterator[EngineHistory]:
    causes: dict[str, dict[StaleReason, None]] = {}  # by run, without what follows from others
    for build in reversed(history.builds(model=model, limit=_LAST_BUILDS)):
        reasons = decode_reasons(build.why) if build.stage != REPORT else ()
        own = (reason for reason in reasons if reason.kind not in FOLLOWING)
        causes.setdefault(build.run, {}).update(dict.fromkeys(own))
    for engine in engines:
        gates = history.builds(target=target_of(GATE, model, engine), limit=_MOST_BUILDS)
        accepted = [build for build in gates if build.status == ACCEPTED]
        yield EngineHistory(
            engine,
            *(
                tuple(_past_builds(history, target_of(stage, model, engine), limit, causes, notes))
                for stage, limit, notes in (
                    (ENGINE, 4, ()), (VERIFY, 4, ()), (BENCH, _MOST_BUILDS, accepted)
                )
            ),
        )  # fmt: skip


def _past_builds(
    history: History,
    target: str,
    limit: int,
    causes: Mapping[str, Iterable[StaleReason]],
    accepted: Sequence[Build],
) -> Iterator[PastBuild]:
    """Yield builds of one machine and its present hardware, newest first.

    It is this machine, or the last one if this has built nothing: others may have been imported.
    """
    builds = history.builds(target=target, machine_id=machine_id(), limit=limit)
    if not builds and (newest := history.builds(target=target, limit=1)):
        builds = history.builds(target=target, machine_id=newest[0].machine_id, limit=limit)
    environments = [history.environment(build) for build in builds]
    pairs = [
        (build, parts)
        for build, parts in zip(builds, environments, strict=True)
        if not machine_differences(parts, environments[0])
    ]
    for (build, parts), earlier in zip_longest(pairs, pairs[1:]):
        own = [gate for gate in accepted if gate.position > build.position]
        accepted = accepted[len(own) :]  # the newest first, too
        why = causes.get(build.run) or (decode_reasons(build.why) if build is builds[0] else ())
        yield PastBuild(
            started=build.started,
            status=build.status,
            figures=build.figures,
            commit=build.revision[:8] + ("+" if build.dirty else ""),
            why=summarize_reasons([*why], _MOST_REASONS) if why else "",
            mark=_differences(earlier[1] if earlier else parts, parts),
            accepted="; ".join(gate.reason for gate in own),
        )


def _differences(before: Mapping[str, str], after: Mapping[str, str]) -> str:
    """Describe the differences of two environments in a few words."""
    changes = [
        f"{name.partition(':')[2]} {before.get(name, 'none')} → {after.get(name, 'none')}"
        for name in sorted({**before, **after})
        if before.get(name) != after.get(name) and not name.endswith(FILES)
    ]
    return first_names(changes, _MOST_DIFFERENCES)
