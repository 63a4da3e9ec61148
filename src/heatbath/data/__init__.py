"""Data sets and pretrained features: found, fetched, verified and read."""
