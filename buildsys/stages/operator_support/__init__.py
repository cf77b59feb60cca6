"""Which operators the libraries that are installed here translate, know and run: read from their own registries."""
