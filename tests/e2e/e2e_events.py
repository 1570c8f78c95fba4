#!/usr/bin/env python3
"""KV events: what slipring-events publishes, read as vLLM's subscribers read it.  After a load its set of blocks is the
daemon's index: also after lost frames and a replay, for a subscriber that comes late, in both encodings, and when the
daemon dies.  EVENTS=100000 is the long form (make events)."""
import mmap, struct
from harness import *

WANT = int(os.environ.get("EVENTS", 3000))
BLOCKS = 600


# ---- msgpack and ZMTP 3.0, as much of them as is needed ----

def unpack(b):
    """One value; the whole of b."""
    at = 0

    def take(n):
        nonlocal at
        at += n
        return b[at - n:at]

    def value():
        t = take(1)[0]
        if t < 0x80:
            return t
        if t < 0x90:
            return {value(): value() for _ in range(t & 15)}
        if t < 0xa0:
            return [value() for _ in range(t & 15)]
        if t < 0xc0:
            return take(t & 31).decode()
        if t == 0xc0:
            return None
        if t == 0xcb:
            return struct.unpack(">d", take(8))[0]
        if 0xcc <= t <= 0xcf:
            return int.from_bytes(take(1 << (t - 0xcc)), "big")
        if t in (0xdc, 0xdd):
            return [value() for _ in range(int.from_bytes(take(2 if t == 0xdc else 4), "big"))]
        raise ValueError(hex(t))
    v = value()
    if at != len(b):
        raise ValueError("bytes behind the value")
    return v


class Peer:
    """One end of a connection that speaks ZMTP 3.0 with the NULL mechanism."""

    def __init__(self, path, kind):
        self.s = socket.socket(socket.AF_UNIX)
        self.s.settimeout(20)
        self.s.connect(path)
        self.rest = b""
        self.s.sendall(b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(16) + bytes(32))
        self.read(64)
        body = b"\x05READY\x0bSocket-Type" + struct.pack(">I", len(kind)) + kind
        self.s.sendall(bytes([4, len(body)]) + body)
        self.frame()

    def read(self, n):
        while len(self.rest) < n:
            got = self.s.recv(1 << 20)
            if not got:
                raise EOFError
            self.rest += got
        out, self.rest = self.rest[:n], self.rest[n:]
        return out

    def frame(self):
        flags = self.read(1)[0]
        n = int.from_bytes(self.read(8 if flags & 2 else 1), "big")
        return flags, self.read(n)

    def send(self, *frames):
        for i, f in enumerate(frames):
            self.s.sendall(bytes([i < len(frames) - 1, len(f)]) + f)

    def message(self, seconds):
        """The frames of the next message, or None if none comes."""
        try:
            self.s.settimeout(seconds)
            self.rest = self.rest or self.s.recv(1 << 20)
        except TimeoutError:
            return None
        finally:
            self.s.settimeout(20)
        out = [self.frame()]
        while out[-1][0] & 1:
            out.append(self.frame())
        return [f for _, f in out]


# ---- a subscriber, in the shape of vLLM's classes ----

STORED = ("block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name")
MORE = ("extra_keys", "group_idx", "kv_cache_spec_kind", "kv_cache_spec_sliding_window")
REMOVED = ("block_hashes", "medium")


def event(e):
    """(type, members) of one event, in either encoding."""
    if isinstance(e, dict):
        kind, members = e.pop("type"), e
        need = {"BlockStored": STORED, "BlockRemoved": REMOVED, "AllBlocksCleared": ()}[kind]
        check(set(need) <= set(members) <= set(need + MORE), f"{kind} has {sorted(members)}")
    else:
        kind, *members = e
        members = dict(zip({"BlockStored": STORED, "BlockRemoved": REMOVED, "AllBlocksCleared": ()}[kind], members,
                           strict=True))
    return kind, members


