# Each target is one or two commands; `make` alone lists them.
PYTHON ?= python3
PROFILE ?= mi355x

.DEFAULT_GOAL := help
.PHONY: help test smoke-test rehearsal plan lint bench clean

# Prints the python of a locked environment, making it first if this machine has none.
environment = $(PYTHON) -m deploy environment

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | expand -t 14

test: ## set up and run the tests, with a real vLLM server on the CPU
	@python="$$($(environment) rehearsal)" && "$$python" -m pytest $(TESTS)

smoke-test: ## set up, start what is here to test, and print what holds and what does not
	@$(PYTHON) -m deploy smoke

rehearsal: ## run vLLM and the health service on the CPU in the foreground
	@python="$$($(environment) rehearsal)" && exec "$$python" -m deploy.rehearsal run

plan: ## print what PROFILE would run
	@$(PYTHON) -m deploy plan --profile $(PROFILE)

lint: ## ruff and strict mypy
	@python="$$($(environment) rehearsal)" && "$$python" -m ruff check . && "$$python" -m ruff format --check . && "$$python" -m mypy

clean: ## remove build output; the environments stay in the cache folder
	rm -rf build dist
