# The two commands to know are `make demo` and `make test`. Both do all set-up that a Debian or Ubuntu machine with Go
# needs; `make help` lists the rest.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c

VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
LDFLAGS := -s -w -X github.com/sluicehq/sluice/internal/cli.version=$(VERSION)
LINT := bin/tools/golangci-lint

.PHONY: help setup build demo test test-versions check lint bench clean

help: ## list these targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 16

setup: ## install what tests and checks need and this machine lacks
	scripts/setup.sh

.PHONY: postgres
postgres:
	@scripts/setup.sh postgres

build: ## bin/sluice, one static binary
	CGO_ENABLED=0 go build -trimpath -ldflags '$(LDFLAGS)' -o bin/sluice ./cmd/sluice

demo: postgres build ## a shop that is written to, mirrored from a throw-away PostgreSQL to a SQLite file: under a minute
	go run ./test/demo

test: setup check ## everything, and what depends on the server once more on the newest PostgreSQL
	go test -race -timeout 30m ./...
	scripts/test-versions.sh newest

test-versions: setup ## the PostgreSQL tests on every supported major, and from the oldest to the newest and back
	scripts/test-versions.sh

check: lint ## formatting, vet, lint, tests without a server, every fuzzer for 10 s
	go test -race -short ./...
	scripts/fuzz.sh 10s

lint: $(LINT) ## formatting, vet and lint
	@unformatted=$$(gofmt -l $$(git ls-files '*.go')); \
	if [ -n "$$unformatted" ]; then echo "not formatted by gofmt:"; echo "$$unformatted"; exit 1; fi
	go vet ./...
	$(LINT) run

$(LINT):
	scripts/setup.sh lint

bench: postgres build ## how fast it is, as ratios to other tools on this machine
	go run ./test/bench

clean: ## delete what the other targets made
	rm -rf bin
