"""The compile proof: the Triton kernels of a profile's path, made into code of its card without it.

vLLM's own wrappers are called with tensors that have the production shapes and no memory, so that
they choose block sizes, warps and branches as on a card; Triton's own AMD backend compiles what
they launch, and nothing is launched. It is a process of its own per tree and architecture
(`inside`), because vLLM asks for the architecture once, when it is imported.
"""
