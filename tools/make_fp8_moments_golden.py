#!/usr/bin/env python3
"""Computes one step of AdamW with moments in FP8 (docs/numerics.md, "FP8 moments") in numpy, with codes and random numbers of its own.

Writes tests/golden/adamw/fp8_moments.safetensors, which tests/kernels/adamw_test.cpp compares bit for bit.
Needs numpy and ml_dtypes:
    .venv/bin/python tools/make_fp8_moments_golden.py
"""

import json
import math
import pathlib
import struct

import ml_dtypes
import numpy as np

# The step. tests/kernels/adamw_test.cpp has the same numbers.
COUNT, FIRST, SEED, STEP, NAME = 128 * 41 + 37, 128 * 5, 1234567890123, 6, "model.layers.0.mlp.down_proj.weight"
GRAD_SCALE, LEARNING_RATE, DECAY, EPSILON, BETA1, BETA2, UPDATES = 0.8 / 100, 0.01, 0.1, 1e-8, 0.9, 0.95, 5
ROUND_MOMENT1, ROUND_MOMENT2 = 4, 5  # random streams
GROUP = 128

f32 = np.float32


def philox(counter, key0, key1):
    """Ten rounds of Philox 4x32 (Salmon et al., 2011), with Python's integers."""
    c0, c1, c2, c3 = counter
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (p1 >> 32) ^ c1 ^ key0, p1 & 0xFFFFFFFF, (p0 >> 32) ^ c3 ^ key1, p0 & 0xFFFFFFFF
        key0, key1 = (key0 + 0x9E3779B9) & 0xFFFFFFFF, (key1 + 0xBB67AE85) & 0xFFFFFFFF
    return c0, c1, c2, c3


def fnv1a(name):
    value = 2166136261
    for byte in name.encode():
        value = (value ^ byte) * 16777619 & 0xFFFFFFFF
    return value


def random_bits(stream, element):
    """16 bits: half-word element % 8 of the block element / 8, low halves first."""
    key0, key1 = SEED & 0xFFFFFFFF, SEED >> 32 ^ stream * 0x85EBCA6B & 0xFFFFFFFF
    words = philox((element // 8 & 0xFFFFFFFF, element // 8 >> 32, STEP, fnv1a(NAME)), key0, key1)
    half = element % 8
    return words[half // 2] >> 16 * (half % 2) & 0xFFFF


GRID = np.arange(0x7F, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float64)  # the values of codes 0 to 0x7E


def round_stochastically(value, bits):
    """The code of one of the two neighbours: away from zero if the discarded fraction and bits / 65536 add up to 1."""
    if math.isnan(value):
        return 0x7F
    sign, magnitude = (0x80 if math.copysign(1, value) < 0 else 0), abs(float(value))
    if magnitude >= GRID[-1]:
        return sign | 0x7E
    low = int(np.searchsorted(GRID, magnitude, side="right")) - 1
    fraction = (magnitude - GRID[low]) / (GRID[low + 1] - GRID[low])
    return sign | (low + (1 if fraction + bits / 65536 >= 1 else 0))


def encode(values, stream, roots):
    codes, scales = np.zeros(len(values), np.uint8), np.zeros(-(-len(values) // GROUP), f32)
    for group in range(len(scales)):
        part = values[group * GROUP : (group + 1) * GROUP]
        amax = np.max(np.abs(part))
        factor = f32(448) / amax if amax != 0 and np.isfinite(amax) else f32(1)
        if np.isinf(factor):
            factor = np.finfo(f32).max
        scales[group] = f32(1) / factor
        for i, value in enumerate(part):
            at = group * GROUP + i
            code = round_stochastically(value * factor, random_bits(stream, FIRST + at))
            codes[at] = 1 if roots and code == 0 and value != 0 else code
    return codes, scales


def decode(codes, scales):
    return codes.view(ml_dtypes.float8_e4m3fn).astype(f32) * np.repeat(scales, GROUP)[: len(codes)]


def make():
    rng = np.random.default_rng(7)
    groups = -(-COUNT // GROUP)
    size = np.repeat(10.0 ** rng.integers(-12, 3, groups), GROUP)[:COUNT]  # magnitudes differ from group to group
    grad = (rng.standard_normal(COUNT) * size * 100).astype(f32)
    weight = rng.standard_normal(COUNT).astype(f32)
    moment1, moment2 = rng.integers(0, 256, COUNT, np.uint8), rng.integers(0, 0x7F, COUNT, np.uint8)
    moment1[moment1 & 0x7F == 0x7F] = 0x80
    scale1 = (size[::GROUP] * rng.uniform(0.001, 0.01, groups)).astype(f32)
    scale2 = (size[::GROUP] * rng.uniform(0.001, 0.01, groups)).astype(f32)
    # A group of zeros, one whose gradients are zero, one with few elements that are not, tiny ones, and one with an overflow.
    for codes in (moment1, moment2):
        codes[: 2 * GROUP] = 0
        codes[3 * GROUP : 4 * GROUP] = 0
    scale1[:2] = scale2[:2] = 0
    grad[:GROUP] = 0
    grad[2 * GROUP : 3 * GROUP] = 0
    grad[3 * GROUP : 4 * GROUP] = 0
    grad[3 * GROUP + 5] = 1e-3
    grad[4 * GROUP : 5 * GROUP] *= f32(1e-25)
    grad[5 * GROUP + 7] = 1e25
    inputs = dict(grad=grad, weight=weight, moment1=moment1, moment2=moment2, moment1_scale=scale1, moment2_scale=scale2)

    with np.errstate(all="ignore"):
        g = grad * f32(GRAD_SCALE)
        w = weight * f32(1 - LEARNING_RATE * DECAY)
        m, root = decode(moment1, scale1), decode(moment2, scale2)
        v = root * root
        m = m + f32(1 - BETA1) * (g - m)
        v = v * f32(BETA2) + f32(1 - BETA2) * g * g
        correction1, correction2 = 1 - math.pow(BETA1, UPDATES), 1 - math.pow(BETA2, UPDATES)
        w = w + f32(-(LEARNING_RATE / correction1)) * m / (np.sqrt(v) / f32(math.sqrt(correction2)) + f32(EPSILON))
        codes1, new_scale1 = encode(m, ROUND_MOMENT1, False)
        codes2, new_scale2 = encode(np.sqrt(v), ROUND_MOMENT2, True)
    outputs = dict(weight=w, moment1=codes1, moment2=codes2, moment1_scale=new_scale1, moment2_scale=new_scale2)
    return {f"{when}.{name}": x for when, part in (("before", inputs), ("after", outputs)) for name, x in part.items()}


def save(path, tensors):
    header, data = {}, b""
    for name, x in sorted(tensors.items(), key=lambda item: item[1].dtype == np.uint8):  # F32 first, so that it is aligned
        begin = len(data)
        data += x.tobytes()
        header[name] = {"dtype": "F8_E4M3" if x.dtype == np.uint8 else "F32", "shape": list(x.shape), "data_offsets": [begin, len(data)]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


if __name__ == "__main__":
    save(pathlib.Path(__file__).parent.parent / "tests/golden/adamw/fp8_moments.safetensors", make())
