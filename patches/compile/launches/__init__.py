"""The launches of a profile's path, by what they do.

A step is: the runner's inputs and block tables, metadata of the attention, the forward of target or
draft, sampling or verification, the draft's inputs. Shapes are those of a decode step and of a
prefill as large as the plan's batch.
"""

from __future__ import annotations

from patches.compile.launch import Launch, of
from patches.compile.launches import attention, indexer, metadata, runner, sampling

ALL: tuple[Launch, ...] = tuple(
    launch for module in (runner, metadata, attention, indexer, sampling) for launch in of(module)
)
