"""The calls of a module: who owns each, who refused it, and why."""
