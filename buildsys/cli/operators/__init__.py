"""doit ops: operator support of the installed libraries."""
