"""Routes: how namespaces make code of their regions. The engine asks a route, and knows nothing else of a vendor."""
