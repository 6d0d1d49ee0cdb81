"""Runs drills from one import of vLLM: each in a fork of this process, with its output in a log.

Takes orders as JSON on stdin (see `drills.Order`) and prints `NAME CODE` for each.
"""

import contextlib
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from deploy.recipe import serve_parser

# Of one drill: seconds on an idle machine.
LIMIT_S = 180.0
_POLL_S = 0.05
# vLLM takes the signal as an exception, which code that runs just then may swallow; a start is over
# in few seconds.
_STOP_AGAIN_S = 0.3


def main() -> int:
    """Every order in turn; a drill that does not end is killed with its children."""
    import vllm.entrypoints.cli.main  # what all of them need is imported once
    import vllm.entrypoints.cli.serve
    import vllm.v1.engine.llm_engine  # noqa: F401

    for order in json.load(sys.stdin):
        child = os.fork()
        if child == 0:
            _be(order)
        print(order["name"], _wait(child, order), flush=True)
    return 0


def _be(order: Mapping[str, Any]) -> None:
    """Become the drill; ends the process whatever happens."""
    code = 1
    try:
        os.setsid()  # what it starts ends with it
        log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.environ.update(order["environ"])
        for name in order["without"]:
            os.environ.pop(name, None)
        code = _start(order)
    except SystemExit as e:
        code = e.code if isinstance(e.code, int) else 1
    except BaseException:  # as the interpreter prints what nobody catches
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _start(order: Mapping[str, Any]) -> int:
    if order["kind"] == "serve":
        from vllm.entrypoints.cli.main import main as vllm

        sys.argv = ["vllm", "serve", *order["arguments"]]
        vllm()
        return 0
    from vllm.engine.arg_utils import EngineArgs
    from vllm.utils.argparse_utils import FlexibleArgumentParser
    from vllm.v1.engine.llm_engine import LLMEngine

    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    options = (
        serve_parser.module()
        .make_arg_parser(FlexibleArgumentParser())
        .parse_args(order["arguments"])
    )
    options.model = options.model_tag or options.model
    LLMEngine.from_engine_args(EngineArgs.from_cli_args(options))
    return 0


def _wait(child: int, order: Mapping[str, Any]) -> int:
    """The exit code of a drill; it gets SIGTERM when its log says what the order waits for."""
    until = time.monotonic() + LIMIT_S
    stop_at, stop_again = order["stop_at"], 0.0
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            break
        now = time.monotonic()
        if stop_at and now > stop_again and stop_at in _text(Path(order["log"])):
            os.kill(child, signal.SIGTERM)
            stop_again = now + _STOP_AGAIN_S
        if now > until:
            os.kill(child, signal.SIGKILL)
        time.sleep(_POLL_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(status)


def _text(log: Path) -> str:
    try:
        return log.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return ""


if __name__ == "__main__":
    sys.exit(main())
