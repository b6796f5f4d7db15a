"""Stage 4, lower: one region becomes a portable graph; nothing after this knows Relax."""
