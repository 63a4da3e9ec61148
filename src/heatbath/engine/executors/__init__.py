"""Where stacks are trained."""
