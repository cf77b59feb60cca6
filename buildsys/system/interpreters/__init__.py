"""Python interpreters of toolchains: location, identity, libraries."""
