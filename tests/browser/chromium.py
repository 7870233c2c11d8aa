"""A real Chromium without a window, driven by its DevTools protocol over a websocket: little, and no new dependency."""

import asyncio
import base64
import contextlib
import json
from collections.abc import AsyncIterator
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
    profile = folder / "profile"
    with (folder / "chromium.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *("chromium", *OPTIONS, f"--user-data-dir={profile}", "about:blank"),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    try:
        async with aiohttp.ClientSession() as session:
            port = await _port(profile / "DevToolsActivePort", process, folder / "chromium.log")
            async with session.get(f"http://127.0.0.1:{port}/json/list") as answer:
                pages = [target for target in await answer.json() if target["type"] == "page"]
            async with session.ws_connect(pages[0]["webSocketDebuggerUrl"], max_msg_size=0) as socket:
                tab = Tab(socket)
                for domain in ("Page", "Runtime", "Log", "Network", "Accessibility"):
                    await tab.do(f"{domain}.enable")
                try:
                    yield tab
                finally:
                    tab.listener.cancel()
                    await asyncio.gather(tab.listener, return_exceptions=True)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            async with asyncio.timeout(60):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()


async def _port(file: Path, process: asyncio.subprocess.Process, log: Path) -> int:
    async with asyncio.timeout(START_S):
        while not (file.exists() and file.read_text().count("\n")):
            assert process.returncode is None, log.read_text()[-2000:]
            await asyncio.sleep(0.05)
    return int(file.read_text().split()[0])
