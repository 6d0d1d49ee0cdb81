# Each target is one or two commands; `make` alone lists them.
PYTHON ?= python3
PROFILE ?= mi355x
ifeq ($(origin PROFILE) $(MAKECMDGOALS),file rehearsal)
PROFILE = rehearsal
endif
# Files of tests side by side, as many as tests/conftest.py says, those with real servers first.
WORKERS ?= -n auto --maxprocesses 8 --dist loadfile --no-loadscope-reorder
# The shell reads what a user sets as variables, whose value is never a command, to make neither.
words = PYTHON PROFILE RELEASE FROM TO CONTAINERS VERSION URL WORKERS TESTS BENCH MUTANTS
$(foreach word,$(words),$(eval override $(word) := $$(value $(word))))
export $(words)
# Every start imports again, and a worker of the tests rewrites them all: kept bytecode saves most.
export PYTHONDONTWRITEBYTECODE =

.DEFAULT_GOAL := help
.PHONY: help test smoke-test accuracy environment rehearsal rehearsal-images plan preflight build up down logs status \
	weights evidence test-containers test-kubernetes prove upgrade-rehearsal watch-upstream bench mutants lint clean

# Prints the python of a locked environment, making it first if this machine has none.
environment = "$$PYTHON" -m deploy environment

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | expand -t 18

test: ## set up and run the tests, with real vLLM servers on the CPU; TESTS=... for some
	@python="$$($(environment) rehearsal)" && "$$python" -m pytest $$WORKERS $$TESTS

smoke-test: ## set up, start what is here to test, and print what holds and what does not
	@"$$PYTHON" -m deploy smoke

accuracy: ## ask a server of PROFILE, here or at URL, for answers that can be checked
	@"$$PYTHON" -m deploy accuracy --profile "$$PROFILE" --url="$$URL"

environment: ## make the locked environment of tests and rehearsal, once per machine
	@$(environment) rehearsal

rehearsal: ## run vLLM and the health service on the CPU; PROFILE=rehearsal-amd for the AMD classes
	@python="$$($(environment) rehearsal)" && exec "$$python" -m deploy.rehearsal run --profile "$$PROFILE"

rehearsal-images: ## build the images of deploy/k8s/overlays/rehearsal, whole, for a cluster's nodes
	@"$$PYTHON" -m deploy containers --profile rehearsal build && python="$$($(environment) rehearsal)" && "$$python" -m deploy.rehearsal.image whole

plan: ## print what PROFILE would run, and what it asks of a card
	@"$$PYTHON" -m deploy plan --profile "$$PROFILE"

preflight: ## look at this machine before PROFILE is started on it
	@"$$PYTHON" -m deploy preflight --profile "$$PROFILE"

build: ## build the images of PROFILE, and nothing else
	@"$$PYTHON" -m deploy containers --profile "$$PROFILE" build

up: ## build and start the containers of PROFILE; returns when sampled text was generated
	@"$$PYTHON" -m deploy containers --profile "$$PROFILE" up

down: ## stop the containers of PROFILE; volumes stay
	@"$$PYTHON" -m deploy containers --profile "$$PROFILE" down

logs: ## follow the logs of PROFILE
	@"$$PYTHON" -m deploy containers --profile "$$PROFILE" logs

status: ## say what runs of PROFILE and whether it is ready
	@"$$PYTHON" -m deploy containers --profile "$$PROFILE" status

weights: ## download the weights of PROFILE into the volume of the containers
	@"$$PYTHON" -m deploy containers --profile "$$PROFILE" weights

evidence: ## look at this host and its server, and write one file that fills a hardware row
	@"$$PYTHON" -m deploy evidence --profile "$$PROFILE"

test-containers: ## build the images and drill them on a Docker engine
	@python="$$($(environment) rehearsal)" && "$$python" -m pytest -m docker $$TESTS

test-kubernetes: ## drill the rehearsal on the cluster of KUBECONFIG, in a namespace of its own
	@python="$$($(environment) rehearsal)" && "$$python" -m pytest -m kubernetes $${TESTS:-tests/kubernetes}

prove: ## the long statistical proofs, and the audit over every release
	@python="$$($(environment) rehearsal)" && "$$python" -m pytest -m prove $$TESTS

upgrade-rehearsal: ## ask two releases the same on the CPU and say whether to roll; CONTAINERS=yes: roll and go back
	@python="$$($(environment) rehearsal)" && "$$python" -m deploy.rehearsal upgrade --from="$$FROM" --to="$$TO" --containers="$$CONTAINERS"

watch-upstream: ## say what a move to the newest vLLM, or to VERSION, would need; fetches its wheel
	@python="$$($(environment) rehearsal)" && "$$python" -m deploy.upstream --version="$$VERSION"

bench: ## measure what the documents state, as ratios in one run
	@python="$$($(environment) rehearsal)" && "$$python" -m tests.bench $$BENCH

mutants: ## change verdict and judges in thousands of small ways and name those no test sees; MUTANTS=... for some
	@python="$$($(environment) rehearsal)" && "$$python" -m pip install --quiet --no-deps --require-hashes --upgrade --target build/mutmut -r tests/mutants.lock && export PYTHONPATH="$$PWD/build/mutmut" && "$$python" -m mutmut run $$MUTANTS && "$$python" -m mutmut results | sed '/: not checked$$/d'

lint: ## ruff, strict mypy, and the generated files against their sources
	@python="$$($(environment) rehearsal)" && "$$python" -m ruff check . && "$$python" -m ruff format --check . && "$$python" -m mypy && "$$python" -m deploy.monitoring.dashboard --check && "$$python" -m healthcheck.reference --check

clean: ## remove build output; environments and caches stay in the cache folder
	rm -rf build dist mutants
