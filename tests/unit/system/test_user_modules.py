"""Where references to user code lead, by layout of the repository."""

import importlib
import sys
from pathlib import Path

import pytest

from buildsys.system.user_modules import locate, source_of, split_reference

# files of a repository, whose project is in `p`, with an `e` on the module path
LAYOUTS: dict[str, tuple[str, str, list[tuple[str, str, str, str]]]] = {
    # files; setting `code`; rows of source, name to import by, file and root
    "scripts": ("p/net.py p/plugins/models/net.py p/my-net.py p/v1.2/net.py", "", [
        ("net.py", "net", "p/net.py", "p"),
        ("plugins/models/net.py", "plugins.models.net", "p/plugins/models/net.py", "p"),
        ("my-net.py", "my-net", "p/my-net.py", "p"),
        ("v1.2/net.py", "", "p/v1.2/net.py", "p"),
        ("plugins.models.net:", "plugins.models.net", "p/plugins/models/net.py", "p"),
    ]),
    "src": ("p/src/app/__init__.py p/src/app/nets/__init__.py p/src/app/nets/net.py", "", [
        ("src/app/nets/net.py", "app.nets.net", "p/src/app/nets/net.py", "p/src"),
        ("app.nets.net:", "app.nets.net", "p/src/app/nets/net.py", "p/src"),
        ("app:", "app", "p/src/app/__init__.py", "p/src"),
        ("src/app/__init__.py", "app", "p/src/app/__init__.py", "p/src"),
        ("src.app.nets.net:", "src.app.nets.net", "p/src/app/nets/net.py", "p"),
    ]),
    "src is a package": ("p/src/__init__.py p/src/net.py", "", [
        ("src/net.py", "src.net", "p/src/net.py", "p"),
        ("src.net:", "src.net", "p/src/net.py", "p"),
    ]),
    "src without packages": ("p/src/ns/net.py p/src/train.py", "", [
        ("src/ns/net.py", "ns.net", "p/src/ns/net.py", "p/src"),
        ("ns.net:", "ns.net", "p/src/ns/net.py", "p/src"),
        ("src/train.py", "train", "p/src/train.py", "p/src"),
    ]),
    "the project is a package": ("p/__init__.py p/net.py p/sub/__init__.py p/sub/net.py", "", [
        ("net.py", "net", "p/net.py", "p"),
        ("sub/net.py", "sub.net", "p/sub/net.py", "p"),
    ]),
    "the setting": ("p/lib/app/net.py s/app/other.py s/__init__.py p/app/__init__.py", "lib ../s", [
        ("lib/app/net.py", "app.net", "p/lib/app/net.py", "p/lib"),
        ("../s/app/other.py", "app.other", "s/app/other.py", "s"),
        ("app:", "app", "p/app/__init__.py", "p"),  # a package comes before its namesakes
    ]),
    "outside": ("o/net.py o/pack/__init__.py o/pack/net.py e/pack2/net.py e/pack3/__init__.py", "",
    [
        ("../o/net.py", "net", "o/net.py", "o"),
        ("../o/pack/net.py", "pack.net", "o/pack/net.py", "o"),
        ("../e/pack2/net.py", "pack2.net", "e/pack2/net.py", "e"),
        ("pack2.net:", "pack2.net", "e/pack2/net.py", ""),
        ("pack3:", "pack3", "e/pack3/__init__.py", ""),
    ]),
    "hidden": ("p/src/app/__init__.py p/app/net.py e/app/net.py p/a.py p/a/b.py", "", [
        ("app.net:", "", "", ""),
        ("a.b:", "", "", ""),
        ("no.such:", "", "", ""),
        ("json.no:", "", "", ""),
    ]),
}  # fmt: skip
CASES = [
    pytest.param(files.split(), code.split(), *row, id=f"{layout}: {row[0]}")
    for layout, (files, code, rows) in LAYOUTS.items()
    for row in rows
]


@pytest.mark.parametrize(("files", "code", "source", "name", "file", "root"), CASES)
def test_a_source_is_located(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    files: list[str],
    code: list[str],
    source: str,
    name: str,
    file: str,
    root: str,
) -> None:
    for place in ("p/.", "e/.", *files):
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        if place[-1] != ".":
            (tmp_path / place).write_text("raise AssertionError('imported')")
    monkeypatch.syspath_prepend(tmp_path / "e")
    importlib.invalidate_caches()
    loaded = {*sys.modules}
    place = locate(source, str(tmp_path / "p"), code)
    assert {*sys.modules} == loaded
    if not file:
        assert place is None
        return
    assert place is not None
    assert place == (name, f"{tmp_path}/{file}", root and f"{tmp_path}/{root}")


def test_a_module_of_a_library_is_located_without_an_import() -> None:
    place = locate("torchvision.models.resnet:", "/nowhere")
    assert place is not None
    assert place.file.endswith("/site-packages/torchvision/models/resnet.py")
    assert place.root == ""


@pytest.mark.parametrize(
    ("text", "place", "name", "source"),
    [
        ("plugins/net.py:make", "plugins/net.py", "make", "plugins/net.py"),
        ("../lib/my-net.py:Net.make", "../lib/my-net.py", "Net.make", "../lib/my-net.py"),
        ("app.nets.net:Net", "app.nets.net", "Net", "app.nets.net:"),
        ("net:make", "net", "make", "net:"),
        ("net.onnx", "net.onnx", "", ""),
        ("net:v2.onnx", "net:v2.onnx", "", ""),
        ("a b:c", "a b:c", "", ""),
        ("my-app.net:Net", "my-app.net:Net", "", ""),
    ],
)
def test_a_reference_has_a_place_and_a_name(text: str, place: str, name: str, source: str) -> None:
    assert split_reference(text) == (place, name)
    assert not name or source_of(text) == source
