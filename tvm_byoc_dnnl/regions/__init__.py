"""Regions as functions: built of calls, taken apart again, and what may be wrong with one. It knows no vendor."""
