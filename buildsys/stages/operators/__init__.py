"""Custom operators: local functions, libraries, and graphs as a backend reads them."""
