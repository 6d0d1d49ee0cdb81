"""The vLLM general plugin: vLLM calls `register` in the API server, the engine and every worker."""

import os


def register() -> None:
    """Mend Triton's interpreter and arm the fault that REHEARSAL_FAULT names, if any.

    Does nothing unless TRITON_INTERPRET=1. Safe to call more than once in a process.
    """
    if os.environ.get("TRITON_INTERPRET") != "1":
        return
    from . import faults, interpreter, masking, pinning, speed

    interpreter.mend()
    speed.apply()
    masking.mask_by_sorting()
    pinning.pin_nothing()
    faults.arm(os.environ)
