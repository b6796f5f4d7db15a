"""The one-call forms: `partition` and `compile`, and the folder of compiled models."""
