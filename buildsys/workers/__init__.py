"""Worker processes for stages: servers with one forked child per job."""
