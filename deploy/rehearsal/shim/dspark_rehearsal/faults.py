"""Faults of the draft, armed by REHEARSAL_FAULT for drills.

Only the standard library is imported here, so that the names can be read without vLLM.
"""

import contextlib
import functools
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

DROP_DRAFT_ATTRIBUTE = "drop-draft-attribute"
RAISE_IN_DRAFT = "raise-in-draft"
HANG_IN_DRAFT = "hang-in-draft"
#: What the trigger's file may hold, for a hang that waits for a lock file.
BATON = "baton"

# How often a hung draft looks whether its trigger file is gone, in seconds.
_HANG_CHECK = 0.2

_armed = False


def arm(environ: Mapping[str, str]) -> None:
    """Arm the draft fault that REHEARSAL_FAULT names, once in a process; other names do nothing.

    REHEARSAL_TRIGGER may name a file: `raise-in-draft` and `hang-in-draft` then act only while it
    exists. Without it they act from the first draft of a real request. A hang sleeps, or, if the
    file holds `baton`, waits for it as torch and AITER wait for who builds the same extension.
    """
    global _armed
    arm_fault = DRAFT_FAULTS.get(environ.get("REHEARSAL_FAULT", ""))
    if arm_fault is None or _armed:
        return
    _armed = True
    trigger = environ.get("REHEARSAL_TRIGGER")
    arm_fault(Path(trigger) if trigger else None)


def _drop_draft_attribute(_trigger: Path | None) -> None:
    """The fault of vLLM PR 51145: the draft class lacks what the speculator reads when it loads.

    The class also takes a name with DSpark in front, as the AMD draft has one
    (DSparkDeepseekV4ForCausalLM), so that the log line is what the health service must explain.
    """
    from vllm.model_executor.models.qwen3_dspark import Qwen3DSparkForCausalLM

    original = Qwen3DSparkForCausalLM.__init__

    @functools.wraps(original)
    def without_attribute(draft: Any, *args: Any, **kwargs: Any) -> None:
        original(draft, *args, **kwargs)
        del draft.draft_id_to_target_id
        type(draft).__name__ = "DSparkRehearsalForCausalLM"

    Qwen3DSparkForCausalLM.__init__ = without_attribute


def _raise_in_draft(trigger: Path | None) -> None:
    def act() -> None:
        if _pulled(trigger):
            raise RuntimeError(
                f"HIP error: unspecified launch failure (rehearsal fault {RAISE_IN_DRAFT})"
            )

    _before_real_drafts(act)


def _hang_in_draft(trigger: Path | None) -> None:
    def act() -> None:
        while _pulled(trigger):
            if trigger is not None and _holds_baton(trigger):
                _wait_for_baton(trigger)
            time.sleep(_HANG_CHECK)

    _before_real_drafts(act)


def _holds_baton(trigger: Path) -> bool:
    with contextlib.suppress(FileNotFoundError):  # taken away in this moment
        return trigger.read_text(encoding="utf-8") == BATON
    return False


def _wait_for_baton(lock: Path) -> None:
    from torch.utils.file_baton import FileBaton

    FileBaton(str(lock)).wait()


def _pulled(trigger: Path | None) -> bool:
    return trigger is None or trigger.exists()


def _before_real_drafts(act: Callable[[], None]) -> None:
    """Call ``act`` before each draft that serves a request; vLLM's start-up drafts are dummies."""
    from vllm.v1.worker.gpu.spec_decode.dspark.speculator import DSparkSpeculator

    original = DSparkSpeculator.propose

    @functools.wraps(original)
    def propose(*args: Any, dummy_run: bool = False, **kwargs: Any) -> Any:
        if not dummy_run:
            act()
        return original(*args, dummy_run=dummy_run, **kwargs)

    DSparkSpeculator.propose = propose


#: Name of a fault -> what arms it in this process.
DRAFT_FAULTS: Mapping[str, Callable[[Path | None], None]] = {
    DROP_DRAFT_ATTRIBUTE: _drop_draft_attribute,
    RAISE_IN_DRAFT: _raise_in_draft,
    HANG_IN_DRAFT: _hang_in_draft,
}
