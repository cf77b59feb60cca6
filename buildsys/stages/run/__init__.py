"""The work of ``buildsys run``: files to inputs, one call of an engine, class names."""
