"""What the tests of clients' own libraries share: is a library there, and a script for Node."""
import importlib.util, subprocess
from harness import *

NODE = os.path.join(BUILD, "clients")


def need(module):
    try:
        there = importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:                               # of its package
        there = False
    if not there:
        print(f"SKIP: {module} is not installed")
    return there


def node(p, script, which, package):
    """Runs the script with the word `which`; it must end with the line ok."""
    if not os.path.isdir(os.path.join(NODE, "node_modules", package)):
        print(f"SKIP: {package} is not installed for Node")
        return
    path = os.path.join(NODE, f"{which}.mjs")
    with open(path, "w") as f:
        f.write(script)
    r = subprocess.run(["node", path, which], env=dict(os.environ, URL=p.url), capture_output=True, text=True, timeout=120)
    check(r.stdout.strip() == "ok", f"node {package}: {r.stdout}{r.stderr}")
    print(f"node {package}: good")
