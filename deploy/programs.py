"""What every program does at its edges: words that it cannot follow, output that nobody takes, an
interrupt, odd file names."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Callable
from typing import Any, NoReturn

FAILED, INTERRUPTED, READER_GONE = 1, 130, 141  # as a shell tells a death by SIGINT or SIGPIPE


class Misuse(ValueError):
    """A command line that cannot be followed; the message is one line."""


class Parser(argparse.ArgumentParser):
    """Says misuse as an error, for the caller to tell in one line; options are not shortened."""

    def __init__(self, prog: str, **more: Any) -> None:
        super().__init__(prog=prog, allow_abbrev=False, **more)

    def error(self, message: str) -> NoReturn:
        """Raises Misuse."""
        raise Misuse(f"{message}; see {self.prog} --help")


def run(main: Callable[[], int]) -> NoReturn:
    """Exit with what `main` returns; an interrupt or output that fails shows no traceback."""
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        # A file name that is not UTF-8 is printed as the bytes that it was given in.
        sys.stdout.reconfigure(errors="surrogateescape")
    try:
        code = main()
        sys.stdout.flush()
    except BrokenPipeError:  # the reader, such as head, has had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = READER_GONE
    except OSError as e:
        if e.filename is not None:
            raise
        # What is left in the buffer would fail again at the exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        print(f"output: {e.strerror}; make room or name another file", file=sys.stderr)
        code = FAILED
    except KeyboardInterrupt:
        code = INTERRUPTED
    sys.exit(code)
