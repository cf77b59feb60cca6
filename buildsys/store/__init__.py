"""What is remembered between runs: file digests, action records, locks and how outputs are put in place."""
