"""Worker processes that run stages: servers that fork one child per job."""
