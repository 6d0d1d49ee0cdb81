"""What a process that multiprocessing spawns is and sees, in JSON; by the shim's fork if asked.

Run as a program with the shim on PYTHONPATH and `fork` or `exec` as its argument.
"""

import contextlib
import json
import os
import signal
import socket
import sys
import time
from multiprocessing import connection, get_context
from multiprocessing.connection import Connection
from pathlib import Path

import psutil
from dspark_rehearsal import forking

SPAWN = get_context("spawn")
LONG_S = 600.0
SOON_S = 60.0

marked = False


def main(mode: str) -> None:
    """Print what there is to see."""
    global marked
    marked = True
    if mode == "fork":
        forking.spawn_by_forking()
    _be_like_a_server()
    here, there = SPAWN.Pipe()
    child = SPAWN.Process(target=look, args=(there,), name="Engine")
    child.start()
    there.close()
    seen = here.recv()
    child.kill()
    seen["death_seen"] = bool(connection.wait([child.sentinel], SOON_S))
    child.join()
    seen["killed"] = child.exitcode
    seen["orphan_saw_it"] = _ends(seen.pop("grandchild"))
    ending = SPAWN.Process(target=sys.exit, args=(7,))
    ending.start()
    ending.join()
    seen["exit_code"] = ending.exitcode
    del sys.stdout.write  # type: ignore[method-assign]
    print(json.dumps(seen))


def _be_like_a_server() -> None:
    """Handlers, a wake-up socket, a name before each line and a descriptor, as vLLM has them."""
    signal.signal(signal.SIGTERM, lambda *_: None)
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    waking, _ = pair = socket.socketpair()
    waking.setblocking(False)
    signal.set_wakeup_fd(waking.fileno())
    main.__dict__["kept"] = pair
    write = sys.stdout.write
    sys.stdout.write = lambda text: write(f"(APIServer) {text}")  # type: ignore[method-assign]


def look(answer: Connection) -> None:
    """Tell what this process is, with a process of its own that waits for this one's end."""
    reader, writer = SPAWN.Pipe(duplex=False)
    grandchild = SPAWN.Process(target=wait_for, args=(reader,), name="Worker", daemon=True)
    grandchild.start()
    reader.close()
    handlers = {
        number.name: signal.getsignal(number)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
    }
    answer.send(
        {
            "fresh": not marked,
            "name": SPAWN.current_process().name,
            "is_child": os.getppid() == SPAWN.parent_process().pid,
            "handlers": {name: getattr(h, "__name__", str(h)) for name, h in handlers.items()},
            "wakeup": signal.set_wakeup_fd(-1),
            "descriptors": len(list(Path("/proc/self/fd").iterdir())),
            "plain": "write" not in vars(sys.stdout),
            "arguments": len(sys.argv),
            "title": psutil.Process().cmdline()[-1].split()[-1],
            "grandchild": grandchild.pid,
        }
    )
    time.sleep(LONG_S)
    writer.close()


def wait_for(reader: Connection) -> None:
    """Return when the other end is closed, which happens when its process ends."""
    with contextlib.suppress(EOFError):
        reader.recv()


def _ends(pid: int) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess, psutil.TimeoutExpired):
        process = psutil.Process(pid)
        until = time.monotonic() + SOON_S
        while process.status() != psutil.STATUS_ZOMBIE and time.monotonic() < until:
            time.sleep(0.05)
        return process.status() == psutil.STATUS_ZOMBIE
    return True


if __name__ == "__main__":
    main(sys.argv[1])
