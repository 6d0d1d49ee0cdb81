"""Tells whether a vLLM server that speculates with DSpark really serves, and why not."""
