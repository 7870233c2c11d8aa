"""`python -m softmutex`: the command, by the interpreter that has it."""

from __future__ import annotations

import sys

from softmutex.cli import main

if __name__ == "__main__":
    sys.exit(main())
