"""Vital signs of the server's processes, from its parent in its container to the verdict.

HTTP alone cannot tell a hang from a compile; the processes can. `writer` runs beside the server and
puts a small file beside its log, whole or not at all; `file` reads it in the health service, where
what is missing, old, of another boot or not understood means "not seen"; `model` is what both know.

The writer needs psutil, which vLLM brings along; the reader needs nothing.
"""
