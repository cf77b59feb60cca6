"""The report on one model: read results, sum them up, write them for people."""
