"""What `heatbath simulate` and `heatbath measure` compute."""
