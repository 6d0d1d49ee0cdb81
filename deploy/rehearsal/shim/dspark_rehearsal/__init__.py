"""What a CPU rehearsal adds to vLLM and Triton through their own entry points; no file is edited.

- ``compiler`` and ``driver`` are the ``cpu`` entry of Triton's backend registry.
- ``plugin`` is loaded by vLLM in every process of the server; it lets the engine and the workers
  be forked instead of started anew (``forking``) and nap while they wait (``waiting``), asks model
  classes without a process of their own (``inspecting``), mends Triton's interpreter
  (``interpreter``, ``floats``), shortens its ways (``speed``), goes around a kernel that it cannot
  run (``masking``) and around pinned memory (``pinning``), and arms a fault (``faults``). With
  REHEARSAL_ARCH set it stands vLLM on an AMD card, by ``deploy.rehearsal.amd``.

All of it does nothing unless TRITON_INTERPRET=1. Nothing here but that imports anything outside
this package, Triton, torch and vLLM, because this folder stands alone on PYTHONPATH.
"""
