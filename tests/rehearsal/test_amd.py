"""The AMD rehearsal's stand-ins: listed, right, and the only ones."""

from pathlib import Path
from typing import Any

import pytest

from patches.loadcheck import tiny
from tests.support import amd_class

pytestmark = pytest.mark.real

UNLISTED = "neither real here nor listed in deploy/rehearsal/amd/substitutes.py"
ABSENT = (
    "_rocm_C.wvSplitK",
    "_moe_C.topk_softmax",
    "_C.no_such_kernel",
    "vllm.rocm_aiter_rms_norm",
)
REAL = ("_C.silu_and_mul", "_C.rms_norm", "vllm.hc_head_triton")
LISTED = ("_C.top_k_per_row_decode", "vllm.rocm_aiter_sparse_attn_indexer")
MODULES = ("import aiter", "import aiter.ops.triton.fp8_mqa_logits")
SCHEDULE = {
    "max_num_batched_tokens": 64,
    "max_num_seqs": 4,
    "enable_chunked_prefill": True,
    "enable_prefix_caching": True,
}


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What one process of the rehearsal's vLLM says, stood on gfx942 and played gfx950."""
    folder: Path = tmp_path_factory.mktemp("amd")
    model = str(tiny.write_plain(folder / "model"))
    asked = {
        "asked for": {"ask": "ask_for", "names": [*ABSENT, *REAL, *LISTED, *MODULES]},
        "said to be there": {"ask": "has", "names": [*ABSENT, *REAL, *LISTED]},
        "table": {"ask": "substitutes"},
        "cleared": {"ask": "clear_pages"},
        "schedule": {"ask": "schedule", "model": model, "longest": 128, "asked": SCHEDULE},
        "gfx942": {"ask": "write_keys", "tokens": 7},
        "gfx950": {"ask": "write_keys", "tokens": 7, "arch": "gfx950"},
    }
    return amd_class.ask(
        folder,
        {name: {"arch": "gfx942", **question} for name, question in asked.items()},
        patched=True,
        driver="amd_substitutes_driver.py",
    )


@pytest.mark.parametrize("name", [*ABSENT, *MODULES])
def test_a_kernel_that_is_neither_real_nor_listed_is_one_clear_line(
    answers: dict[str, Any], name: str
) -> None:
    """Asked for, it is an error that names it and the list; vLLM cannot take it for leave to do
    without, but for an operator that it asks whether it is there."""
    told = "import aiter" if name in MODULES else f"torch.ops.{name}"
    assert answers["asked for"][name] == f"{told}: {UNLISTED}"


def test_real_and_listed_kernels_are_had(answers: dict[str, Any]) -> None:
    """Kernels of vLLM's CPU build and its own operators are as they were; an absent one is absent."""
    assert [answers["asked for"][name] for name in (*REAL, *LISTED)] == [""] * 5
    assert answers["said to be there"] == {n: n not in ABSENT for n in (*ABSENT, *REAL, *LISTED)}


def test_each_substitute_has_a_reason_and_a_source(answers: dict[str, Any]) -> None:
    """Each stands for one thing, and says why and after what."""
    table = answers["table"]
    assert len({entry["name"] for entry in table}) == len(table) > 10
    assert all(entry["reason"] and entry["source"] for entry in table)


def test_prompts_are_cut_and_kept_as_on_a_card(answers: dict[str, Any]) -> None:
    """Chunked prefill, prefix caching and the batch are what was asked for, as vLLM's ROCm platform
    leaves them; its CPU platform lets MLA have no chunks and makes a batch of the longest prompt."""
    assert answers["schedule"] == SCHEDULE


@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
def test_keys_are_written_as_vllms_own_kernels_write_them(
    answers: dict[str, Any], arch: str
) -> None:
    """The stand-in of the HIP writer leaves the same bytes as vLLM's Triton writer in the card's
    FP8, at no slot that is not one, and turns the queries as vLLM's kernel for XPU does."""
    seen = answers[arch]
    assert seen["same"]
    assert seen["written"] > 6 * 512
    assert seen["off"] < 0.02


def test_pages_are_cleared_as_vllms_own_kernel_clears_them(answers: dict[str, Any]) -> None:
    """The same words of the same pages, as many as the release's kernel clears."""
    seen = answers["cleared"]
    assert seen["kernel"] == seen["substitute"] == seen["both"] > 0
