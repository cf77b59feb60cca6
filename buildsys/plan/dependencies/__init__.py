"""Files that a source file depends on."""
