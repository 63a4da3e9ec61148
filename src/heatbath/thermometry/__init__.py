"""Gradient noise, temperature and equilibrium of real networks."""
