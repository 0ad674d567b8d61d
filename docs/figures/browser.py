"""A headless Chromium, for the check of the book and for screenshots. Needs the package `websockets`."""

import asyncio
import base64
import itertools
import json
import subprocess
from pathlib import Path

import websockets


class Browser:
    """One tab of a headless Chromium, over its debugging protocol."""

    def __init__(self, process, socket):
        self.process, self.socket, self.ids = process, socket, itertools.count(1)

    @classmethod
    async def start(cls, profile):
        command = [
            "chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
            "--remote-debugging-port=0", f"--user-data-dir={profile}", "about:blank",
        ]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        port = Path(profile) / "DevToolsActivePort"
        for _ in range(200):
            if port.exists() and port.read_text().count("\n") == 1:
                break
            await asyncio.sleep(0.1)
        number, path = port.read_text().split("\n")
        socket = await websockets.connect(f"ws://127.0.0.1:{number}{path}", max_size=None)
        browser = cls(process, socket)
        target = await browser.call("Target.createTarget", url="about:blank")
        session = await browser.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        browser.session = session["sessionId"]
        await browser.call("Page.enable")
        return browser

    session = None

    async def call(self, method, **parameters):
        number = next(self.ids)
        message = {"id": number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        await self.socket.send(json.dumps(message))
        answer = await self.wait_for(lambda own: own.get("id") == number)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        return answer["result"]

    async def wait_for(self, is_wanted):
        async with asyncio.timeout(30):
            while True:
                message = json.loads(await self.socket.recv())
                if is_wanted(message):
                    return message

    async def open(self, url):
        number = next(self.ids)
        message = {"id": number, "method": "Page.navigate", "params": {"url": url}, "sessionId": self.session}
        await self.socket.send(json.dumps(message))
        await self.wait_for(lambda own: own.get("method") == "Page.loadEventFired")

    async def view(self, width, height):
        await self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    async def evaluate(self, script):
        answer = await self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"])
        return answer["result"].get("value")

    async def screenshot(self, path, clip):
        shot = await self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
        path.write_bytes(base64.b64decode(shot["data"]))

    async def stop(self):
        await self.socket.close()
        self.process.terminate()
        self.process.wait()
