"""Prints how far attention with FP8 operands is from attention in FP64, forward and backward, for operands of several distributions. It
is an experiment in numpy that informed docs/numerics.md, "Attention in FP8"; the table is in docs/measurements/fp8-attention.md.

    python tools/fp8_attention_error.py
"""
import ml_dtypes
import numpy as np

TOKENS, HEAD_DIM = 512, 64
SCALE = 1 / np.sqrt(HEAD_DIM)
HIDDEN = np.triu_indices(TOKENS, 1)


def e4m3(x):
    return np.clip(x, -448, 448).astype(ml_dtypes.float8_e4m3fn).astype(np.float64)


def cast(x, kind=ml_dtypes.float8_e4m3fn):
    """Values of FP8 codes with the scale of x itself."""
    scale = float(ml_dtypes.finfo(kind).max) / np.abs(x).max()
    return (x * scale).astype(kind).astype(np.float64) / scale


def bf16(x):
    return x.astype(ml_dtypes.bfloat16).astype(np.float64)


def forward(q, k, v, probabilities=lambda p: p):
    s = SCALE * q @ k.T
    s[HIDDEN] = -np.inf
    m = s.max(axis=1, keepdims=True)
    p = np.exp(s - m)
    total = p.sum(axis=1, keepdims=True)
    return probabilities(p) @ v / total, m + np.log(total)


def backward(q, k, v, o, lse, go, gradients=lambda x: x, probabilities=lambda p: p):
    s = SCALE * q @ k.T
    s[HIDDEN] = -np.inf
    p, go = np.exp(s - lse), gradients(go)
    ds = gradients(p * (go @ v.T - (go * o).sum(axis=1, keepdims=True)))
    return SCALE * ds @ k, SCALE * ds.T @ q, probabilities(p).T @ go


def distance(x, exact):
    return np.linalg.norm(x - exact) / np.linalg.norm(exact)


def main():
    rng = np.random.default_rng(0)
    in_fp8 = lambda p: e4m3(256 * p) / 256
    print("distance in %                        O: all   Q,K     P     V  smooth K   gQ, gK, gV: codes      BF16 Q, K, V   P, gO, dS in E4M3      P in E4M3, gO, dS in E5M2")
    for name, deviation, mean in [("logits of deviation 1", 1, 0), ("2", 2, 0), ("3", 3, 0), ("1.5, mean of K up to 8", 1.5, 8),
                                  ("1.5, mean of K up to 30", 1.5, 30)]:
        shape, root = (TOKENS, HEAD_DIM), np.sqrt(deviation)
        outliers = np.where(np.arange(HEAD_DIM) % 16 == 0, float(mean), 0.0)
        q, k = bf16(rng.normal(size=shape) * root), bf16(rng.normal(size=shape) * root + outliers)
        v, go = bf16(rng.normal(size=shape)), bf16(rng.normal(size=shape))
        o, lse = forward(q, k, v)
        exact = backward(q, k, v, o, lse, go)
        q8, k8, v8 = cast(q), cast(k), cast(v)
        o8, lse8 = forward(q8, k8, v8, in_fp8)
        errors = [distance(x, o) for x in (o8, forward(q8, k8, v)[0], forward(q, k, v, in_fp8)[0], forward(q, k, v8)[0],
                                           forward(q8, cast(k - k.mean(axis=0)), v8, in_fp8)[0])]
        stored = bf16(cast(o8))
        codes = backward(bf16(q8), bf16(k8), bf16(v8), stored, lse8, go)
        values = backward(q, k, v, stored, lse8, go)
        in_fp8_too = [backward(bf16(q8), bf16(k8), bf16(v8), stored, lse8, go, lambda x, kind=kind: cast(x, kind), in_fp8)
                      for kind in (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2)]
        row = "".join(f"{100 * x:6.1f}" for x in errors[:4]) + f"{100 * errors[4]:10.1f}"
        row += "   " + " ".join("".join(f"{100 * distance(a, b):7.1f}" for a, b in zip(g, exact)) for g in (codes, values, *in_fp8_too))
        print(f"{name:36}{row}")


main()
