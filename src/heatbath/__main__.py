"""Lets ``python -m heatbath`` do what the command ``heatbath`` does."""

import sys

from heatbath.cli import main

sys.exit(main())
