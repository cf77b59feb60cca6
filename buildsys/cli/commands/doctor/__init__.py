"""doit doctor: checks of the installation and of built engines."""
