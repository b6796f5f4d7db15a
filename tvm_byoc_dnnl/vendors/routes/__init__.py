"""Routes: how namespaces make code of their regions. The engine uses nothing else of a vendor."""
