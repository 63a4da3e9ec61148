"""Epochs for the tests of whatever keeps, reads or shows them."""

import json

from heatbath.runs import export
from heatbath.runs.records import METRICS, Epoch

VERSIONS = {"heatbath": "0.1.0+g0123456789ab", "torch": "2.13.0", "python": "3.12"}
ORIGIN = {**VERSIONS, "device": "CPU (a)", "precision": "fp32"}


def an_epoch(rate, *numbers, origin=None):
    """An epoch by position: rate, then loss and accuracy of train, test, and validation if there is one."""
    return Epoch(rate, dict(zip(METRICS, numbers, strict=False)), {} if origin is None else origin)


def signed_line(values):
    """A line of an export with these values, and the digest that fits them."""
    content = {name: value for name, value in values.items() if name != "digest"}
    return json.dumps({**content, "digest": export.digest(content)}) + "\n"
