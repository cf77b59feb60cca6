"""Commands of doit's command line, one module each."""
