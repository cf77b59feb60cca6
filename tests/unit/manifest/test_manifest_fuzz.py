"""Mutated manifests give located errors or a valid project, and nothing else."""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_garbage import ENGINES, GOOD, _write

from buildsys.errors import ManifestErrors
from buildsys.manifest.project import load_project

ROOT = Path(__file__).resolve().parents[3]
FUZZ_S = 60
PIECES = [
    "null", "true", "~", "[]", "{}", "''", '"', "'", ":", "- ", "#", "|", ">", "? ", "%YAML 1.1\n",
    "---\n", "...\n", "&a ", "*a", "<<: *a", "&a [*a, *a]", "!!python/object/apply:os.system [id]",
    "!!binary x", "!x", "0x", "0o17", "1e999", "-1e999", ".nan", ".inf", "9" * 5000,
    "1" + "0" * 400, "-0", "1_000", "12:30:45", "2001-01-01", "\t", "\r", "\n", "  ", "\0",
    "\x1b[31m", "\x07", "\x85", "\u2028", "\u202e", "\ufeff", "\ud83d\ude00", "é", "\ufffe",
    "[" * 60, "{a: " * 60, "[" * 5000, "- " * 200, "x" * 5000, "a: &b [1, 2]\nc: *b\n",
    "{x: 1, x: 2}", "../../../etc/passwd", "s3://user:password@host", "{export.opset}",
    "on", "NO", "010", "`", "@", "\\", "${HOME}",
]  # fmt: skip


def sources() -> list[str]:
    """Return manifests to mutate: the shipped ones, and one with every section."""
    shipped = sorted((ROOT / "configs/models").rglob("*.yaml"))
    return [json.dumps(GOOD, indent=1), json.dumps(GOOD), *(path.read_text() for path in shipped)]


def mutated(text: str, choice: random.Random) -> bytes:
    """Return ``text`` with a few random edits."""
    for _ in range(choice.randint(1, 6)):
        lines = text.split("\n")
        at, other = choice.randrange(len(lines)), choice.randrange(len(lines))
        place = choice.randint(0, len(text))
        match choice.randrange(9):
            case 0:
                lines.insert(at, lines[other])
            case 1:
                del lines[at]
            case 2:
                lines[at], lines[other] = lines[other], lines[at]
            case 3:
                lines[at] = " " * choice.randint(0, 9) + lines[at].lstrip()
            case 4:
                head, colon, _ = lines[at].partition(":")
                lines[at] = f"{head}{colon} {choice.choice(PIECES)}"
            case 5:
                lines[at : at + 1] = lines[other:][: choice.randint(0, 40)]
            case 6:
                lines = [text[:place] + choice.choice(PIECES) + text[place:]]
            case 7:
                lines = [text[:place] + text[place + choice.randint(1, 40) :]]
            case _:
                lines = [text[:place] + chr(choice.randrange(0x110000)) + text[place + 1 :]]
        text = "\n".join(lines)[:200_000]
    content = text.encode(errors="surrogatepass")
    if choice.random() < 0.1:
        place = choice.randint(0, len(content))
        content = content[:place] + choice.randbytes(3) + content[place:]
    return content


def manifests(seed: int) -> Iterator[tuple[int, str, bytes]]:
    """Yield numbered mutants of random files: a manifest, its base, presets or the project's."""
    choice, texts = random.Random(seed), sources()
    settings = [json.dumps({"defaults": {"bench": {"min_samples": 3}}}), json.dumps(ENGINES)]
    number = 0
    while True:
        name = choice.choice(["models/net"] * 5 + ["models/_base", "engines", "project"])
        text = choice.choice(texts if name == "models/net" else settings)
        yield number, f"configs/{name}.yaml", mutated(text, choice)
        number += 1


def check(folder: Path, file: str, content: bytes) -> None:
    _write(folder, {"net": GOOD}, ENGINES, {})
    (folder / file).write_bytes(content)
    try:
        project = load_project(folder, remember=False)
    except ManifestErrors as errors:
        assert errors.errors
        for error in errors.errors:
            assert error.problem
            assert not error.file.is_absolute()
            assert "\n" not in str(error)
            assert len(str(error)) < 2000
            # a file that is not UTF-8 text of a fair size has no lines
            assert error.line is not None or not error.key, error
    else:
        assert all(json.loads(model.text) for model in project.models.values())


def test_mutated_manifests_give_located_errors_or_a_project(tmp_path: Path) -> None:
    for number, file, content in manifests(20_261_122):
        if number == 80:
            break
        try:
            check(tmp_path, file, content)
        except Exception as error:
            pytest.fail(f"mutant {number}, {file}: {type(error).__name__}: {error}\n{content!r}")


@pytest.mark.fuzz
def test_mutated_manifests_for_a_minute(tmp_path: Path) -> None:
    seed = int(os.environ.get("FUZZ_SEED", time.time_ns() % 10**9))
    deadline = time.monotonic() + FUZZ_S
    for number, file, content in manifests(seed):
        if time.monotonic() > deadline:
            break
        try:
            check(tmp_path, file, content)
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
            pytest.fail(f"FUZZ_SEED={seed}, mutant {number}, {file}: {problem}\n{content[:2000]!r}")
