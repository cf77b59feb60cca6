"""buildsys run: a built engine on images or arrays."""
