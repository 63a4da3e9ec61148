"""Figures as data, as pictures, and as one page."""
