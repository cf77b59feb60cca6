"""Stages run in processes of their own: a pool of servers that fork a child per job."""
