"""buildsys nightly: build everything stale despite failures, and report on it."""
