"""Templates of the pages, their filters and resources."""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from buildsys.report import formatting as q
from buildsys.report.checks import limits_text
from buildsys.report.html import charts, figures, tables
from buildsys.system.printable import printable

INDEX = "index.html"
MODEL = "model.html"
STATUS_TEXTS = {"absent": "no result", "partial": "incomplete"}
_CODE = re.compile(r"`([^`\n]+?)(?:`|(?=\.\.\.$))")  # the last one may be cut off


@cache
def environment() -> Environment:
    """Set up the environment of all templates."""
    made = Environment(
        loader=PackageLoader("buildsys.report.html"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_printable,
        trim_blocks=True,
        lstrip_blocks=True,
        cache_size=-1,
    )
    made.filters |= {
        "bar": charts.bar,
        "comparisons": tables.comparisons,
        "cosine": q.cosine,
        "count": q.count,
        "duration": q.duration,
        "error": q.error,
        "failures": tables.failures,
        "interval": q.interval,
        "latency": q.latency,
        "limits": limits_text,
        "minute": lambda text: text[:16].replace("T", " "),
        "prose": _prose,
        "sentence": lambda text: _prose(f"{text.rstrip().rstrip('.')}." if text.strip() else ""),
        "significant": q.significant,
        "size": q.size,
        "spark": charts.sparkline,
        "status": lambda status: STATUS_TEXTS.get(status, status),
        "strips": figures.error_strips,
    }
    style, script = (_resource(name) for name in ("style.css", "page.js"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    made.globals |= {
        "style": style,
        "script": script,
        "script_hash": f"sha256-{digest}",  # besides escaping, a guard against other scripts
    }
    return made


def _resource(name: str) -> Markup:
    folder = files("buildsys.report.html") / "templates"
    return Markup((folder / name).read_text("utf-8"))  # noqa: S704 - a file of ours


def _printable(value: Any) -> Any:
    is_text = isinstance(value, str) and not isinstance(value, Markup)
    return printable(value) if is_text else value


def _prose(text: str) -> Markup:
    """Write a sentence, with what is in backticks as code."""
    plain = str(escape(printable(text)))  # an escaped string would escape what is put into it
    return Markup(_CODE.sub(r"<code>\1</code>", plain))  # noqa: S704 - it is escaped
