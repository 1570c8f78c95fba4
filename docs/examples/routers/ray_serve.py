"""Slipring under Ray Serve, where the cluster is Ray already: a replica is a server of its own, and a proxy to it.

    MODEL=/models/x REPLICAS=2 serve run ray_serve:app

A replica whose server died answers 500 at once, so it looks idle and draws requests.  Its check asks the server
itself, each second, and Ray replaces it.  Streams that had begun there are lost.
"""
import os
import subprocess
import tempfile
import time

import aiohttp
from ray import serve
from starlette.requests import Request
from starlette.responses import StreamingResponse


@serve.deployment(num_replicas=int(os.environ.get("REPLICAS", "2")), max_ongoing_requests=1024,
                  health_check_period_s=1, health_check_timeout_s=2, graceful_shutdown_timeout_s=60)
class Slipring:
    def __init__(self, model):
        # A run directory of its own, and whatever port is free.
        self.dir = tempfile.TemporaryDirectory(prefix="slipring-ray-")
        ready = os.path.join(self.dir.name, "url")
        words = [os.environ.get("SLIPRING", "slipring"), "serve", model, "--host", "127.0.0.1", "--port", "0",
                 "--ready-file", ready, *os.environ.get("SLIPRING_FLAGS", "").split()]
        self.server = subprocess.Popen(words, env={**os.environ, "RUNTIME_DIRECTORY": self.dir.name})
        while not (os.path.exists(ready) and os.path.getsize(ready)):
            if self.server.poll() is not None:
                raise RuntimeError(f"slipring serve ended with {self.server.returncode}")
            time.sleep(0.05)
        with open(ready) as f:
            self.url = f.read().strip().rstrip("/")
        self.http = None

    def session(self):
        if not self.http:
            self.http = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None, sock_connect=2),
                                              connector=aiohttp.TCPConnector(limit=0))
        return self.http

    async def check_health(self):
        async with self.session().get(self.url + "/health", timeout=aiohttp.ClientTimeout(total=1)) as r:
            if r.status != 200:
                raise RuntimeError(f"the server's /health says {r.status}")

    async def __call__(self, request: Request):
        keep = ("content-type", "authorization", "x-api-key", "x-request-id", "traceparent")
        headers = {k: v for k, v in request.headers.items() if k in keep}
        r = await self.session().request(request.method, self.url + request.url.path, data=await request.body(),
                                         params=request.query_params, headers=headers)

        async def body():
            try:
                async for piece in r.content.iter_any():
                    yield piece
            finally:
                r.close()                # also when the client leaves: then the server cancels the request
        return StreamingResponse(body(), r.status, media_type=r.headers.get("content-type"))

    def __del__(self):
        if getattr(self, "server", None):
            self.server.terminate()
            self.server.wait(60)


app = Slipring.bind(os.environ.get("MODEL", "default"))
