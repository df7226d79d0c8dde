"""A server that plays the data side of the page, with a simulated oscillator: test equipment."""

import asyncio
import contextlib
import json
import socket
import sys
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import uvicorn
from fastapi import FastAPI, Request, Response, WebSocket
from fastapi.responses import JSONResponse
from starlette.websockets import WebSocketDisconnect

from evkf.web.static import page_files, page_routes

TOKEN = "ab" * 32
CODES = {"f4": np.float32, "f8": np.float64, "u1": np.uint8, "i4": np.int32}


def pack(header: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> bytes:
    """A binary message.

    Example:
        >>> pack({"kind": "bins"}, {"elbo": np.zeros(2)})[:4]
        b'd\\x00\\x00\\x00'
    """
    named = {dtype: code for code, dtype in CODES.items()}
    told = [
        {"name": name, "dtype": named[array.dtype.type], "shape": list(array.shape)}
        for name, array in arrays.items()
    ]
    head = json.dumps({**header, "arrays": told}).encode()
    head += b" " * (-(4 + len(head)) % 8)
    parts = [len(head).to_bytes(4, "little"), head]
    for array in arrays.values():
        data = np.ascontiguousarray(array).tobytes()
        parts += [data, bytes(-len(data) % 8)]
    return b"".join(parts)


class Oscillator:
    """Latents that turn round a cycle, two by two, and spikes of channels that see them.

    Args:
        latents: How many.
        channels: How many.
        bin_width: Seconds.
        horizon: Bins that are looked ahead.
    """

    def __init__(self, latents: int, channels: int, bin_width: float, horizon: int):
        self.rng = np.random.default_rng(7)
        self.latents, self.channels = latents, channels
        self.bin_width, self.horizon = bin_width, horizon
        pairs = -(-latents // 2)
        self._turn = 2 * np.pi * bin_width * 0.45 * (1 + 0.41 * np.arange(pairs))
        self._size = 1.5 / (1 + 0.35 * np.arange(pairs))
        angle = self.rng.uniform(0, 2 * np.pi, channels)
        self._see = np.zeros((latents, channels))
        self._see[0] = np.cos(np.sort(angle))
        if latents > 1:
            self._see[1] = np.sin(np.sort(angle))
        self._see[2:] = self.rng.normal(0, 0.3, (max(latents - 2, 0), channels))
        self._base = np.log(18 * bin_width)
        self._pool = self.rng.normal(0, 0.03, (4096, latents))

    def states(self, seqs: np.ndarray) -> np.ndarray:
        """Means at some bins."""
        phase = seqs[:, None] * self._turn
        size = self._size * (1 + 0.12 * np.sin(phase * 0.13))
        both = np.stack([size * np.cos(phase), size * np.sin(phase)], axis=2)
        return both.reshape(len(seqs), -1)[:, : self.latents]

    def rates(self, states: np.ndarray) -> np.ndarray:
        """Expected counts."""
        return np.exp(self._base + states @ self._see).astype(np.float32)

    def bins(self, first: int, count: int) -> dict[str, np.ndarray]:
        """Arrays of a message."""
        seqs = np.arange(first, first + count)
        latents, horizon = self.latents, self.horizon
        mean = self.states(seqs) + self._pool[seqs % 4096]
        rate = self.rates(mean)
        counts = np.minimum(self.rng.poisson(rate), 254).astype(np.uint8)
        flags = np.where(seqs % 97 == 96, 1, 4).astype(np.uint8)
        counts[flags == 1] = 255
        spread = np.linspace(0.02, 0.05, latents)
        cov = np.diag(spread) + 0.4 * spread.min() * (1 - np.eye(latents))
        ahead = np.arange(1, horizon + 1)
        return {
            "time": seqs * self.bin_width,
            "mean": mean,
            "var": np.broadcast_to(spread, mean.shape) * (1 + 0.5 * (flags[:, None] == 1)),
            "elbo": -0.2 * self.channels + self.rng.normal(0, 1, count),
            "flags": flags,
            "latency": np.exp(self.rng.normal(-1.3, 0.35, count)).astype(np.float32),
            "counts": counts,
            "rate": rate if self.channels <= 200 else rate[-1:],
            "cov": cov,
            "ahead": self.states(seqs[-1] + ahead),
            "ahead_var": spread + 0.012 * ahead[:, None] * np.ones(latents),
        }

    def field(self, plane: list[int], skill: float, truth: bool) -> bytes:
        """A message with the flow in a plane; with skill 1 it is the true one."""
        side = np.linspace(-2.4, 2.4, 17, dtype=np.float32)
        x, y = np.meshgrid(side, side)
        grow = 0.02 * (1 - (x**2 + y**2) / self._size[0] ** 2)
        u, v = grow * x - self._turn[0] * y, grow * y + self._turn[0] * x
        wrong = 0.02 * np.sin(2 * x + 1), 0.02 * np.cos(1.5 * y)
        turn = np.linspace(0, 2 * np.pi, 80)
        cycle = np.zeros((80, self.latents), np.float32)
        cycle[:, 0] = self._size[0] * np.cos(turn)
        if self.latents > 1:
            cycle[:, 1] = self._size[0] * np.sin(turn)
        arrays = {"x": side, "y": side, "cycle": cycle}
        arrays |= {
            name: (skill * true + (1 - skill) * bad).astype(np.float32)
            for name, true, bad in zip("uv", (u, v), wrong, strict=True)
        }
        if truth:
            arrays |= {"true_u": u.astype(np.float32), "true_v": v.astype(np.float32)}
        header = {"kind": "field", "plane": plane, "bins": 500, "seconds_old": 2.5}
        fixed = [{"at": [0.02] * self.latents, "stable": False}]
        return pack(header | {"fixed": fixed}, arrays)


class FakePage:
    """The server, in a thread.

    Args:
        latents: How many.
        channels: How many.
        bin_width: Seconds.
        horizon: Bins that are looked ahead.
        truth: Whether the source is simulated and shows its true field.
        speed: Times faster than it would be.
        closed: Whether the token is needed to look, too.

    Attributes:
        actions: What was asked for.
        asked: Messages of the page.
        crowded: Whether pages are sent away, as the server does where too many look.
        flowing: Whether bins come; set it to let the stream stop.
        report: The session's; change it to have another sent.
        sent: Of every message of bins, number and mean of its last bin.
    """

    def __init__(
        self,
        latents: int = 2,
        channels: int = 60,
        bin_width: float = 0.01,
        horizon: int = 40,
        truth: bool = True,
        speed: float = 1.0,
        closed: bool = False,
    ):
        self.source = Oscillator(latents, channels, bin_width, horizon)
        self.truth, self.speed, self.closed = truth, speed, closed
        self.flowing, self.frozen, self.seq = True, False, 0
        self.crowded = False
        self.actions: list[dict[str, Any]] = []
        self.asked: list[dict[str, Any]] = []
        self.sent: dict[int, dict[str, Any]] = {}
        self.report: dict[str, Any] = {"phase": "ready", "why": ""}
        self.marks: list[dict[str, Any]] = []
        self.hello: dict[str, Any] = {
            "session": "a1b2",
            "folder": "out/day2",
            "source": "rig",
            "bin_width": bin_width,
            "latents": latents,
            "channels": channels,
            "units": [f"u{n}" for n in range(channels)],
            "horizon": horizon,
            "labels": [f"z{n}" for n in range(latents)],
            "counts": True,
            "has_truth": truth,
            "can": ["freeze", "thaw", "mark", "save", "stop", "arm", "speed", "reset", "download"],
            "live": True,
        }
        self._say: list[tuple[set[Any], str | bytes]] = []
        self._clients: set[WebSocket] = set()
        self._plane = [0, 1]
        self._field_due = True
        self._bind = socket.socket()
        self._bind.bind(("127.0.0.1", 0))
        self.port = self._bind.getsockname()[1]
        self._bind.close()
        self.address = f"http://127.0.0.1:{self.port}"
        self.start()

    def start(self) -> None:
        """Serve, at the same address as before."""
        settings = uvicorn.Config(
            self._app(), port=self.port, log_level="critical", ws="websockets-sansio"
        )
        self._server = uvicorn.Server(settings)
        self._thread = threading.Thread(target=self._server.run, daemon=True)
        self._thread.start()
        while not self._server.started:
            pass

    def stop(self) -> None:
        """Be gone."""
        self._server.should_exit = self._server.force_exit = True
        self._thread.join()
        self._clients.clear()

    def send(self, message: str | bytes) -> None:
        """Send something to all pages."""
        self._say.append((set(self._clients), message))

    def change(self, **hello: Any) -> None:
        """Send another hello."""
        self.hello |= hello
        self.send(json.dumps(self.hello))

    def _app(self) -> FastAPI:
        app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)

        def trusted(request: Request) -> bool:
            return request.headers.get("authorization") == f"Bearer {TOKEN}"

        @app.post("/actions")
        async def actions(request: Request) -> Response:
            if not trusted(request):
                return JSONResponse(
                    {"refused": "token", "text": "a token is needed here"}, status_code=401
                )
            asked = await request.json()
            self.actions.append(asked)
            if asked["ask"] == "mark":
                self.marks.append({"seq": self.seq, "text": asked["text"]})
            if asked["ask"] in ("freeze", "thaw"):
                self.frozen = asked["ask"] == "freeze"
            if asked["ask"] in ("stop", "arm"):
                stopped = "stopped: by the operator" if asked["ask"] == "stop" else "armed"
                self.report["stimulation"] = stopped
            return JSONResponse({"asked": asked["ask"]}, status_code=202)

        @app.get("/health")
        async def health(request: Request) -> Response:
            if self.closed and not trusted(request):
                return JSONResponse({"refused": "token", "text": "a token is needed here"}, 401)
            return JSONResponse({"healthy": True})

        @app.get("/download.nwb")
        async def download() -> Response:
            return Response(b"NWB", media_type="application/octet-stream")

        @app.websocket("/page")
        async def page(websocket: WebSocket) -> None:
            offered = websocket.scope["subprotocols"]
            if self.closed and f"evkf.token.{TOKEN}" not in offered:
                await websocket.close(1008)
                return
            await websocket.accept(subprotocol="evkf" if "evkf" in offered else None)
            if self.crowded:
                await websocket.close(1013, "too many are connected")
                return
            await self._serve(websocket)

        app.include_router(page_routes(page_files())[0])
        return app

    async def _serve(self, websocket: WebSocket) -> None:
        self._clients.add(websocket)
        self._field_due = True
        with contextlib.suppress(WebSocketDisconnect, RuntimeError):
            await websocket.send_text(json.dumps(self.hello))
            reader = asyncio.ensure_future(self._read(websocket))
            try:
                for message in self._messages():
                    if message is not None:
                        await websocket.send_bytes(message)
                    for waiting, said in self._say:
                        if websocket in waiting:
                            waiting.discard(websocket)
                            await (
                                websocket.send_text(said)
                                if isinstance(said, str)
                                else websocket.send_bytes(said)
                            )
                    await asyncio.sleep(1 / 30)
            finally:
                reader.cancel()
        self._clients.discard(websocket)

    async def _read(self, websocket: WebSocket) -> None:
        with contextlib.suppress(WebSocketDisconnect, RuntimeError):
            while True:
                self.asked.append(json.loads(await websocket.receive_text()))
                self._plane = self.asked[-1].get("plane", self._plane)
                self._field_due = True

    def _messages(self) -> Iterator[bytes | None]:
        begin, last, shown = asyncio.get_running_loop().time(), self.seq, 0
        done, count = 0.0, 0
        while True:
            now = asyncio.get_running_loop().time() - begin
            done += (now - shown) * self.speed / self.source.bin_width * self.flowing
            shown, new = now, int(done)
            done -= new
            most = 400
            skipped, new = max(new - most, 0), min(new, most)
            if self._field_due or count % 150 == 149:
                self._field_due = False
                skill = min(1.0, self.seq / 1000)
                yield self.source.field(self._plane, skill, self.truth)
            if new:
                last = self.seq + skipped
                self.seq = last + new
                yield self._bins(last, new, skipped, count)
                count += 1
            else:
                yield None

    def _bins(self, first: int, count: int, skipped: int, turn: int) -> bytes:
        arrays = self.source.bins(first, count)
        header: dict[str, Any] = {"kind": "bins", "first": first, "skipped": skipped}
        header["marks"], self.marks = self.marks, []
        if turn % 15 == 0:
            header["report"] = self._report()
        if turn % 15 == 7:
            gain = 1.2 * (1 - np.exp(-first / 800))
            model = -12.0 + gain
            sums = {"bins": 50, "model": model, "random_walk": -12.3, "initial": -12.0}
            header["evidence"] = sums
        self.sent[first + count - 1] = {
            "mean": arrays["mean"][-1].tolist(),
            "elbo": float(arrays["elbo"][-1]),
            "time": float(arrays["time"][-1]),
        }
        return pack(header, arrays)

    def _report(self) -> dict[str, Any]:
        lost = self.seq // 97
        counters = {"received": self.seq, "delivered": self.seq - lost, "duplicates": 5}
        counters |= {"late": 3, "reordered": 2, "lost": lost, "restarts": 0}
        return {
            "bins": self.seq,
            "taken": self.seq,
            "rate": 99.5 / 100 / self.source.bin_width,
            "latency_ns": [271_000, 640_000, 910_000, 5_100_000],
            "counters": counters,
            "refused": 1,
            "backlog": 2,
            "learned": int(0.8 * self.seq),
            "elbo": -12.25,
            "acknowledged": self.seq - 2,
            "exposure_ms": 12.5,
            "frozen": self.frozen,
            "odd": {"unknown_unit": 4},
            "stimulation": "armed",
            **self.report,
        }


def main() -> None:
    """Serve until the standard input is closed; figures to begin with are in JSON, an argument."""
    page = FakePage(**json.loads(sys.argv[1] if len(sys.argv) > 1 else "{}"))
    print(f"{page.address}/#token={TOKEN}", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
