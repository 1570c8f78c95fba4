"""Sessions as clients of a chat have them, for measuring routers: shared system prompts, then turns that grow."""
import asyncio, http.client, json, random, socket, time
from harness import wait_for


def words(rnd, n):
    """About two tokens each.  smg takes texts alone."""
    return "".join(" " + "".join(rnd.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(3)) for _ in range(n))


class Client:
    """Sessions: a shared system prompt, then turns that grow."""

    def __init__(self, port, seed, seconds, per_second, systems):
        self.port, self.rnd, self.seconds, self.per_second = port, random.Random(seed), seconds, per_second
        self.systems = [words(self.rnd, self.rnd.randrange(80, 500)) for _ in range(systems)]
        self.ttft, self.cached, self.prompt, self.failed = [], 0, 0, 0

    async def ask(self, text, out, name):
        body = json.dumps({"model": "m", "prompt": text, "max_tokens": out, "temperature": 0, "ignore_eos": True,
                           "stream": True, "stream_options": {"include_usage": True}}).encode()
        began, first, usage = time.monotonic(), None, None
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 20)
        try:
            writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                         b"Connection: close\r\nX-Session-ID: %s\r\nContent-Length: %d\r\n\r\n%s"
                         % (name.encode(), len(body), body))
            async for line in reader:
                if not line.startswith(b"data: {"):
                    continue
                first = first or time.monotonic() - began
                if b'"usage":{' in line:
                    usage = json.loads(line[6:])["usage"]
        finally:
            writer.close()
        if not usage:
            raise OSError("no usage")
        return first, usage["prompt_tokens"], (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)

    async def session(self, number, counts):
        rnd = random.Random(number * 7919 + 1)
        n = len(self.systems)
        pick = rnd.choices(range(n), [1 / (i + 1) for i in range(n)])[0]
        text = self.systems[pick]
        while len(text) < 9000:
            text += words(rnd, rnd.randrange(10, 75))
            try:
                first, prompt, cached = await self.ask(text, rnd.randrange(10, 60), str(number))
                if counts():
                    self.ttft.append(first * 1e3)
                    self.prompt += prompt
                    self.cached += cached
            except (OSError, ValueError):
                self.failed += 1
            if rnd.random() > 0.8:
                break
            await asyncio.sleep(rnd.expovariate(1 / 2.5))

    async def run(self):
        began = time.monotonic()
        tasks, number = [], 0
        counts = lambda: self.seconds * 0.2 < time.monotonic() - began < self.seconds
        while time.monotonic() - began < self.seconds:
            tasks.append(asyncio.create_task(self.session(number, counts)))
            number += 1
            await asyncio.sleep(self.rnd.expovariate(self.per_second))
        for t in tasks:
            t.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def up(port, seconds=60):
    def ask():
        try:
            c = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
            c.request("GET", "/v1/models")
            return b'"m"' in c.getresponse().read()
        except (OSError, http.client.HTTPException):
            return False
    return wait_for(ask, seconds, 0.1)
