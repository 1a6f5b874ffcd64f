# SPDX-License-Identifier: Apache-2.0
# The one entry to this repository. Every target does its own set-up and is quick to run again.

PYTHON_BIN := .venv/bin
ISOLATED := tools/isolated.sh
UV_VERSION := 0.13.9
UV := .venv-lock/bin/uv
COMPILE := $(UV) pip compile pyproject.toml --group build --universal --python-version 3.11 \
	--generate-hashes --no-emit-index-url --no-annotate --quiet \
	--custom-compile-command "make lock" $(if $(UPGRADE),--upgrade)

.DEFAULT_GOAL := help
.PHONY: help demo test test-clients test-wine check format bench bench-clients proto lock clean

help: ## Say what there is
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 22

demo: ## Show the service at work, in namespaces of its own (root)
	@tools/bootstrap.sh demo
	@$(PYTHON_BIN)/pycni demo

test: ## Run every test; ARGS="..." goes to pytest (root)
	@tools/bootstrap.sh test
	@$(if $(ARGS),$(ISOLATED) $(PYTHON_BIN)/python -m pytest -m "" --fail-on-skip --ignore=tests/clients $(ARGS),tools/test.sh)

test-clients: ## Let containerd and podman run the plugins; ARGS="..." goes to pytest (root)
	@tools/bootstrap.sh test-clients
	@$(ISOLATED) $(PYTHON_BIN)/python -m pytest -m "" --fail-on-skip tests/clients $(ARGS)

test-wine: ## Run the Windows tests with a Windows Python under wine; ARGS="..." goes to pytest
	@tools/test-wine.sh $(ARGS)

check: ## Format, lint, types, layers and the tests that need no root
	@tools/bootstrap.sh check
	@$(PYTHON_BIN)/ruff format --check --quiet
	@$(PYTHON_BIN)/ruff check --quiet
	@$(PYTHON_BIN)/mypy --no-error-summary
	@$(PYTHON_BIN)/lint-imports --no-logo >/dev/null || $(PYTHON_BIN)/lint-imports --no-logo
	@$(PYTHON_BIN)/python -m pytest -q -m "not root and not slow" tests/unit tests/meta --deselect tests/meta/test_linters.py

format: ## Format the code and mend what ruff can mend
	@tools/bootstrap.sh check
	@$(PYTHON_BIN)/ruff check --fix --quiet || true
	@$(PYTHON_BIN)/ruff format --quiet

bench: ## Compare with the Go plugins; JSON=FILE writes the rows (root)
	@tools/bootstrap.sh bench
	@$(ISOLATED) $(PYTHON_BIN)/python -m bench $(if $(JSON),--json $(JSON))

bench-clients: ## Time the starts of containers in containerd; JSON=FILE writes the rows (root)
	@tools/bootstrap.sh test-clients
	@$(ISOLATED) $(PYTHON_BIN)/python -m bench.clients $(if $(JSON),--json $(JSON))

proto: ## Generate the Python code of proto/
	@tools/bootstrap.sh check
	@$(PYTHON_BIN)/python tools/generate_proto.py

lock: ## Pin the dependencies anew; UPGRADE=1 takes newer versions
	@test -x $(UV) || (python3 -m venv .venv-lock && $(UV:uv=pip) install --quiet uv==$(UV_VERSION) && echo "installed uv $(UV_VERSION)")
	@$(COMPILE) --extra dev --output-file requirements-dev.lock
	@$(COMPILE) --constraint requirements-dev.lock --output-file requirements.lock

clean: ## Remove what was built and installed here
	@rm -rf .venv .venv-lock build dist src/pycni.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .coverage*
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
