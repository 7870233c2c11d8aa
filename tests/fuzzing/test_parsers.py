"""Any bytes give what a parser promises: its seeds, pieces of them, and what has nothing to do with them."""

import json
import random

import pytest

from tests.fuzzing.parsers import TARGETS

TRIES = 300


def a_job(**otherwise: object) -> bytes:
    told = json.loads(TARGETS["squeue"].seeds[0])
    told["jobs"][0].update(otherwise)
    return json.dumps(told).encode()


# What was found once.
FOUND = {
    "squeue": (
        a_job(submit_time=float("inf")),
        a_job(array_job_id=5, array_task_string="1-99999999999999999999999"),
        a_job(array_job_id=99999999999, array_task_string="1"),
        a_job(admin_comment=f"softmutex=x:timeout={'1' * 4000}+"),  # took 2 ** 4000 steps
    ),
}


def inputs(seeds: tuple[bytes, ...], rng: random.Random):
    yield from seeds
    for _ in range(TRIES):
        seed = bytearray(rng.choice(seeds))
        for _ in range(rng.randrange(4)):
            match rng.randrange(4):
                case 0:
                    seed[rng.randrange(len(seed) + 1) :] = b""
                case 1:
                    seed += rng.randbytes(rng.randrange(9))
                case 2 if seed:
                    seed[rng.randrange(len(seed))] = rng.randrange(256)
                case _:
                    at = rng.randrange(len(seed) + 1)
                    seed[at:at] = rng.choice([b"\0", b"-1", b"1e999", b'"', b"[[", b"\xff", b"9" * 30, b"\xe2\x80\xa8"])
        yield bytes(seed)


@pytest.mark.parametrize("name", TARGETS)
def test_any_bytes_give_what_the_parser_promises(name: str):
    target = TARGETS[name]
    for data in (*FOUND.get(name, ()), *inputs(target.seeds, random.Random(name))):
        target.try_it(data)
