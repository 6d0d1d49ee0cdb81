"""The CPU rehearsal: a real, patched vLLM server with tiny DSpark models, without an MI GPU.

A rehearsal proves the HTTP surface, the speculator, the sampler and the health service; the one in
`amd` the AMD classes as well. It proves nothing about HIP, AITER or compiled kernels. Nothing that
runs in production reads a ``REHEARSAL_*`` variable, except the plan, which expands
``${REHEARSAL_HOME}``.
"""

from deploy.rehearsal.environment import RehearsalEnvironment, prepare
from deploy.rehearsal.errors import RehearsalError

__all__ = ["RehearsalEnvironment", "RehearsalError", "prepare"]
