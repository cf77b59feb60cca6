"""buildsys init: make a folder a project."""
