"""Regions as functions: how they are built from calls, dissolved, and described where one fails. It knows no vendor."""
