"""`run` shows a bar in a terminal, and nothing where nobody watches; test_first_steps.py has the notebook."""

import os
import pty
import re
import subprocess
import sys

TRAIN = """
import heatbath as hb
base = hb.RunConfig(dataset="mnist5k", batch_size=500, epochs=2)
records = hb.run(hb.sweep(base, seed=range(2)), device="cpu", workers=1{more})
"""


def in_a_terminal(program):
    """What a terminal of 80 columns is sent."""
    ours, theirs = pty.openpty()
    env = {**os.environ, "TERM": "xterm", "COLUMNS": "80"}
    done = subprocess.Popen([sys.executable, "-c", program], stderr=theirs, env=env)
    os.close(theirs)
    sent = b""
    while True:
        try:
            part = os.read(ours, 4096)
        except OSError:  # the terminal was closed
            break
        if not part:
            break
        sent += part
    assert done.wait() == 0
    os.close(ours)
    return sent.decode()


def test_a_terminal_shows_a_bar_that_stays():
    sent = in_a_terminal(TRAIN.format(more=""))
    lines = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", sent).replace("\r", "\n").split("\n")
    assert re.search(r"100 %  2 of 2 runs, 0:\d\d:\d\d elapsed", [line for line in lines if line.strip()][-1])
    assert sent.rfind("2 of 2 runs") > sent.rfind("\x1b[2K")  # what erases a line
    assert max(map(len, lines)) <= 80


def test_false_shows_nothing():
    assert in_a_terminal(TRAIN.format(more=", progress=False")) == ""


def test_a_pipe_gets_nothing():
    done = subprocess.run([sys.executable, "-c", TRAIN.format(more="")], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
