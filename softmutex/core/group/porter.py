"""Who comes to the door: greetings of others, of this node itself, and the word of an operator.

    HELLO, cookie 0 ------> CHALLENGE(cookie), and nothing is remembered
    HELLO(cookie) --------> WELCOME: it is where it says, and is this very life's to know
    HELLO of our own -----> an address of ours (`greeter.py`), or another process under our id, once it proved itself

What it decides: nothing before a cookie came back that only the one who can be reached there, under that id, was told.
The naive way, to remember everybody who asks, gives strangers our memory; to answer with more than was asked, our line.

N1  What arrived is never answered by more bytes than it had, and leaves nothing behind without its cookie (group.P2).
"""

from __future__ import annotations

import hashlib
from typing import Protocol

from softmutex.core.events import Instant, NodeId
from softmutex.core.group.effects import Double, Listed, Mail, Say
from softmutex.core.group.greeter import Ego, Greeter
from softmutex.core.messages import Challenge, Forget, Forgetting, Forgotten, Hello, Message, Welcome


class PorterOwner(Protocol):
    def put(self, effect: Mail | Say | Double) -> None: ...

    def introduce(self, id: NodeId, name: str, source: str, greeted: Listed | None, now: Instant) -> None:
        """It proved that it is there."""
        ...

    def forget_everywhere(self, id: NodeId, now: Instant) -> Forgetting: ...


class Porter:
    def __init__(self, owner: PorterOwner, ego: Ego, greeter: Greeter) -> None:
        self._owner = owner
        self._ego = ego
        self._greeter = greeter
        self._is_doubled = False  # and that is told

    def cookie(self, source: str, sender: NodeId) -> int:
        """Proves that who repeats it can be reached at `source`. Never 0."""
        proof = hashlib.blake2b(f"{sender} {source}".encode(), digest_size=8, key=self._ego.secret).digest()
        return int.from_bytes(proof, "big") | 1

    def hello(self, sender: NodeId, hello: Hello, source: str, to_me: bool, now: Instant) -> None:
        ego, put = self._ego, self._owner.put
        if hello.group != ego.group:
            text = f"a node of another group ({hello.name!r}, {source}) greets this one. It is not answered."
            put(Say("groups", text))
            return
        cookie = self.cookie(source, sender)
        if hello.cookie != cookie or not to_me:
            put(Mail(source, sender, Challenge(hello.nonce, cookie)))
            return
        put(Mail(source, sender, Welcome(hello.nonce, ego.group, ego.name)))
        if not hello.visitor:
            self._owner.introduce(sender, hello.name, source, None, now)

    def own(self, message: Message, source: str, to_me: bool, now: Instant) -> bool:
        """From this very life, or from another process that has its id."""
        me = self._ego.id
        match message:
            case Hello() if self._greeter.heard_myself(message, to_me, now):
                pass
            case Hello() if to_me and message.cookie == self.cookie(source, me):
                if not self._is_doubled:
                    self._is_doubled = True
                    self._owner.put(Double(source))
            case Hello() if not to_me:
                self._owner.put(Mail(source, me, Challenge(message.nonce, self.cookie(source, me))))
            case Challenge(nonce, cookie) if to_me:
                self._greeter.challenged(nonce, me, cookie)
            case _:
                return False
        return True

    def word(self, sender: NodeId, word: Forget, source: str, now: Instant) -> None:
        """Of an operator, who is no member."""
        cookie = self.cookie(source, sender)
        if word.cookie != cookie:
            self._owner.put(Mail(source, sender, Challenge(word.nonce, cookie)))
        else:
            outcome = self._owner.forget_everywhere(word.node, now)
            self._owner.put(Mail(source, sender, Forgotten(word.nonce, outcome)))
