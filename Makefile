# Two commands for a newcomer: `make train` and `make test`. Each installs what it needs into .venv first.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
VERSION_TESTS := $(wildcard tests/models/test_*.py tests/learner/test_*.py) tests/engines/test_slots.py \
	tests/engines/test_check_engine.py tests/commands/test_command_line.py
export OMP_NUM_THREADS ?= 1
export PIP_DISABLE_PIP_VERSION_CHECK = 1

.PHONY: train test test-slow test-kill test-vllm test-ray test-hosts test-gpu test-agents test-quantization test-versions test-oldest test-newest lint docs site wheel lock model hinted_sums blank flow vision seeds laptop atlas studies bench bench-full bench-self clean

train: $(VENV)/base
	$(BIN)/groupwise train

test: $(VENV)/dev
	$(BIN)/pytest -q -n 3 --dist loadfile --no-loadscope-reorder -m "not slow and not kill and not vllm and not ray and not hosts and not gpu and not agents and not quantization"

test-slow: $(VENV)/dev
	$(BIN)/pytest -q -m slow

test-kill: $(VENV)/dev  ## every process of a run killed or stopped at every kind of moment
	$(BIN)/pytest -q -m kill

test-vllm: $(VENV)/dev  ## vLLM's engine; its environment of 3.5 GB goes into .venv-vllm
	$(BIN)/python -m tools.vllm_environment .venv-vllm
	$(BIN)/pytest -q -m vllm tests/engines

test-ray: .venv-ray/ray  ## Ray as the launcher, in an environment of 1.5 GB
	.venv-ray/bin/pytest -q -m ray tests/cluster

test-hosts: $(VENV)/dev  ## two hosts as network namespaces: torchrun, engines, cuts; Slurm if it is installed; needs root
	$(BIN)/pytest -q -rs -m hosts tests/cluster tests/docs

test-gpu: $(VENV)/dev  ## on a real GPU: graphs, equal bits, whole runs; writes benchmarks/GPU.md
	$(BIN)/pytest -q -rs -m gpu tests/gpu

test-agents: $(VENV)/dev  ## agents of public packages, in environments of 2 GB in .venv-agents; needs npm and bubblewrap
	$(BIN)/python -m tools.agent_environments .venv-agents
	$(BIN)/pytest -q -m agents tests/examples/test_agent_packages.py

test-quantization: .venv-quantization/dev  ## weights in 4 bits with bitsandbytes itself, in an environment of 1.4 GB
	.venv-quantization/bin/pytest -q -m "not slow and not kill" tests/models/test_bitsandbytes.py tests/models/test_nf4.py \
		tests/training/test_quantized_runs.py

test-versions: test-oldest test-newest  ## the two ends of the ranges in pyproject.toml, an environment of 7 GB each

# docs/versions.md says why these tests are left out.
test-oldest: .venv-oldest/base
	.venv-oldest/bin/pytest -q -m "not slow and not browser" -k "not embeddings_gradient_is_added" $(filter-out %/test_compiled.py,$(VERSION_TESTS))

test-newest: .venv-newest/base
	.venv-newest/bin/pytest -q -m "not slow and not browser" $(VERSION_TESTS)

lint: $(VENV)/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/pyright --pythonpath $(BIN)/python

docs: $(VENV)/dev  ## pages that are generated from the package
	$(BIN)/python -m tools.method_pages docs/methods.md
	$(BIN)/python -m tools.metrics_page docs/notation.md
	$(BIN)/python -m tools.sockets_page
	$(BIN)/python -m tools.fields_page
	$(BIN)/python -m tools.api_page

site: $(VENV)/site  ## the documentation as a website in build/site; fails on a broken link
	$(BIN)/python -m mkdocs build -q

