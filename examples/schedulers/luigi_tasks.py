"""Luigi: the mutex around the transfer in `run`. Luigi's `resources` limit one scheduler; this limits all of them.

python -m luigi --module luigi_tasks All --directory DIR --local-scheduler --workers 4
"""

import time
from collections.abc import Iterator
from pathlib import Path

import luigi

from softmutex import sync


class Fetch(luigi.Task):
    directory = luigi.Parameter()
    number = luigi.IntParameter()
    retry_count = 50  # a turn that does not come in time (AcquireTimeout) fails the task, and Luigi tries it again

    def output(self) -> luigi.LocalTarget:
        return luigi.LocalTarget(str(Path(self.directory, f"{self.number}.done")))

    def run(self) -> None:
        log_path = Path(self.directory, "visits")
        with sync.SoftMutex("nightly-ftp", timeout=60):
            with log_path.open("a") as log:
                log.write("in\n")
            time.sleep(0.1)  # the transfer
            with log_path.open("a") as log:
                log.write("out\n")
        with self.output().open("w") as done:
            done.write("done\n")


class All(luigi.WrapperTask):
    directory = luigi.Parameter()

    def requires(self) -> Iterator[Fetch]:
        for number in range(4):
            yield Fetch(directory=self.directory, number=number)
