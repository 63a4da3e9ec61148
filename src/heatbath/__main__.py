"""The command ``heatbath``, and what ``python -m heatbath`` does."""

import os
import signal
import sys


def main() -> int:
    """Run the command line; Ctrl-C while it is imported ends it in one line, wherever in a module that is."""

    def leave(*_: object) -> None:
        os.write(2, b"heatbath: interrupted\n")
        os._exit(130)  # an exception in the middle of an import may come out as another

    is_usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_usual:
        signal.signal(signal.SIGINT, leave)
    from heatbath import cli

    if is_usual:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
