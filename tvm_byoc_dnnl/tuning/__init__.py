"""Placement by measurement: which compiler gets which call is decided by times on this machine."""
