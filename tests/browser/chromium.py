"""A real Chromium without a window, driven by its DevTools protocol over a websocket: little, and no new dependency."""

import asyncio
import base64
import contextlib
import json
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import aiohttp

START_S = 60.0
OPTIONS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--mute-audio"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions"),
    *("--remote-debugging-port=0", "--remote-allow-origins=*", "--hide-scrollbars", "--force-color-profile=srgb"),
)


class Tab:
    """`errors`: what the page complained of, policies that it broke among it. `asked`: every address it asked for."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket, self._numbers = socket, count(1)
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self.errors: list[str] = []
        self.asked: list[str] = []
        self.dialogs: list[str] = []
        self.listener = asyncio.ensure_future(self._listen())

    async def _listen(self) -> None:
        async for message in self._socket:
            told = json.loads(message.data)
            if "id" in told:
                self._answers.pop(told["id"]).set_result(told)
                continue
            about = told.get("params", {})
            match told["method"]:
                case "Runtime.exceptionThrown":
                    self.errors.append(str(about["exceptionDetails"].get("exception", about))[:500])
                case "Log.entryAdded" if about["entry"]["level"] == "error":
                    self.errors.append(f"{about['entry']['text']} {about['entry'].get('url', '')}")
                case "Network.requestWillBeSent":
                    self.asked.append(about["request"]["url"])
                case "Page.javascriptDialogOpening":
                    self.dialogs.append(about["message"])
        for answer in self._answers.values():
            answer.cancel()

    async def do(self, method: str, **params: Any) -> Any:
        number = next(self._numbers)
        self._answers[number] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": number, "method": method, "params": params})
        async with asyncio.timeout(START_S):
            told = await self._answers[number]
        assert "error" not in told, f"{method}: {told['error']}"
        return told["result"]

    async def open(self, url: str) -> None:
        await self.do("Page.navigate", url=url)
        there = f"location.href.startsWith({json.dumps(url.partition('#')[0])})"
        await self.until(f"{there} && document.readyState === 'complete'", "the page is loaded")

    async def ask(self, expression: str) -> Any:
        told = await self.do("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in told, told["exceptionDetails"]
        return told["result"].get("value")

    async def text(self, selector: str = "body") -> str:
        return str(await self.ask(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''"))

    async def until(self, expression: str, otherwise: str, within_s: float = 100.0) -> None:
        """Waits until the expression is true in the page."""
        deadline = asyncio.get_running_loop().time() + within_s
        while not await self.ask(f"Boolean({expression})"):
            if asyncio.get_running_loop().time() > deadline:
                raise AssertionError(f"{otherwise}; the page says:\n{await self.text()}\n{self.errors}")
            await asyncio.sleep(0.02)

    async def size(self, width: int, height: int, *, dark: bool = False, scale: float = 1) -> None:
        metrics = {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": width < 600}
        await self.do("Emulation.setDeviceMetricsOverride", **metrics)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.do("Emulation.setEmulatedMedia", features=[scheme])

    async def picture(self, path: Path) -> None:
        shot = await self.do("Page.captureScreenshot", format="png")
        path.write_bytes(base64.b64decode(shot["data"]))

    async def names(self) -> list[tuple[str, str]]:
        """What a screen reader is told: role and name of everything that is not hidden from it."""
        nodes = (await self.do("Accessibility.getFullAXTree"))["nodes"]
        return [
            (node["role"]["value"], node.get("name", {}).get("value", ""))
            for node in nodes
            if not node.get("ignored") and "role" in node
        ]


@contextlib.asynccontextmanager
async def chromium(folder: Path) -> AsyncIterator[Tab]:
    """One tab of a browser of its own, whose profile is in `folder`."""
    with browser(folder) as port:
        async with tab_of(port) as tab:
            yield tab


@contextlib.contextmanager
def browser(folder: Path) -> Iterator[int]:
    """The port on which it is driven."""
    profile, log = folder / "profile", folder / "chromium.log"
    with log.open("wb") as out:
        command = ("chromium", *OPTIONS, f"--user-data-dir={profile}", "about:blank")
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
    try:
        yield _port(profile / "DevToolsActivePort", process, log)
    finally:
        process.terminate()
        try:
            process.wait(START_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextlib.asynccontextmanager
async def tab_of(port: int) -> AsyncIterator[Tab]:
    """It knows nothing of other tabs, nor they of it: no cookie, nothing that is stored."""
    async with aiohttp.ClientSession() as session:
        async with session.get(f"http://127.0.0.1:{port}/json/version") as answer:
            address = (await answer.json())["webSocketDebuggerUrl"]
        async with _connected(session, address) as whole:
            apart = (await whole.do("Target.createBrowserContext", disposeOnDetach=True))["browserContextId"]
            opened = await whole.do("Target.createTarget", url="about:blank", browserContextId=apart)
            async with _connected(session, f"ws://127.0.0.1:{port}/devtools/page/{opened['targetId']}") as tab:
                for domain in ("Page", "Runtime", "Log", "Network", "Accessibility"):
                    await tab.do(f"{domain}.enable")
                yield tab


@contextlib.asynccontextmanager
async def _connected(session: aiohttp.ClientSession, address: str) -> AsyncIterator[Tab]:
    async with session.ws_connect(address, max_msg_size=0) as socket:
        tab = Tab(socket)
        try:
            yield tab
        finally:
            tab.listener.cancel()
            await asyncio.gather(tab.listener, return_exceptions=True)


def _port(file: Path, process: subprocess.Popen[bytes], log: Path) -> int:
    end = time.monotonic() + START_S
    while not (file.exists() and file.read_text().count("\n")):
        assert process.returncode is None and time.monotonic() < end, log.read_text()[-2000:]
        time.sleep(0.05)  # it gets there meanwhile
        process.poll()
    return int(file.read_text().split()[0])
