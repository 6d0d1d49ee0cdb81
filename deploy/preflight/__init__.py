"""Preflight: facts about this machine in, findings out, before a server is started.

`host` is the one way to the machine, `facts` gathers what is needed, `checks` judges the facts
without touching anything, `cli` prints. `engine` asks vLLM itself about the plan.
"""
