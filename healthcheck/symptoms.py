"""Known faults of the pinned vLLM on an AMD card, by what one sees of them."""

from __future__ import annotations

from dataclasses import dataclass

from healthcheck.reasons import GARBAGE
from patches import faults


@dataclass(frozen=True)
class Fault:
    """A known fault of the pinned vLLM on an AMD card, as its answers show it.

    `codes` are the reasons that it gives, none where no answer tells; `mend` names the patch of
    patches/series, or the switch.
    """

    name: str
    seen: str
    codes: tuple[str, ...]
    sources: str
    mend: str


def _right(key: str) -> str:
    """From which release on a fault of patches/faults.toml is gone."""
    (fault,) = (fault for fault in faults.load() if fault.key == key)
    return f"right from vLLM {fault.right} on"


FAULTS = (
    Fault(
        "the sparse indexer picks the wrong tokens",
        "what stands in a prompt is given back from 1,500 tokens and missed in more than 2,048; "
        "short tests, GSM8K among them, pass",
        ("text.needle_missed_past_2048",),
        f"vLLM issue 52109, PR 50455; {_right('indexer-layout')}",
        "patch 0004",
    ),
    Fault(
        "a page of the cache that is cleared takes keys of the next",
        "the first answers hold; once pages are used again, one prompt is answered differently "
        "from time to time, and what stands far back in a prompt may be missed",
        ("text.needle_missed", "text.needle_missed_past_2048"),
        f"vLLM PR 50276; {_right('page-clearing')}",
        "patch 0009",
    ),
    Fault(
        "experts without their clamp (moe-backend aiter)",
        "text, needles and drafts hold, and answers to hard questions are worse: no reason of this "
        "page tells it",
        (),
        f"vllm-ascend issue 14363 and sglang 23776 have the same slip; {_right('expert-clamp')}",
        "patch 0006; python3 -m patches apply SITE_PACKAGES --check says whether a server has it, "
        "make accuracy how its answers score",
    ),
    Fault(
        "HIP graphs that replay wrongly",
        "nearly half of all answers or more are garbage, from the start gate on and for the whole "
        "life of the process; the next process may be well",
        tuple(sorted(GARBAGE)),
        "ROCm/clr issue 279; vLLM PR 46386",
        "start again, or serve with DSPARK_GRAPHS=off, as is the default",
    ),
    Fault(
        "garbage after idleness",
        "the first answer after 20 to 50 s without work is garbage, the next is text: a scored "
        "canary fails and the ones after it pass",
        ("text.garbage",),
        "vLLM issue 52150",
        "serve with DSPARK_GRAPHS=off, as is the default",
    ),
)
