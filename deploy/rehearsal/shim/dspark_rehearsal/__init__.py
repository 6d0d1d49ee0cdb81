"""What a CPU rehearsal adds to vLLM and Triton through their own entry points; no file is edited.

- ``compiler`` and ``driver`` are the ``cpu`` entry of Triton's backend registry.
- ``plugin`` is loaded by vLLM in every process of the server; it lets the engine and the workers
  be forked instead of started anew (``forking``) and nap while they wait (``waiting``), mends
  Triton's interpreter (``interpreter``), shortens its ways (``speed``), goes around a kernel that
  it cannot run (``masking``) and around pinned memory (``pinning``), and arms a fault (``faults``).

All of it does nothing unless TRITON_INTERPRET=1. Nothing here imports anything outside this
package, Triton and vLLM, because this folder stands alone on PYTHONPATH.
"""
