"""torch's own test suite for process groups (torch.testing._internal.distributed), over this backend.

The suite gates its tests on the name of the backend; what it runs for a third-party one must pass, and what it keeps
for Gloo and MPI alone though closeranks can do it as well. Its workers are forked rather than spawned, which takes a
test from three seconds to a fraction.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

# Upstream's own: the test asserts the name of one of torch's backends.
EXPECTED_FAILURES = {"test_ddp_logging_data_cpu"}
# Under a minute on an idle machine.
DEADLINE_S = 600

PROGRAM = """
import re, sys, torch, unittest
import torch.distributed as dist
import closeranks
from torch.testing._internal.common_distributed import DistTestCases

# Before the suite is imported: its decorators look while they decorate.
for feature in ("ddp", "subgroup"):
    DistTestCases.backend_feature[feature].add("closeranks")

from torch.testing._internal.distributed import distributed_test
from torch.testing._internal.distributed.distributed_test import DistributedTest, TestDistBackend


class SuiteTest(TestDistBackend, DistributedTest._DistTestBase):
    def setUp(self):
        super(TestDistBackend, self).setUp()
        distributed_test.initialize_temp_directories()
        distributed_test.Barrier.init()
        self.skip_return_code_checks = []
        self._start_processes(torch.multiprocessing.get_context("fork").Process)


# Gates on the name of a backend, for what closeranks can do as well.
SERVED = re.compile(
    "Only MPI supports (CPU )?all_to_all(_single)?"
    "|get_future is only supported on mpi, nccl and gloo"
    "|Only gloo backend supports timeouts"
    "|GLOO Batch Send Recv CPU"
    "|Test requires backend closeranks to be one of .*'gloo'.*"
)
# But not what takes a way of its own for each name, expects Gloo's words, or another init_method.
OF_OTHERS = re.compile("test_accumulate_gradients_no_sync.*|test_monitored_barrier_gloo.*|test_barrier_timeout_global")
for name in dir(SuiteTest):
    test = getattr(SuiteTest, name)
    if not name.startswith("test_") or OF_OTHERS.fullmatch(name):
        continue
    if SERVED.fullmatch(getattr(test, "__unittest_skip_why__", "")):
        test.__unittest_skip__ = False

if __name__ == "__main__":
    unittest.main(verbosity=2, argv=[sys.argv[0], *sys.argv[1:]])
"""


# The rest of the suite is about DDP, and does not look at the number of ranks.
COLLECTIVES = ("all_to_all", "gather", "scatter", "reduce", "broadcast", "barrier", "send", "group", "object")


@pytest.mark.parametrize(("world", "patterns", "least"), [(2, (), 85), (4, COLLECTIVES, 60)])
def test_torch_suite(tmp_path: Path, world: int, patterns: tuple[str, ...], least: int) -> None:
    program = tmp_path / "suite.py"
    program.write_text(PROGRAM)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    environment = {
        **os.environ,
        "BACKEND": "closeranks",
        "WORLD_SIZE": str(world),
        "TEMP_DIR": str(temporary),
        "OMP_NUM_THREADS": "1",
    }
    chosen = [argument for pattern in patterns for argument in ("-k", pattern)]
    result = subprocess.run(
        [sys.executable, str(program), *chosen],
        env=environment,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    lines = result.stderr.splitlines()
    failed = {
        line.split()[1]
        for line in lines
        if line.startswith(("FAIL: ", "ERROR: ")) and line.split()[1].startswith("test_")
    }
    assert failed <= EXPECTED_FAILURES, result.stderr[-8000:]
    # By the closing lines: torch's own log lines fall between a test's name and its "ok".
    ran = re.search(r"^Ran (\d+) tests", result.stderr, re.MULTILINE)
    skipped = re.search(r"^(?:OK|FAILED) \(.*skipped=(\d+)", result.stderr, re.MULTILINE)
    assert ran is not None and skipped is not None, result.stderr[-8000:]
    assert int(ran.group(1)) - int(skipped.group(1)) - len(failed) >= least, result.stderr[-8000:]
