#!/usr/bin/env python3
"""slipring chat in a terminal: lines are edited and come again, Ctrl-C gives a new one, words of an answer stay whole."""
import fcntl, os, pty, re, select, signal, struct, subprocess, termios
from harness import *

COLUMNS = 40
QUESTION = "What is photosynthesis?"
TYPED = b"xWhat is photosinthesis?"
# Home, delete the x, right to the wrong letter, delete it, type the right one
KEYS = b"\x01\x04" + b"\x1b[C" * QUESTION.index("ynth") + b"\x04y"


class Terminal:
    """A program on a terminal of its own."""

    def __init__(self, p, *args):
        master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, COLUMNS, 0, 0))
        self.process = subprocess.Popen([os.path.join(BUILD, "slipring"), "chat", *args], stdin=slave, stdout=slave,
                                        stderr=slave, env=dict(p.env, TERM="xterm"), start_new_session=True,
                                        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0))
        os.close(slave)
        self.master, self.seen = master, ""

    def type(self, keys):
        os.write(self.master, keys)

    def until(self, pattern, seconds=60):
        """What came up to the first match, which is taken."""
        end = time.monotonic() + seconds
        while not (m := re.search(pattern, self.seen, re.S)):
            check(time.monotonic() < end, f"{pattern!r} comes: {self.seen!r}")
            if select.select([self.master], [], [], 0.1)[0]:
                try:
                    self.seen += os.read(self.master, 65536).decode(errors="replace")
                except OSError:
                    check(re.search(pattern, self.seen, re.S), f"{pattern!r} came before the end: {self.seen!r}")
        out, self.seen = self.seen[:m.end()], self.seen[m.end():]
        return out


    def prompt(self, pattern=r"> "):
        """The prompt, and that keys are read one by one: what is typed before is the line discipline's."""
        self.until(pattern)
        check(wait_for(lambda: not termios.tcgetattr(self.master)[3] & termios.ICANON, 20), "keys are read one by one")


def main():
    need_model()
    with Programs() as p:
        p.serve()
        ask = {"messages": [{"role": "user", "content": QUESTION}], "temperature": 0, "max_tokens": 60}
        wanted = p.post("/v1/chat/completions", ask)["choices"][0]["message"]["content"]
        check(len(wanted) > 2 * COLUMNS, f"an answer of several lines: {wanted}")
        t = Terminal(p, "--temperature", "0", "-n", "60")
        t.prompt()
        t.type(TYPED + KEYS + b"\r")
        t.until(r"photos[^\n]*\n")
        for turn in "typed", "again":
            answer = t.until(r"tokens/s").rsplit("\n", 1)[0]
            lines = [line.rstrip("\r") for line in answer.split("\n")][-wanted.count(" ") - 2:]
            text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", "\n".join(lines))
            check(text.split()[-len(wanted.split()):] == wanted.split(), f"{turn}: no word is broken: {text!r} {wanted!r}")
            check(all(len(line) <= COLUMNS for line in text.split("\n")), f"{turn}: no line is longer than the terminal: {text!r}")
            if turn == "typed":
                t.prompt()
                t.type(b"/reset\r")
                t.prompt(r"/reset\s.*> ")
                t.type(b"\x1b[A\x1b[A\r")                  # up, twice: the question
        t.prompt()
        t.type(b"half a line")
        t.until(r"half a line")                           # echoed: Ctrl-C takes what was typed and not yet read
        t.type(b"\x03")
        t.prompt(r"\n.*> ")                               # a new line; what was typed is forgotten
        t.type(b"/quit\r")
        check(t.process.wait(60) == 0, "it ends")
        os.close(t.master)
        r = subprocess.run([os.path.join(BUILD, "slipring"), "chat", "--temperature", "0", "-n", "60"], input=QUESTION + "\n",
                           capture_output=True, text=True, env=p.env, timeout=60)
        check(r.stdout == wanted + "\n" and "> " not in r.stderr, f"in a pipe all is plain: {r.stdout!r} {r.stderr!r}")
    done()


main()
