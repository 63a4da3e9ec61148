"""Each module says which framework it needs."""

import json
import subprocess
import sys

NEEDS = {"lightning": ["lightning", "pytorch_lightning"], "transformers": ["transformers"], "optax": ["optax"]}

WITHOUT = """
import json, sys
found = {}
for module, names in json.loads(sys.argv[1]).items():
    kept = {name: sys.modules.get(name) for name in names}
    sys.modules.update(dict.fromkeys(names))
    try:
        __import__(f"heatbath.integrations.{module}")
    except ImportError as error:
        found[module] = str(error)
    for name in names:
        del sys.modules[name]
print(json.dumps(found))
"""

UNDER_ITS_OLDER_NAME = """
import sys
sys.modules["lightning"] = None
from heatbath.integrations.lightning import ThermometerCallback
print(*(base.__module__ for base in ThermometerCallback.__bases__))
"""


def run(program, *arguments):
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program, *arguments], check=True, capture_output=True, text=True
    )
    return done.stdout.splitlines()[-1]


def test_a_missing_framework_is_told_with_its_extra():
    found = json.loads(run(WITHOUT, json.dumps(NEEDS)))
    assert found.keys() == NEEDS.keys()
    for module, message in found.items():
        assert message.startswith(f"heatbath.integrations.{module} needs ")
        assert message.endswith(f": pip install 'heatbath[{module}]'")


def test_lightning_under_its_older_name():
    assert "pytorch_lightning.callbacks.callback" in run(UNDER_ITS_OLDER_NAME).split()
