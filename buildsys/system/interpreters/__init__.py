"""What another interpreter is and has: asked of it, and remembered for as long as its files are the same."""
