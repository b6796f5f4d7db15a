"""Stage 3, partition: composite functions are merged into regions, tried, and given back where they fail."""
