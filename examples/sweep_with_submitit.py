"""Every run of a sweep as a job of submitit, on Slurm or on this machine: python sweep_with_submitit.py FILE.toml"""

import os
import signal
import subprocess
import sys
import time

import submitit  # pyright: ignore[reportMissingImports]  (it is not among Kemeny's dependencies)


class Member:
    """One run of the sweep: `kemeny sweep FILE.toml --array INDEX`."""

    def __call__(self, file: str, index: int) -> None:
        """Train; exit code 75 asks for the same again."""
        while True:
            self.process = subprocess.Popen(["kemeny", "sweep", file, "--array", str(index)])
            while (code := self.process.poll()) is None:
                time.sleep(0.5)
            if code != 75:
                return sys.exit(code) if code else None
            time.sleep(60)  # another process may be at work on this run

    def checkpoint(self, file: str, index: int) -> submitit.helpers.DelayedSubmission:
        """When the job must leave, submitit calls this in the middle of the above, and requeues what it returns."""
        self.process.send_signal(signal.SIGTERM)  # which writes a checkpoint
        os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOWAIT)
        return submitit.helpers.DelayedSubmission(Member(), file, index)


if __name__ == "__main__":
    count = int(subprocess.check_output(["kemeny", "sweep", sys.argv[1], "--count"]))
    executor = submitit.AutoExecutor(folder="submitit_logs")  # Slurm if there is one, otherwise this machine
    executor.update_parameters(timeout_min=240, cpus_per_task=2)
    for job in executor.map_array(Member(), [sys.argv[1]] * count, range(count)):
        job.result()
