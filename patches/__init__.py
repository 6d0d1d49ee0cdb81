"""The patch series a pinned vLLM needs, and the tools that carry, check and explain it.

Only the standard library is imported: the package runs in a bare ``python3.11`` and in the image.
"""
