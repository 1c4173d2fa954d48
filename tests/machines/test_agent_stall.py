"""An agent that is stopped for a while, as on a busy host, loses no output."""

from __future__ import annotations

import os
import random
import signal
import threading
import time


def test_output_is_whole_when_the_agent_stalls(machine):
    over = threading.Event()
    chance = random.Random(1)

    def stall():
        while not over.is_set():
            os.kill(machine.process.pid, signal.SIGSTOP)
            time.sleep(0.13)  # longer than the agent waits for the orphans of a job
            os.kill(machine.process.pid, signal.SIGCONT)
            time.sleep(0.006 * chance.random())

    thread = threading.Thread(target=stall)
    thread.start()
    try:
        for _ in range(40):  # two of them were cut short, with status 0
            done = machine.run(["head", "-c", "300000", "/dev/zero"], timeout=60)
            assert done.status == 0 and len(done.stdout) == 300000
    finally:
        over.set()
        thread.join()
