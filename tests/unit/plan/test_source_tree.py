from __future__ import annotations

import hashlib
import os
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest
from texts import Texts

from buildsys.plan.dependencies import Import, SourceTree


def digest(path: str) -> str | None:
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except FileNotFoundError:
        return None


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    return folder


def write(project: Path, **files: str) -> None:
    for name, text in files.items():
        path = project / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def closure(project: Path, *sources: str) -> set[str]:
    return set(SourceTree(str(project), digest, Texts()).dependencies(sources).files)


@pytest.mark.parametrize(
    "statement",
    [
        "import blocks",
        "from blocks import conv",
        "from blocks import *",
        "from . import blocks",
        "from .blocks import conv",
        "import plugins.blocks",
        "from plugins import blocks",
        "from plugins.blocks import conv",
        "from ..plugins import blocks",
        "def late():\n    import blocks",
        "try:\n    import blocks\nexcept ImportError:\n    pass",
        "import importlib\nimportlib.import_module('plugins.blocks')",
        "x = __import__('blocks')",
    ],
)
def test_all_ways_to_import_a_neighbour_are_seen(project: Path, statement: str) -> None:
    write(project, plugins__net=statement, plugins__blocks="", plugins__unused="")
    assert closure(project, "plugins/net.py") == {"plugins/net.py", "plugins/blocks.py"}


def test_imports_are_followed_through_packages_and_cycles(project: Path) -> None:
    write(
        project,
        plugins__net="from lib.deep import layer",
        lib____init__="from . import version",
        lib__version="",
        lib__deep____init__="",
        lib__deep__layer="from ..version import V\nimport common",
        plugins__common="import plugins.net",
        lib__unused="",
    )
    (project / "lib" / "__init__.py").write_text("from . import version")
    (project / "lib" / "deep" / "__init__.py").write_text("")
    assert closure(project, "plugins/net.py") == {
        "plugins/net.py",
        "plugins/common.py",
        "lib/__init__.py",
        "lib/version.py",
        "lib/deep/__init__.py",
        "lib/deep/layer.py",
    }


def test_every_candidate_counts(project: Path) -> None:
    write(project, plugins__net="import ops", plugins__ops="", ops="")
    assert closure(project, "plugins/net.py") == {"plugins/net.py", "plugins/ops.py", "ops.py"}


def test_a_new_file_that_shadows_is_seen(project: Path) -> None:
    write(project, plugins__net="import ops", ops="")
    before = closure(project, "plugins/net.py")
    write(project, plugins__ops="")
    assert closure(project, "plugins/net.py") - before == {"plugins/ops.py"}


def test_nothing_outside_the_project_is_followed(project: Path) -> None:
    write(
        project.parent,
        secret="",
        project__net="from .. import secret\nfrom ... import etc\nimport secret",
    )
    assert closure(project, "net.py") == {"net.py"}


def test_files_outside_the_project_have_names_of_their_own(project: Path) -> None:
    write(project, net="", blocks="", app__net="import common", app__blocks="", common="")
    write(project.parent, lib__net="import blocks, common\nfrom . import extra\nfrom .. import no")
    write(project.parent, lib__blocks="", lib__extra="", no="")
    files = {"../lib/net.py", "../lib/blocks.py", "../lib/extra.py", "blocks.py", "common.py"}
    assert closure(project, "../lib/net.py") == files
    # the same in each checkout, as the manifest says where it is
    place = f"{project.parent}/lib"
    absolute = {file.replace("../lib", place) for file in files}
    assert closure(project, f"{place}/net.py") == absolute
    (project / "link.py").symlink_to(project.parent / "lib/net.py")
    assert closure(project, "link.py") == {"link.py", "blocks.py", "common.py"}


def test_a_module_depends_on_its_packages_and_on_all_code_roots(project: Path) -> None:
    write(
        project,
        src__app__nets__net="import app.parts, shared.deep, common\nfrom .. import late",
        src__app__parts="",
        src__app__late="",
        src__app__unused="",
        common="",
    )
    for package in ("src/app", "src/app/nets"):
        (project / package / "__init__.py").touch()
    write(project.parent, lib__shared__deep="from . import near", lib__shared__near="", no="")
    own = {f"src/app/{name}.py" for name in ("__init__", "nets/__init__", "nets/net", "parts")}
    own |= {"src/app/late.py", "common.py"}
    for code, folder in (("../lib", "../lib"), (f"{project.parent}/lib", f"{project.parent}/lib")):
        files = own | {f"{folder}/shared/deep.py", f"{folder}/shared/near.py"}
        for source in ("app.nets.net:", "src/app/nets/net.py"):
            tree = SourceTree(str(project), digest, Texts(), code=(code,))
            assert {*tree.dependencies([source]).files} == files
    tree = SourceTree(str(project), digest, Texts())
    assert {*tree.dependencies(["app.nets.net:"]).files} == own
    installed = tree.dependencies(["torchvision.models:", "app.no:"])
    assert installed.files == {}
    assert installed.outside == [Import(0, "app.no"), Import(0, "torchvision.models")]


