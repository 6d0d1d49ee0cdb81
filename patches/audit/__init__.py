"""A static audit: what shared vLLM code reads off draft models, and which class lacks it.

Nothing of the audited tree is imported or run; every file is only parsed. The reading direction is
`speculators` (who reads) -> `reads` (the data flow) -> `gaps` (against `classes`, per `platforms`).
Two more look for answers that are wrong though nothing is missing: `options` (what a model sets
for its experts) -> `backends` -> `dropped`, and `layouts` (who shares a cache) -> `launches` ->
`kernels`.
"""
