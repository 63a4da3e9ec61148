"""
A thermometer on a Transformer
==============================

How noisy is my gradient, and is the batch size well chosen? `heatbath.Thermometer` reads this while a model trains,
with one line in the loop. Here the model is a small Transformer and the optimizer is AdamW.
"""

# %%
# **The task.** Sequences of digits; the model predicts the sum of the first and the last one, modulo ten.

import matplotlib.pyplot as plt
import torch
from torch import nn
from torch.nn import functional

import heatbath as hb

torch.manual_seed(0)


def make_batch(size, generator):
    """Return digits of shape ``(size, 8)``, and what is to be predicted of each row."""
    digits = torch.randint(10, (size, 8), generator=generator)
    return digits, (digits[:, 0] + digits[:, -1]) % 10


class Reader(nn.Module):
    """A Transformer of one layer that reads digits and names a digit."""

    def __init__(self):
        super().__init__()
        self.digits = nn.Embedding(10, 32)
        self.places = nn.Parameter(0.1 * torch.randn(8, 32))
        self.layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
        self.output = nn.Linear(32, 10)

    def forward(self, digits):
        return self.output(self.layer(self.digits(digits) + self.places).mean(dim=1))


# %%
# **The loop.** The thermometer takes a reading every ten steps. At other steps its line does nothing.

model = Reader()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
thermometer = hb.Thermometer(model, optimizer, interval=10)
generator = torch.Generator().manual_seed(1)
losses = []
for _ in range(1200):
    digits, target = make_batch(128, generator)
    optimizer.zero_grad()
    thermometer.observe(functional.cross_entropy, digits, target)
    loss = functional.cross_entropy(model(digits), target)
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
print(f"loss {losses[0]:.2f} at first, {losses[-1]:.2f} at the end")

# %%
# **The noise scale** estimates the critical batch size. Below it, doubling the batch nearly halves the number of steps.
# Above it, a larger batch saves hardly any steps.

steps = [reading["step"] for reading in thermometer.history]
figure, axes = plt.subplots(1, 3, figsize=(10, 2.8), layout="constrained")
axes[0].plot(losses, linewidth=0.5)
axes[0].set(xlabel="step", ylabel="loss")
axes[1].plot(steps, [reading["noise_scale"] for reading in thermometer.history])
axes[1].axhline(128, color="0.6", linestyle=":")
axes[1].set(xlabel="step", ylabel="noise scale, in samples", yscale="log")
axes[2].plot(steps, [reading["temperature"] for reading in thermometer.history])
axes[2].set(xlabel="step", ylabel="temperature", yscale="log")

# %%
# The dotted line is the batch size of this run. While the loss stays flat, the mean gradient can hardly be told from
# the noise, and the reading is uncertain. When the model begins to learn, the noise scale falls to a few hundred
# samples, near the batch size; then it grows, because the mean gradient shrinks faster than the noise.
#
# The last picture is the temperature in the coordinates of AdamW's preconditioner: :doc:`/temperature-adamw` derives
# it. It is highest while the loss falls, and falls with the noise as the model becomes sure of its answers.
#
# With gradient accumulation or `DistributedDataParallel` you do not need the line with ``observe``. The thermometer
# compares the gradients of micro-batches or ranks, at no extra cost.

thermometer.remove()
plt.show()
