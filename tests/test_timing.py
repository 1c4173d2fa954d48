"""The lab's figures against those of a timer that knows nothing of it (hyperfine)."""

import json
import shutil
import statistics
import subprocess

import pytest


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_native_times_agree_with_hyperfine(tmp_path):
    """A one-second command, timed in turn by the lab and by hyperfine: within 2 %."""
    if shutil.which("hyperfine") is None:
        pytest.fail("hyperfine is missing; `make test` installs it")
    from nearmetal import cleanup, userland
    from nearmetal.machines.base import Order, Shape
    from nearmetal.machines.host import Host
    from nearmetal.machines.path import Environment

    built = userland.ensure(None)
    mark = cleanup.new_mark()
    host = Host(mark, built.tree)
    order = Order(mark, "timed", Shape(1, 256), built, tmp_path)
    machine = Environment.parse("native").up(host, order)
    program = "i=0; while [ $i -lt 60000 ]; do i=$((i+1)); done; sleep 0.95"
    try:
        ours, theirs = [], []
        for number in range(8):
            def lab():
                done = machine.run(["sh", "-c", program], timeout=30)
                assert done.status == 0
                ours.append(done.machine_ns / 1e9)
                assert 0 <= done.host_ns - done.machine_ns < 0.02e9  # what asking costs

            def other():
                out = tmp_path / "h.json"
                command = ["taskset", "-c", "0", "chroot", str(built.tree), "/bin/sh", "-c",
                           program]
                import shlex
                subprocess.run(["hyperfine", "-N", "--runs", "1", "--warmup", "0", "--export-json",
                                str(out), shlex.join(command)], check=True, timeout=60,
                               capture_output=True)
                theirs.append(json.loads(out.read_text())["results"][0]["times"][0])

            for one in ((lab, other) if number % 2 else (other, lab)):
                one()
    finally:
        machine.down()
        host.down()
    # The least of several is what neither's neighbours disturbed.
    assert min(ours) == pytest.approx(min(theirs), rel=0.02)
    assert statistics.median(ours) == pytest.approx(statistics.median(theirs), rel=0.05)
