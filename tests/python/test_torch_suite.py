"""torch's own test suite for process groups (torch.testing._internal.distributed), over this backend.

The suite gates its tests on the backend's name; what it then runs for a third-party one must pass. Its workers are
forked rather than spawned, which takes a test from three seconds to a fraction.
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
import sys, torch, unittest
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


if __name__ == "__main__":
    unittest.main(verbosity=2, argv=[sys.argv[0], *sys.argv[1:]])
"""


@pytest.mark.parametrize("world", [2, 4])
def test_torch_suite(tmp_path: Path, world: int) -> None:
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
    result = subprocess.run(
        [sys.executable, str(program)], env=environment, capture_output=True, text=True, timeout=DEADLINE_S, check=False
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
    assert int(ran.group(1)) - int(skipped.group(1)) - len(failed) >= 50, result.stderr[-8000:]
