"""The vLLM general plugin: vLLM calls `register` in the API server, before it starts others.

Engine and workers are its forks (see `forking`) and have what it was given.
"""

import os


def register() -> None:
    """Fork what is spawned, mend Triton's interpreter, arm the fault REHEARSAL_FAULT names, if any.

    Does nothing unless TRITON_INTERPRET=1. Safe to call more than once in a process.
    """
    if os.environ.get("TRITON_INTERPRET") != "1":
        return
    from . import faults, forking, inspecting, interpreter, masking, pinning, speed, waiting

    forking.spawn_by_forking()
    inspecting.inspect_here()
    waiting.nap()
    interpreter.mend()
    speed.apply()
    masking.mask_by_sorting()
    pinning.pin_nothing()
    if arch := os.environ.get("REHEARSAL_ARCH"):
        from deploy.rehearsal.amd.stand import stand

        stand(arch)
    faults.arm(os.environ)
