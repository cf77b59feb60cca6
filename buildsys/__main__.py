"""``python -m buildsys``: doit from any folder of a project."""

from buildsys.cli.main import main

main()
