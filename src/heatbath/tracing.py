"""What `torch.compile` is to leave alone."""

# Its public name is torch.compiler.disable, which imports torch._dynamo at once and so takes seconds; this decorator
# waits until something is compiled.
from torch._compile import _disable_dynamo as outside_graphs

__all__ = ["outside_graphs"]
