"""Python imports this by its name when it starts, in every process of a rehearsal.

Why: a server imports vLLM and torch, which is nearly all of a start.
The garbage collector is a fifth of that: it searches a growing heap for cycles that are not there.
It does so once more when a process ends, for seconds, while the server waits to stop.
Remove when: a start is no longer bound by imports.
"""

import atexit
import gc
import os

if os.environ.get("TRITON_INTERPRET") == "1":
    gc.set_threshold(100_000, 50, 1000)
    atexit.register(gc.freeze)
