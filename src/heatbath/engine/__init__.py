"""Trains many runs at once: plans stacks, computes them, and keeps what they measure."""
