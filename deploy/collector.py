"""Python's garbage collector, in a process that imports vLLM to ask it something."""

import atexit
import gc


def rest() -> None:
    """Let it look for cycles seldom, and not when the process ends.

    An import makes objects without end and no cycle that is garbage: looking for one takes more
    than a quarter of the CPU time of a load check (0.27.1, CPU wheel).
    """
    gc.set_threshold(100_000, 50, 1000)
    atexit.register(gc.freeze)
