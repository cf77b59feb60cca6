"""Errors in files named by a manifest."""

import pytest

NET = "configs/models/net.yaml"

PYTHON = """\
model: net
source: {{python: "{callable}"}}
inputs: {{x: {{shape: [1]}}}}
"""


@pytest.mark.parametrize(
    "source",
    [
        "def make(): ...",
        "class make: ...",
        "make = print",
        "from json import loads as make",
        "from json import *",
        "if True:\n    make = 1",
        "try:\n    import make\nexcept ImportError:\n    make = None",
        "def __getattr__(name): ...",
        "first, make = 1, 2",
    ],
)
def test_every_form_of_definition_is_found(project, source):
    project.write("plugins/net.py", source)
    project.write(NET, PYTHON.format(callable="plugins/net.py:make"))
    assert list(project.load().models) == ["net"]
