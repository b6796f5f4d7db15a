"""Runs a compiled model, and compares what it gives."""
