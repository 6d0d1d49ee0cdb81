"""Runs a program's `main` in the process of the test: its exit code, output and errors.

Of what a process of its own would show, this shows all but the start: imports, and the end.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Mapping
from contextlib import redirect_stderr, redirect_stdout
from subprocess import CompletedProcess
from unittest import mock


def run(
    main: Callable[[list[str]], int], *words: object, environ: Mapping[str, str] | None = None
) -> CompletedProcess[str]:
    """Call it with these words, in an environment that holds nothing but what is given, if any."""
    out, err = io.StringIO(), io.StringIO()
    arguments = [str(word) for word in words]
    given = os.environ if environ is None else environ
    kept = mock.patch.dict(os.environ, dict(given), clear=True)
    with kept, redirect_stdout(out), redirect_stderr(err):
        try:
            code = main(arguments)
        except SystemExit as ended:  # argparse
            code = int(ended.code or 0)
    return CompletedProcess(arguments, code, out.getvalue(), err.getvalue())
