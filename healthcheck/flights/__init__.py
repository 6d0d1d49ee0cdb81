"""The flight recorder: what a stuck server was doing, kept before it is started again.

While the verdict is NOT_READY or STALLED for want of progress the health service lays one file
beside the log, told/stuck.json, with its verdict and what it read: `told` says how. `recorder` runs
in the server's parent, sees that file, adds the stacks of the processes (`stacks`), their vital
signs and the end of the log (`lines`), and puts one archive into flights/ beside the log. `waits`
says of a stack what it waits for; `cli` lists and shows the archives,
`newest` finds the last one.

Only the recorder needs psutil; the stacks need py-spy, without which they are missing and that is
said.
"""

from healthcheck.flights.cli import main

__all__ = ["main"]
