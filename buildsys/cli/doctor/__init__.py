"""doit doctor: what is installed and what can run here."""
