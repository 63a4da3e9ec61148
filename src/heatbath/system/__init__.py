"""The machine, locks, SQLite files, and files that appear whole or not at all."""
