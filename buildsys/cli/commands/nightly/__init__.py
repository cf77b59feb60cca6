"""doit nightly: everything that is stale, past failures, with files about the run."""
