"""The load check: the real draft class of a tree, imported and loaded by vLLM's own code.

The audit reads sources; this runs them, without a GPU and without weights. It is a process of its
own per tree (`inside`), because importing vLLM changes the process that does it.
"""
