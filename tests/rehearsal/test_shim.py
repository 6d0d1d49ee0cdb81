"""The shim: inert without TRITON_INTERPRET=1, and right with it."""

import gc
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from deploy.rehearsal.environment import SHIM

SUPPORT = Path(__file__).resolve().parents[1] / "support"
KERNELS = SUPPORT / "interpreted_kernels.py"

INERT = f"""
import gc, json, sys
NORMAL = {gc.get_threshold()}
from triton.backends import backends
from dspark_rehearsal import plugin
plugin.register()
cpu = backends["cpu"]
print(json.dumps({{
    "collector": gc.get_threshold() == NORMAL,
    "active": cpu.driver.is_active(),
    "loaded": [name for name in sys.modules if name.startswith("dspark_rehearsal.")],
    "vllm": "vllm" in sys.modules,
}}))
"""


def run(*arguments: str, **environ: str) -> Any:
    """Run Python with the shim on its path and read the JSON it prints."""
    kept = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    finished = subprocess.run(
        [sys.executable, *arguments],
        env={**kept, "PYTHONPATH": str(SHIM), **environ},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert finished.returncode == 0, finished.stderr
    return json.loads(finished.stdout)


def test_nothing_happens_without_interpretation() -> None:
    """Without TRITON_INTERPRET=1 the driver is inactive, no mend and no fault is loaded."""
    seen = run("-c", INERT, REHEARSAL_FAULT="drop-draft-attribute")
    assert seen == {
        "collector": True,
        "active": False,
        "loaded": [
            "dspark_rehearsal.compiler",
            "dspark_rehearsal.driver",
            "dspark_rehearsal.plugin",
        ],
        "vllm": False,
    }


def test_interpreted_kernels_are_right() -> None:
    """With the mends, log1p, an int mask, blocks with NaN and bfloat16 give what hardware gives."""
    seen = run(str(KERNELS), "mends", TRITON_INTERPRET="1")
    assert seen["log1p_is_numpys"]
    assert seen["joined_mask"] == [10.0, 20.0, 30.0, 0.0]
    assert seen["argmax_of_numbers"] == 2
    assert seen["max_of_numbers"] == 5.0
    assert 0 <= seen["argmax_of_nan"] < 4
    assert seen["max_of_nan_is_nan"]
    assert set(seen["bfloat16"].values()) == {True}


PINNED = """
import json, torch
from dspark_rehearsal import pinning
pinning.pin_nothing()
once = torch.tensor
pinning.pin_nothing()
made = torch.tensor([3, 1], dtype=torch.int32, device="cpu", pin_memory=True)
print(json.dumps({"once": once is torch.tensor, "dtype": str(made.dtype), "made": made.tolist()}))
"""


def test_a_tensor_that_is_to_be_pinned_is_made_without() -> None:
    """PyTorch refuses it where no accelerator is; guided decoding asks for it at every step."""
    assert run("-c", PINNED) == {"once": True, "dtype": "torch.int32", "made": [3, 1]}


@pytest.fixture(scope="module")
def shortcuts() -> Any:
    """What the shortcuts change."""
    return run(str(KERNELS), "shortcuts", TRITON_INTERPRET="1")


def test_shortcuts_change_no_result(shortcuts: Any) -> None:
    """The shortcuts give the same random bits as the interpreter does without them, and the same
    of operands of several types and shapes."""
    assert shortcuts["compared"] >= 1000
    assert shortcuts["different"] == 0
    assert shortcuts["mixed"] == [True, True]
    assert min(shortcuts["values"]) > 30


def test_no_call_of_a_kernel_maps_a_piece_of_stack(shortcuts: Any) -> None:
    """From no depth, where Python alone maps one for each call if the one below it ends there."""
    without, with_room = shortcuts["mapped"]
    assert without > 10 * with_room


def test_a_forked_process_is_what_a_spawned_one_is() -> None:
    """But for its imports: its place, signals, descriptors, title and streams, how it ends, and
    that its death is seen above and below it."""
    spawned, forked = (run(str(SUPPORT / "spawned_process.py"), how) for how in ("exec", "fork"))
    assert (spawned.pop("fresh"), forked.pop("fresh")) == (True, False)
    assert forked == spawned
    assert forked["is_child"] and forked["death_seen"] and forked["orphan_saw_it"]
    assert (forked["killed"], forked["exit_code"]) == (-9, 7)


def test_remembered_shapes_are_those_that_triton_makes() -> None:
    """Types, shapes and sizes of blocks and scalars are told the same, with and without."""
    seen = run(str(KERNELS), "shapes", TRITON_INTERPRET="1")
    assert len(seen["slow"]) == 3
    assert seen["fast"] == seen["slow"]