class Subscriber:
    def __init__(self, ends, lose=()):
        self.ends, self.lose = ends, set(lose)
        self.sub = Peer(ends + "/pub", b"SUB")
        self.sub.send(b"\x01")                   # all topics
        self.next, self.events, self.replays, self.blocks, self.strange, self.last = None, 0, 0, {}, 0, None
        self.topics, self.tokens = set(), {}

    def take(self, number, batch):
        ts, events, rank = unpack(batch)
        check(isinstance(ts, float) and rank == 0, f"a batch has a time and a rank: {ts} {rank}")
        for e in events:
            kind, m = event(e)
            self.events += 1
            if kind == "AllBlocksCleared":
                self.blocks.clear()
                self.strange = 0                 # what came before was of another subscriber's time
            elif kind == "BlockRemoved":
                for h in m["block_hashes"]:
                    self.strange += self.blocks.pop((h, m["medium"]), None) is None
            else:
                check(len(m["token_ids"]) == m["block_size"] * len(m["block_hashes"]), "each block has its tokens")
                parent = m["parent_block_hash"]
                for i, h in enumerate(m["block_hashes"]):
                    self.strange += parent is not None and (parent, m["medium"]) not in self.blocks
                    self.blocks[h, m["medium"]] = parent
                    self.tokens[h] = m["token_ids"][i * m["block_size"]:(i + 1) * m["block_size"]]
                    parent = h
        self.next = number + 1

    def replay(self, until):
        """Ask for what was missed, up to `until` or to the end."""
        ask = Peer(self.ends + "/replay", b"DEALER")
        ask.send(b"", self.next.to_bytes(8, "big"))
        self.replays += 1
        while True:
            m = ask.message(20)
            check(m and m[0] == b"", f"the replay goes on: {m}")
            if m[-2] == b"\xff" * 8:
                check(m[-1] == b"", "the end has no batch")
                break
            number = int.from_bytes(m[-2], "big")
            if number >= self.next and (until is None or number < until):
                self.take(number, m[-1])

    def run(self, quiet=0.3):
        """Read until nothing comes for so long."""
        while True:
            m = self.sub.message(quiet)
            if m is None:
                return self
            topic, number, batch = m
            self.topics.add(topic)
            self.last = number = int.from_bytes(number, "big")
            if number in self.lose:
                continue
            if self.next is None:
                self.next = number
            if number > self.next:
                self.replay(number)
            if number >= self.next:
                self.take(number, batch)


# ---- what the daemon has ----

def index(p):
    """The names in the daemon's own memory: {(name, medium)}."""
    s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    s.connect(os.path.join(p.dir, "control"))
    s.send(struct.pack("=IIIIq", 0x4c544353, 1, 0x400, 0, 0))
    _, fds, _, _ = socket.recv_fds(s, 4096, 1)
    m = mmap.mmap(fds[0], 0, prot=mmap.PROT_READ)
    os.close(fds[0])
    magic, version, size, device, host, tokens, each = struct.unpack_from("=IIQIIII", m)
    check(magic == 0x56455253 and size == len(m), "it is the memory of events")
    names, at = set(), size - (device + host) * each
    for i in range(device + host):
        if struct.unpack_from("=I", m, at + i * each + 44)[0] % 4 == 2:
            names.add((struct.unpack_from("=Q", m, at + i * each)[0], "GPU" if i < device else "CPU"))
    s.close()
    return names


def cached(p):
    """Blocks that the scheduler counts as cached."""
    out = subprocess.run([os.path.join(BUILD, "slipring"), "top", "--once", "--json", "-i", "0.1"], env=p.env,
                         capture_output=True, text=True, timeout=30).stdout

    def find(v):
        if isinstance(v, dict):
            return v.get("kv_blocks_cached", next((f for x in v.values() if (f := find(x)) is not None), None))
        return None
    return find(json.loads(out))


def load(p, events, first=0):
    """Prompts that begin alike, 49 to 112 tokens long: about an event each."""
    for k in range(first, first + events, 200):
        prompts = [[1000 + i % 60] * 32 + [2000 + i % 47000] * (i * 7 % 64 + 17)
                   for i in range(k, min(k + 200, first + events))]
        p.post("/v1/completions", {"prompt": prompts, "max_tokens": 1, "temperature": 0})


def settle(sub, p):
    """Read until what was heard is what is there."""
    def same():
        sub.run()
        return set(sub.blocks) == index(p)
    check(wait_for(same, 20), f"its {len(sub.blocks)} blocks are the daemon's {len(index(p))}")


def start(p, **more):
    """A daemon, an adapter and slipring-events, by one command."""
    ends = os.path.join(p.dir, "ends")
    os.makedirs(ends, exist_ok=True)
    config = {"enable_kv_cache_events": True, "endpoint": f"ipc://{ends}/pub", "replay_endpoint": f"ipc://{ends}/replay",
              "topic": "kv@here@null", **more}
    p.serve("--device", "null", "--max-model-len", 2048, "--num-gpu-blocks-override", BLOCKS, "--kv-events-config",
            json.dumps(config))
    check(wait_for(lambda: os.path.exists(ends + "/pub") and os.path.exists(ends + "/replay"), 20), "the ends are there")
    return ends


# ---- the tests ----

