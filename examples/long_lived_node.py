"""One node for a process, many mutexes on it, and the things that may happen while one is held."""

import asyncio

from softmutex import AcquireTimeout, Hold, Node


def told(hold: Hold) -> None:
    print(f"{hold.name} is taking long")


async def main() -> None:
    async with Node.from_env(group="example-node", name="importer") as node:
        database = node.mutex("db-load", max_hold=0.05, on_overrun=told)

        async with database as hold:
            for chunk in range(4):
                if hold.lost.is_set():
                    break
                await asyncio.sleep(0.02)  # the work
                print(f"chunk {chunk} is in")
                hold.touch()  # there is progress: max_hold begins anew
            await asyncio.sleep(0.1)  # and here there is none

            async def too_late() -> None:
                try:
                    async with database.hold(timeout=0.01):
                        print("never")
                except AcquireTimeout as error:
                    print(f"another task: {error}")

            await asyncio.create_task(too_late())

        if free := await database.try_acquire():
            async with free:
                print("free again")

        @node.mutex("reports").guard(timeout=5)
        async def report() -> str:
            return "written"

        print(f"the report is {await report()}")
        print(database.statistics())


asyncio.run(main())
