"""The flight recorder: what a stuck server was doing, kept before it is started again.

`told` is the file by which the health service says that it is stuck, `recorder` runs in the
server's parent, sees that and puts one archive beside the log: `stacks` of the processes, vital
signs and the end of the log (`lines`). `waits` says of a stack what it waits for; `cli` lists and
shows the archives, `newest` finds the last one.

Only the recorder needs psutil.
"""

from healthcheck.flights.cli import main

__all__ = ["main"]
