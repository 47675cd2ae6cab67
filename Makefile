# Everything a person types. `make demo` and `make test` work on a fresh
# machine; each installs what is missing first.

PYTHON ?= python3
PREFIX ?= /usr/local
JOBS ?= $(shell nproc)

.PHONY: build demo test test-quick test-fakes test-gpu test-vm bench format tidy clean install

build: build/.stamp-python

# The library, the command and the tests of the dev build.
build/lib/libgpubridge.so: .FORCE
	@scripts/setup system
	@test -f build/build.ninja || cmake --preset dev >/dev/null
	@cmake --build build -j$(JOBS)

# The virtual environment with torch and our package.
build/.stamp-python: build/lib/libgpubridge.so .FORCE
	@scripts/setup python
	@scripts/setup package
	@touch $@

demo: build
	@.venv/bin/python examples/demo.py

test: build
	@.venv/bin/python tests/run

# The dev build's tests only.
test-quick: build
	@.venv/bin/python tests/run --only dev,python

# The GPU engine on fakes of the vendors' libraries.
test-fakes: build
	@.venv/bin/python tests/run --only fakes

# On a machine with an NVIDIA GPU: two ranks, two islands, one card.
test-gpu:
	@tests/gpu/run

# The verbs bridge over a real kernel's RDMA stack, in a virtual machine.
test-vm: build/lib/libgpubridge.so
	@scripts/setup vm
	@tests/vm/run

bench: build
	@scripts/setup release
	@.venv/bin/python bench/run

format:
	@scripts/setup lint
	@git ls-files '*.c' '*.h' | xargs clang-format -i

tidy: build
	@scripts/setup lint
	@.venv/bin/python tests/tidy/tidy.py
	@.venv/bin/python tests/tidy/tidy.py --clang-tidy

install: build
	@cmake --install build --prefix $(PREFIX)

clean:
	rm -rf build build-* dist demo-loss.svg

.FORCE:
