"""State kept between runs: file digests, action records, stored outputs, locks."""
