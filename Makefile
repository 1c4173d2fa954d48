# nearmetal's two commands are `make quickstart` and `make test`; each does its own set-up.
.DEFAULT_GOAL := help
BIN := .venv/bin

help:            ## this list
	@sed -n 's/^\([a-z-]*\): .*## */  make \1|/p' Makefile | column -t -s '|'

quickstart:      ## set up, run studies/quick.toml, print verdicts, write results/quick/report.html
	@scripts/setup.sh --then 300
	@$(BIN)/nearmetal run studies/quick.toml --output results/quick --again

test:            ## set up, run all tests: fast ones first, then those that boot machines
	@scripts/setup.sh --tests
	@$(BIN)/pytest $(ARGS)

fast:            ## set up, run the fast tests only
	@scripts/setup.sh --tests
	@$(BIN)/pytest -m "not slow" $(ARGS)

setup:           ## install what is missing: Debian packages, .venv, userland, tools
	@scripts/setup.sh

lint:            ## check the style of the Python code
	@scripts/setup.sh --tests
	@$(BIN)/ruff check .

lock:            ## compute requirements.lock and requirements-dev.lock anew
	@scripts/lock.sh

clean-cache:     ## remove the userland and the tools
	@PYTHONPATH=src python3 -m nearmetal.userland --remove

.PHONY: help quickstart test fast setup lint lock clean-cache
