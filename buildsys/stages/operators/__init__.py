"""Custom operators: the stage, and graphs prepared for one backend."""
