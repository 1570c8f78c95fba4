#!/usr/bin/env python3
"""vLLM's recorded answers (tests/conformance) and the Python module, against a live server."""
import subprocess
from harness import *


def main():
    need_model()
    with Programs() as p:
        p.serve("--served-model-name", "smol", "--max-model-len", 4096)
        r = subprocess.run([sys.executable, os.path.join(HERE, "conformance/run.py"), p.url],
                           capture_output=True, text=True, timeout=300)
        print(r.stdout[-3000:], r.stderr[-2000:])
        check(r.returncode == 0, "recorded answers of vLLM agree")
        lib = os.path.abspath(BUILD)
        r = subprocess.run([sys.executable, os.path.join(HERE, "test_python.py")], capture_output=True, text=True,
                           timeout=120, env=dict(p.env, SLIPRING_SOCKET=p.socket, SLIPRING_MODEL=MODEL, SLIPRING_LIB=lib))
        print(r.stdout[-3000:], r.stderr[-2000:])
        check(r.returncode == 0 and "ok:" in r.stdout, "the Python module")
    done()


main()
