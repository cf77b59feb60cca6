"""The work of ``buildsys run``: inputs from files, one call, class names."""
