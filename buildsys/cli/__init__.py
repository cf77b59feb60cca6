"""What people type and read: the doit tasks and commands, and the console."""
