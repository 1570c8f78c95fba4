#!/usr/bin/env python3
"""Print the cases of tests/core/models/test_model_keys.c: what transformers makes of rope_scaling of type yarn, for heads 16 wide,
theta 10000 and max_position_embeddings 8192.  Its _compute_yarn_parameters is run with numpy in place of torch.
The numbers in the test are those of transformers 5.23.0.

    pip download --no-deps transformers; unzip transformers-*.whl transformers/modeling_rope_utils.py
    python3 tests/data/make_yarn.py transformers/modeling_rope_utils.py
"""
import ast
import json
import math
import sys
import types

import numpy as np

CASES = [
    {"factor": 4},
    {"factor": 4, "truncate": False},
    {"factor": 32, "beta_fast": 16, "beta_slow": 2},
    {"factor": 4, "mscale": 0.707, "mscale_all_dim": 1},
    {"factor": 40, "mscale": 1, "mscale_all_dim": 1},
    {"factor": 4, "attention_factor": 1.25, "mscale": 0.5, "mscale_all_dim": 1},
    {"factor": 4, "mscale": 0.707},
    {"factor": None},
]


class Array(np.ndarray):
    def to(self, **_):
        return self


def array(x):
    return np.asarray(x, dtype=np.float64).view(Array)


def main():
    source = open(sys.argv[1]).read()
    node = next(n for n in ast.parse(source).body
                if isinstance(n, ast.FunctionDef) and n.name == "_compute_yarn_parameters")
    torch = types.SimpleNamespace(float=float, float32=float, arange=lambda *a, **_: array(np.arange(*a)),
                                  clamp=lambda x, low, high: np.clip(x, low, high))
    names = {"math": math, "torch": torch}
    exec("from __future__ import annotations\n" + ast.get_source_segment(source, node), names)
    for case in CASES:
        config = types.SimpleNamespace(hidden_size=64, num_attention_heads=4, head_dim=16, max_position_embeddings=8192,
                                       standardize_rope_params=lambda: None)
        config.rope_parameters = dict(case, rope_theta=10000.0, original_max_position_embeddings=4096)
        freq, magnitude = names["_compute_yarn_parameters"](config)
        print(json.dumps(case), "%.8g" % magnitude, ", ".join("%.8g" % f for f in freq))


main()