def test_includes_outside_the_project_count(project: Path) -> None:
    for name, text in {"lib/op.cpp": '#include "../inc/op.h"', "inc/op.h": "", "op.h": ""}.items():
        (project.parent / name).parent.mkdir(exist_ok=True)
        (project.parent / name).write_text(text)
    assert closure(project, "../lib/op.cpp") == {"../lib/op.cpp", "../inc/op.h"}


def test_imports_for_type_checkers_do_not_count(project: Path) -> None:
    write(
        project,
        a="from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import b\nelse:\n    import c",
        b="",
        c="",
    )
    assert closure(project, "a.py") == {"a.py", "c.py"}


@pytest.mark.parametrize("text", ["def broken(:\n", "\0", "(" * 5000])
def test_a_file_that_does_not_parse_still_has_its_digest(project: Path, text: str) -> None:
    write(project, net=text)
    assert closure(project, "net.py") == {"net.py"}


def test_a_file_is_parsed_once_per_content(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(project, net="import blocks", blocks="")
    texts = Texts()
    first = SourceTree(str(project), digest, texts).dependencies(["net.py"]).files
    monkeypatch.setattr("ast.parse", lambda code: pytest.fail("parsed again"))
    os.utime(project / "net.py")
    assert SourceTree(str(project), digest, texts).dependencies(["net.py"]).files == first


def test_with_a_package_only_its_modules_count(project: Path) -> None:
    write(
        project,
        pack__a="import pack.b\nimport other\nfrom .c import x",
        pack__b="",
        pack__c="",
        other="",
    )
    tree = SourceTree(str(project), digest, Texts(), package="pack")
    assert set(tree.dependencies(["pack/a.py"]).files) == {"pack/a.py", "pack/b.py", "pack/c.py"}


def test_imports_without_a_local_file_are_outside(project: Path) -> None:
    write(
        project,
        net="import torch, os, blocks\nfrom timm.layers import Mlp\nfrom . import gone",
        blocks="import einops",
    )
    found = SourceTree(str(project), digest, Texts()).dependencies(["net.py"])
    assert found.outside == [
        Import(0, "einops"),
        Import(0, "timm.layers", ("Mlp",)),
        Import(0, "torch"),
    ]


def test_a_folder_without_modules_hides_no_library(project: Path) -> None:
    write(project, net="import data, pack", pack__sub__x="")
    (project / "data").mkdir()
    outside = SourceTree(str(project), digest, Texts()).dependencies(["net.py"]).outside
    assert [item.module for item in outside] == ["data", "pack"]


def test_environment_variables_that_are_read_are_named(project: Path) -> None:
    text = (
        "import os\nfrom os import environ, getenv\n"
        "a = os.environ['A']\nb = environ.get('B', '1')\nc = getenv('C')\nd = 'D' in os.environ\n"
        "e = os.getenv('E')\nf = os.environ[a]\ng = {}.get('G')\nh = environ.pop('H')\n"
    )
    write(project, net=f"import blocks\n{text}", blocks="import os\nos.environ['Z']")
    assert SourceTree(str(project), digest, Texts()).dependencies(["net.py"]).variables == [
        *"ABCDEHZ"
    ]


def test_a_compiled_module_counts(project: Path) -> None:
    write(project, net="import kernels")
    (project / f"kernels{EXTENSION_SUFFIXES[0]}").write_bytes(b"\x7fELF")
    assert closure(project, "net.py") == {"net.py", f"kernels{EXTENSION_SUFFIXES[0]}"}


def test_an_onnx_file_depends_on_its_external_data(project: Path) -> None:
    # ModelProto.graph.initializer.external_data: one entry {key: "location", value: PLACE}
    def field(number: int, content: bytes) -> bytes:
        return bytes([number << 3 | 2, len(content)]) + content

    def entry(place: bytes) -> bytes:
        return field(
            7, field(5, field(9, b"raw") + field(13, field(1, b"location") + field(2, place)))
        )

    (project / "net.onnx").write_bytes(
        b"\x08\x08" + entry(b"a/w.bin") + entry(b"w2.bin") + entry(b"../../secret")
    )
    assert closure(project, "net.onnx") == {"net.onnx", "a/w.bin", "w2.bin"}


@pytest.mark.parametrize(
    "content", [b"", b"\xff" * 40, b"\x3a\x7f", b"import net", bytes(range(256))]
)
def test_an_invalid_onnx_file_has_no_external_data(project: Path, content: bytes) -> None:
    (project / "net.onnx").write_bytes(content)
    assert closure(project, "net.onnx") == {"net.onnx"}
