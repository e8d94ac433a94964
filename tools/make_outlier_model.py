#!/usr/bin/env python3
"""Turns a Llama into one that computes the same, with the outliers of large models: make_outlier_model.py MODEL OUTPUT [--swiglu]

Every twelfth channel that a norm gives to a linear becomes 256 times larger, every other one 2 times, and the columns of the linear that
read it smaller by as much. What value and up projections give becomes 16 times larger, and the columns of o_proj and down_proj smaller.
With --swiglu only what one channel of each SwiGLU gives becomes 256 times larger: its row of up_proj, and the column of down_proj smaller.
All factors are powers of 2, so BF16 loses nothing. Needs numpy, ml_dtypes and safetensors; reads a model of a single file.
"""

import json
import pathlib
import shutil
import sys

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

KINDS = {"BF16": ml_dtypes.bfloat16, "F32": np.float32}
OUTLIERS, OUTLIER, OTHERS, INNER = 12, 256.0, 2.0, 16.0


def read(path):
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8:8 + length])
    header.pop("__metadata__", None)
    tensors = {}
    for name, info in header.items():
        begin, end = (8 + length + offset for offset in info["data_offsets"])
        tensors[name] = np.frombuffer(data[begin:end], KINDS[info["dtype"]]).reshape(info["shape"]).astype(np.float32)
    return tensors


def enlarge_channel_of_swiglu(tensors, p):
    channel = tensors[f"{p}mlp.up_proj.weight"].shape[0] // 2
    tensors[f"{p}mlp.up_proj.weight"][channel] *= OUTLIER
    tensors[f"{p}mlp.down_proj.weight"][:, channel] /= OUTLIER


def main():
    source, target = map(pathlib.Path, sys.argv[1:3])
    swiglu = sys.argv[3:] == ["--swiglu"]
    shutil.copytree(source, target)
    tensors = read(source / "model.safetensors")
    layers = json.loads((source / "config.json").read_text())["num_hidden_layers"]
    for layer in range(layers):
        p = f"model.layers.{layer}."
        if swiglu:
            enlarge_channel_of_swiglu(tensors, p)
            continue
        for norm, linears in [("input_layernorm", ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"]),
                              ("post_attention_layernorm", ["mlp.gate_proj", "mlp.up_proj"])]:
            weight = tensors[f"{p}{norm}.weight"]
            factors = np.where(np.arange(weight.size) % OUTLIERS == 0, OUTLIER, OTHERS).astype(np.float32)
            weight *= factors
            for linear in linears:
                tensors[f"{p}{linear}.weight"] /= factors
        for larger, smaller in [("self_attn.v_proj", "self_attn.o_proj"), ("mlp.up_proj", "mlp.down_proj")]:
            tensors[f"{p}{larger}.weight"] *= INNER
            tensors[f"{p}{smaller}.weight"] /= INNER
    save_file(tensors, str(target / "model.safetensors"))


main()
