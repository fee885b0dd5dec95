# The usual checks; `.ci/run` does all of them in a new environment.
FOLDER ?= tests/functional

.PHONY: test quick lint docs

test:
	python -m pytest

quick:
	python -m pytest -n 0 $(FOLDER)

lint:
	ruff format --check .
	ruff check .
	lint-imports
	mypy

docs:
	sphinx-build -q -W -b html docs docs/_build
