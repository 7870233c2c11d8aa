"""Looks for bytes on which a parser does what it does not promise.

    python tests/fuzzing/guided.py TARGET [--cpu SECONDS] [flags of libFuzzer]

Guided by coverage (atheris): an input that reaches a new branch is kept and changed further. It starts from the seeds
of `parsers.py`. A finding is saved as crash-<digest>; the same command with that file shows it again.
`--cpu`: ends after so many seconds of this process's own work, however busy the machine is.
"""

import os
import sys
import tempfile
from pathlib import Path

import atheris

sys.path.insert(0, str(Path(__file__).parent.parent.parent))
from tests.fuzzing.limited import end_after_cpu_s

with atheris.instrument_imports(include=["softmutex", "softmutex_adapters"]):
    from tests.fuzzing.parsers import TARGETS

LONGEST = 4096


def main() -> None:
    flags, begin = end_after_cpu_s(sys.argv[2:])
    target = TARGETS[sys.argv[1]]
    reproducing = any(Path(argument).is_file() for argument in flags)
    with tempfile.TemporaryDirectory() as seeds:
        for number, seed in enumerate(target.seeds):
            Path(seeds, f"seed-{number}").write_bytes(seed)
        child = os.fork()  # the fuzzer never returns, and would leave the directory behind
        if not child:
            corpora = [] if reproducing else [seeds]
            begin()
            atheris.Setup([sys.argv[0], f"-max_len={LONGEST}", *flags, *corpora], target.try_it)
            atheris.Fuzz()
        _, status = os.waitpid(child, 0)
    sys.exit(os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    main()
