"""What `simulate`, `measure`, `race` and `transfer` compute, and experiments that need no store."""