def maps():
    with Programs() as p:
        ends = start(p)
        whole, loses = Subscriber(ends), Subscriber(ends, lose=(2, 3, 4, 7))
        done = threading.Thread(target=load, args=(p, WANT))
        done.start()
        while done.is_alive():
            whole.run(0.05)
            loses.run(0.05)
        settle(whole, p)
        for more in range(50):                   # a frame behind those that are lost shows that they are
            if whole.last > 8 and loses.last == whole.last:
                break
            load(p, 5, 2 * WANT + 5 * more)
            whole.run(0.05)
            loses.run(0.05)
        settle(whole, p)
        settle(loses, p)
        check(whole.events >= WANT, f"{whole.events} events of {WANT} prompts")
        check(whole.topics == {b"kv@here@null"}, f"topics {whole.topics}")
        check(whole.strange == 0, f"{whole.strange} events name blocks that were never there")
        check(loses.replays == 2 and whole.replays == 0, f"{loses.replays} replays of {whole.last} batches")
        check(wait_for(lambda: cached(p) == len(index(p)), 20), f"the scheduler counts {cached(p)} of {len(index(p))}")
        ids = [1000 + 1] * 16
        check(ids in whole.tokens.values(), "a block's tokens are the prompt's")
        late = Subscriber(ends)
        late.next = 0                            # who comes late asks for all
        load(p, 3, WANT)
        settle(late, p)
        check(late.replays == 1 and late.strange == 0, f"{late.replays} replays")
    return whole


def late():
    """What is no longer kept: a replay tells all anew.  Then the daemon dies."""
    with Programs() as p:
        ends = start(p, buffer_steps=3, encoding="array")
        sub = Subscriber(ends)
        for k in range(12):
            load(p, 20, 20 * k)
            sub.run(0.05)
        settle(sub, p)
        check(sub.last > 5, f"there were {sub.last} batches")
        new = Subscriber(ends)
        new.next = 0
        new.replay(None)
        check(set(new.blocks) == index(p) and new.strange == 0, f"all is told anew: {len(new.blocks)} blocks")
        settle(sub, p)                           # the others hear it, too
        pid = next(iter(children(p.procs["slipring"].pid, "slipringd")))
        os.kill(pid, signal.SIGKILL)
        check(wait_for(lambda: not sub.run(0.1).blocks, 20), "its blocks are gone with it")
        check(wait_for(lambda: p.ask("GET", "/health")[0] == 200, 30), "it comes back")
        load(p, 30, 5000)
        check(wait_for(lambda: sub.run(0.1).blocks, 20), "and so do events")
        settle(sub, p)
        events = next(iter(children(p.procs["slipring"].pid, "slipring-events")))
        os.kill(events, signal.SIGKILL)
        check(wait_for(lambda: events not in children(p.procs["slipring"].pid, "slipring-events") and
                       children(p.procs["slipring"].pid, "slipring-events"), 20), "slipring-events is started again")


def hostile():
    """A message that is announced with 1 GiB ends its connection at once; the interface lo is this machine alone."""
    with Programs() as p:
        ends = start(p)
        for name, kind in (("pub", b"SUB"), ("replay", b"DEALER")):
            peer = Peer(f"{ends}/{name}", kind)
            peer.s.sendall(b"\x02" + (1 << 30).to_bytes(8, "big") + bytes(1000))
            try:
                left = peer.s.recv(1) == b""
            except ConnectionError:
                left = True
            check(left, f"{name} waits for the rest of 1 GiB")
        load(p, 3)
        sub = Subscriber(ends)
        sub.next = 0
        settle(sub, p)
    with Programs() as p:
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        start_at = {"enable_kv_cache_events": True, "endpoint": f"tcp://lo:{port}"}
        p.serve("--device", "null", "--max-model-len", 256, "--kv-events-config", json.dumps(start_at))

        def bound():
            with open("/proc/net/tcp") as f:
                return {l.split()[1] for l in f if l.split()[1].endswith(f":{port:04X}")}
        check(wait_for(bound, 20) == {f"0100007F:{port:04X}"}, f"bound to loopback alone: {bound()}")


def refused():
    with Programs() as p:
        for config, say in (("[]", "must be a JSON object"), ('{"endpont":1}', '"endpont" is no member')):
            r = subprocess.run([os.path.join(BUILD, "slipring"), "serve", "--port", "0", "--device", "null", "--kv-events-config", config],
                               env=p.env, capture_output=True, text=True, timeout=30)
            check(r.returncode == 2 and say in r.stderr, f"{config}: {r.returncode} {r.stderr}")
        p.daemon("--device", "null", "--max-model-len", 256)
        s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        s.connect(os.path.join(p.dir, "control"))
        s.send(struct.pack("=IIIIq", 0x4c544353, 1, 0x400, 0, 0))
        data, fds, _, _ = socket.recv_fds(s, 4096, 1)
        check(not fds and b"keeps no events" in data, f"without the flag there is no memory: {data}")


began = time.monotonic()
heard = maps()
if WANT > 3000:
    print(f"{heard.events} events, {len(heard.blocks)} blocks, {time.monotonic() - began:.1f} s")
late()
hostile()
refused()
done()
