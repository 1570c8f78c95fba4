#!/usr/bin/env python3
"""The commands of README.md and docs/ do what the text says: the part of tests/docs_run.py that fits into CI."""
import os
import sys

run = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../docs_run.py")
os.execv(run, [run, "--part", sys.argv[1] if len(sys.argv) > 1 else "build"])
