"""Runs PyTorch's own DistributedTest, as the installed wheel ships it, on one
backend with four forked processes a test; writes a JSON of results. Called by
``run`` beside it.

The suite reads the backend's name at import for its decorators and at run time
for its bodies. It is imported as "gloo", so that tests are not left out only
because our name is unknown to it, and runs under the name given.
"""

import argparse
import fnmatch
import json
import os
import sys
import tempfile
import time
import unittest

WORLD_SIZE = 4


def prepare():
    """What the module wants to find when it is imported."""
    folder = tempfile.mkdtemp(prefix="gpubridge-upstream-")
    for name in ("barrier", "test_dir"):
        os.mkdir(os.path.join(folder, name))
    os.environ.update(
        BACKEND="gloo",
        WORLD_SIZE=str(WORLD_SIZE),
        TEMP_DIR=folder,
        MASTER_ADDR="127.0.0.1",
        OMP_NUM_THREADS="1",
        DISTRIBUTED_TESTS_DEFAULT_TIMEOUT="60",
    )


def make_class(backend):
    import torch
    from torch.testing._internal.distributed import distributed_test as upstream

    if backend == "gpubridge":
        import gpubridge  # noqa: F401 - registers the name
    upstream.BACKEND = backend
    torch.set_num_threads(1)

    class TestDistBackendWithFork(
        upstream.TestDistBackend, upstream.DistributedTest._DistTestBase
    ):
        def setUp(self):
            super().setUp()
            # Children inherit torch; a fresh interpreter a rank would take 20 s
            # a test on two cores.
            self._start_processes(torch.multiprocessing.get_context("fork").Process)

        @classmethod
        def _run(cls, rank, *args, **kwargs):
            os.environ["GPUBRIDGE_VENDOR"] = "nvidia" if rank < 2 else "amd"
            super()._run(rank, *args, **kwargs)

    return TestDistBackendWithFork


class Results(unittest.TestResult):
    """name -> {"outcome", "why", "seconds"}."""

    def __init__(self, verbose):
        super().__init__()
        self.verbose = verbose
        self.tests = {}
        self.began = 0

    def startTest(self, test):
        super().startTest(test)
        self.began = time.monotonic()

    def _note(self, test, outcome, why=""):
        name = test.id().split(".")[-1]
        seconds = round(time.monotonic() - self.began, 2)
        self.tests[name] = {"outcome": outcome, "why": why, "seconds": seconds}
        if self.verbose or outcome == "failed":
            print(f"{outcome:8}{name} ({seconds} s)", file=sys.stderr, flush=True)
        if outcome == "failed" and self.verbose:
            print(why, file=sys.stderr, flush=True)

    def addSuccess(self, test):
        self._note(test, "passed")

    def addSkip(self, test, reason):
        self._note(test, "skipped", reason)

    def addFailure(self, test, error):
        self._note(test, "failed", self._exc_info_to_string(error, test))

    addError = addFailure


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("backend", choices=["gloo", "gpubridge"])
    parser.add_argument("output", help="JSON file to write")
    parser.add_argument("--only", default="*", help="pattern of test names")
    parser.add_argument("--names", help="file with the names to run, one a line")
    parser.add_argument("--verbose", action="store_true")
    given = parser.parse_args()
    prepare()
    made = make_class(given.backend)
    names = unittest.TestLoader().getTestCaseNames(made)
    if given.names:
        with open(given.names) as file:
            wanted = set(file.read().split())
        names = [name for name in names if name in wanted]
    names = [name for name in names if fnmatch.fnmatch(name, given.only)]
    results = Results(given.verbose)
    made.setUpClass()
    for name in names:
        made(name).run(results)
    made.tearDownClass()
    with open(given.output, "w") as file:
        json.dump(results.tests, file, indent=1)


if __name__ == "__main__":
    main()
