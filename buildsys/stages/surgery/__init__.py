"""Surgery on a graph by the steps of a manifest, each verified."""
