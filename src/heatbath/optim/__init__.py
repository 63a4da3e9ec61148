"""The step of SGD with a random learning rate, and everything that draws."""
