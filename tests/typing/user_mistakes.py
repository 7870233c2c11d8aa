"""What a type checker must not let pass. Each marked line has one error, and no other line has any."""

from softmutex import Node, SoftMutex, sync


async def mistakes(node: Node) -> None:
    SoftMutex("x", time_out=3)  # mistake
    SoftMutex(5)  # mistake
    node.mutex("x", slots="many")  # mistake
    node.mutex("x", on_overrun="shout")  # mistake
    Node(transport=9431)  # mistake
    async with SoftMutex("x") as hold:
        hold.epoch = 3  # mistake
    with sync.SoftMutex("x") as held:
        await held.release()  # mistake
