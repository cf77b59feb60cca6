"""Templates of the pages, their filters and resources."""

from __future__ import annotations

import base64
import hashlib
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import (
    Environment,
    FileSystemBytecodeCache,
    PackageLoader,
    StrictUndefined,
    pass_context,
)
from jinja2.bccache import Bucket
from jinja2.runtime import Context
from markupsafe import Markup

from buildsys.report import formatting as q
from buildsys.report.html import elements, svg, tables
from buildsys.system.printable import printable

INDEX = "index.html"
MODEL = "model.html"
STATUS_TEXTS = {"absent": "no result", "partial": "incomplete"}


class _CompiledTemplates(FileSystemBytecodeCache):
    """Compiled templates next to our compiled modules: compiling takes longer than rendering."""

    def __init__(self) -> None:
        super().__init__(str(Path(__file__).with_name("__pycache__")), "template-%s.cache")

    def dump_bytecode(self, bucket: Bucket) -> None:
        """Write a compiled template, if the folder can be written."""
        with suppress(OSError):
            super().dump_bytecode(bucket)


def load_templates() -> None:
    """Load the templates, or compile them."""
    for name in (MODEL, INDEX):
        environment().get_template(name)


@cache
def environment() -> Environment:
    """Return the environment of all templates."""
    made = Environment(
        loader=PackageLoader("buildsys.report.html"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_printable,
        trim_blocks=True,
        lstrip_blocks=True,
        cache_size=-1,
        bytecode_cache=_CompiledTemplates(),
    )
    made.filters |= {
        "duration": q.duration, "size": q.size, "significant": q.significant, "error": q.error,
        "count": q.count, "cosine": q.cosine,
        "status": lambda status: STATUS_TEXTS.get(status, status),
        "bar": svg.bar, "spark": svg.sparkline, "sentence": _sentence,
        "prose": elements.prose, "interval": q.interval, "latency": q.latency,
        "limits": tables.limits, "comparisons": tables.comparisons,
        "failures": tables.failures, "minute": lambda text: text[:16].replace("T", " "),
        "source": _source, "csp_hash": _csp_hash,
    }  # fmt: skip
    made.globals |= {"table": elements.table, "notes": elements.notes}
    return made


@pass_context  # or Jinja would keep the content in the compiled template, also after its change
def _source(_: Context, name: str) -> Markup:
    """Return a file of the templates unchanged: styles or a script."""
    loader = environment().loader
    assert loader is not None
    return Markup(loader.get_source(environment(), name)[0])  # noqa: S704 - a file of ours


@pass_context
def _csp_hash(context: Context, name: str) -> str:
    """Return a script's hash: besides escaping, a guard against other scripts."""
    digest = hashlib.sha256(_source(context, name).encode()).digest()
    return "sha256-" + base64.b64encode(digest).decode()


def _printable(value: Any) -> Any:
    is_text = isinstance(value, str) and not isinstance(value, Markup)
    return printable(value) if is_text else value


def _sentence(text: str) -> Markup:
    return elements.prose(f"{text.rstrip().rstrip('.')}." if text.strip() else "")
