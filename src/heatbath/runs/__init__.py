"""A run as data, and where it lives."""