wheel: build/release  ## what is uploaded: the wheel and the source in dist/, with their metadata and contents checked
	rm -rf dist
	build/release/bin/python -m build -q -o dist .
	build/release/bin/twine check --strict dist/*
	build/release/bin/python -m tools.check_dist dist

lock: build/release  ## requirements.lock: the versions of constraints.txt with the hashes of their published files
	build/release/bin/python -m tools.lock build/release/bin/uv

model: $(VENV)/base  ## the packaged model, from demonstrations
	$(BIN)/python -m tools.packaged_model tools/calculator_model.toml src/groupwise/models/calculator

hinted_sums: $(VENV)/base  ## the packaged model of the task hinted_sums
	$(BIN)/python -m tools.packaged_model tools/hinted_sums_model.toml src/groupwise/models/hinted_sums

blank: $(VENV)/base  ## the packaged directory of a model without weights
	$(BIN)/python -m tools.blank_model src/groupwise/models/blank

flow: $(VENV)/base  ## the packaged flow models of the tasks rings, quilts and glyphs, and the masked model of beads
	$(BIN)/python -m tools.flow_models src/groupwise/models
	$(BIN)/python -m tools.masked_models src/groupwise/models

vision: $(VENV)/base  ## the packaged vision-language model of the task shapes
	$(BIN)/python -m tools.vision_models src/groupwise/models

seeds: $(VENV)/base  ## benchmarks/SEEDS.md and its curve: ten seeds of the packaged recipe
	$(BIN)/python benchmarks/seeds.py

laptop: $(VENV)/base  ## the tables and curves of docs/laptop.md: three seeds per recipe
	$(BIN)/python benchmarks/seeds.py recipes/programs.toml recipes/big_sums.toml

atlas: $(VENV)/base  ## docs/atlas.md: the effect of each published method; finished runs are skipped
	$(BIN)/python -m benchmarks.atlas

studies: $(VENV)/studies  ## docs/studies: effects that papers claim, with five seeds; finished runs are skipped
	$(BIN)/python -m studies --jobs 2
	$(BIN)/python -m tools.start_page

bench: $(VENV)/bench  ## Groupwise and TRL on equal work, (a) to (e), in about 13 minutes
	$(BIN)/python -m benchmarks.trl_comparison --write

bench-full: $(VENV)/bench  ## all of benchmarks/RESULTS.md
	$(BIN)/python -m benchmarks.trl_comparison sweep stored_sweep a b c d e g h sft dpo frugal two growth curves --write

bench-self: $(VENV)/base  ## this commit and an earlier one on equal work; BASE is the earlier commit
	$(BIN)/python -m benchmarks.earlier_commit $(BASE) --write

$(VENV)/base: pyproject.toml constraints.txt
	@echo "installing into $(VENV), once; torch is large"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q -c constraints.txt -e .
	@touch $@

$(VENV)/dev: $(VENV)/base
	$(BIN)/pip install -q -c constraints.txt -e '.[dev]'
	@touch $@

$(VENV)/bench: $(VENV)/base
	$(BIN)/pip install -q -c constraints.txt -e '.[bench]'
	@touch $@

$(VENV)/studies: $(VENV)/base
	$(BIN)/pip install -q -c constraints.txt -e '.[studies]'
	@touch $@

$(VENV)/site: $(VENV)/base
	$(BIN)/pip install -q -c constraints.txt -e '.[site]'
	@touch $@

build/release: constraints.txt
	$(PYTHON) -m venv $@
	$@/bin/pip install -q -c constraints.txt build twine uv
	@touch $@

.venv-oldest/base: RESOLUTION := lowest-direct
.venv-newest/base: RESOLUTION := highest
.venv-%/base: pyproject.toml | build/release
	build/release/bin/uv venv -q --clear .venv-$* --python $(PYTHON)
	build/release/bin/uv pip install -q --python .venv-$* --resolution $(RESOLUTION) -e '.[gguf,json,lora,math,pictures]'
	build/release/bin/uv pip install -q --python .venv-$* -c constraints.txt beartype hypothesis pytest pytest-timeout
	@touch $@

.venv-ray/ray: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-ray
	.venv-ray/bin/pip install -q -c constraints.txt -e '.[ray,lora]' beartype hypothesis pytest pytest-timeout
	@touch $@

.venv-quantization/dev: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-quantization
	.venv-quantization/bin/pip install -q -c constraints.txt -e '.[quantization]' beartype hypothesis pytest pytest-timeout
	@touch $@

clean:
	rm -rf $(VENV) .venv-oldest .venv-newest runs build dist
