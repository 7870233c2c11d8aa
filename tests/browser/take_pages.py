"""Pictures of every page of the site, to be looked at: wide and as on a phone, light and dark.

    mkdocs build -d SITE && python -m tests.browser.take_pages SITE PICTURES

Ends with 1 where a page complains, asks for something from elsewhere, or is wider than the screen.
"""

import argparse
import asyncio
import base64
import json
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from aiohttp import web

from tests.browser.chromium import Tab, chromium

SIZES = {"wide": (1280, 900), "phone": (390, 844)}
HIGHEST = 16_000  # pixels; of what is longer only the beginning is taken
WIDER = """
Array.from(document.querySelectorAll("body *")).filter(each => {
    for (let box = each.parentElement; box; box = box.parentElement)
        if (getComputedStyle(box).overflowX !== "visible") return false;
    const place = each.getBoundingClientRect();
    return place.width && place.height && place.right > innerWidth + 1 && place.left < innerWidth;
}).map(each => each.tagName + "." + each.className).slice(0, 3)
"""


@asynccontextmanager
async def served(site: Path) -> AsyncIterator[str]:
    application = web.Application()
    application.router.add_static("/", site)
    runner = web.AppRunner(application)
    await runner.setup()
    try:
        place = web.TCPSite(runner, "127.0.0.1", 0)
        await place.start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def look(tab: Tab, base: str, page: str, pictures: Path) -> list[str]:
    wrong: list[str] = []
    for name, (width, height) in SIZES.items():
        for dark in (False, True):
            where = f"{page} {name} {'dark' if dark else 'light'}"
            await tab.size(width, height, dark=dark)
            await tab.open("about:blank")
            await tab.open(f"{base}/{page}")
            scheme = f"document.body.dataset.mdColorScheme === '{'slate' if dark else 'default'}'"
            await tab.until(scheme, f"{where}: the page does not follow the system")
            wide = await tab.ask("document.documentElement.scrollWidth")
            beyond = await tab.ask(WIDER)
            if wide > width or beyond:
                wrong.append(f"{where}: {wide} pixels wide; beyond the edge: {json.dumps(beyond)}")
            tall = min(HIGHEST, await tab.ask("document.documentElement.scrollHeight"))
            clip = {"x": 0, "y": 0, "width": width, "height": tall, "scale": 1}
            shot = await tab.do("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
            (pictures / f"{where.replace('/', '-').replace(' ', '.')}.png").write_bytes(base64.b64decode(shot["data"]))
    wrong += [f"{page}: {error}" for error in tab.errors]
    wrong += [f"{page} asks for {url}" for url in tab.asked if not url.startswith((base, "data:", "blob:"))]
    tab.errors.clear()
    tab.asked.clear()
    return wrong


async def main(site: Path, pictures: Path, only: str) -> int:
    pictures.mkdir(parents=True, exist_ok=True)
    pages = sorted(str(path.relative_to(site)) for path in site.rglob("*.html") if only in str(path))
    wrong: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        async with served(site) as base, chromium(Path(folder)) as tab:
            for page in pages:
                wrong += await look(tab, base, page, pictures)
    sys.stdout.write("\n".join([*wrong, f"{len(pages)} pages, in {pictures}", ""]))
    return 1 if wrong else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("site", type=Path)
    parser.add_argument("pictures", type=Path)
    parser.add_argument("--only", default="", help="pages whose path contains this")
    arguments = parser.parse_args()
    sys.exit(asyncio.run(main(arguments.site, arguments.pictures, arguments.only)))
