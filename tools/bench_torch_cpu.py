#!/usr/bin/env python3
"""Times PyTorch on a CPU beside `octet bench gemm` and `octet bench step`: the same products, and a training step of a Llama with the
shape of a run file. Needs torch. Pin both programs to the same cores, for example with taskset, and run them in turns.

    taskset -c 0,1 python3 tools/bench_torch_cpu.py gemm
    taskset -c 0,1 python3 tools/bench_torch_cpu.py step run.toml --compile
"""

import argparse
import os
import time
import tomllib

import torch
import torch.nn.functional as F
from torch import nn

PRODUCTS = [(2048, 256, 128), (2048, 704, 128), (2048, 128, 352), (704, 128, 2048), (2048, 512, 512), (1024, 1024, 1024),
            (2048, 2048, 2048), (2048, 5632, 2048)]


def shortest(body, seconds=0.5):
    body()
    best, end = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        body()
        best = min(best, time.perf_counter() - start)
    return best


def bench_gemm():
    for m, n, k in PRODUCTS:
        for name, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
            a, b = torch.randn(m, k, dtype=dtype), torch.randn(n, k, dtype=dtype)
            d = torch.empty(m, n, dtype=dtype)
            seconds = shortest(lambda: torch.mm(a, b.t(), out=d))
            print(f"{name} {m} x {n} x {k}: {seconds * 1e6:.1f} us, {2e-9 * m * n * k / seconds:.1f} GFLOP/s", flush=True)


class Block(nn.Module):
    def __init__(self, dim, ffn, heads, kv_heads):
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads, dim // heads
        self.norm1, self.norm2 = nn.RMSNorm(dim, eps=1e-5), nn.RMSNorm(dim, eps=1e-5)
        self.qkv = nn.Linear(dim, (heads + 2 * kv_heads) * self.head_dim, bias=False)
        self.out = nn.Linear(dim, dim, bias=False)
        self.gate_up, self.down = nn.Linear(dim, 2 * ffn, bias=False), nn.Linear(ffn, dim, bias=False)

    def forward(self, x, cos, sin):
        batch, length, dim = x.shape
        q, k, v = self.qkv(self.norm1(x)).split(
            [self.heads * self.head_dim, self.kv_heads * self.head_dim, self.kv_heads * self.head_dim], dim=-1)

        def rotated(t, heads):
            t = t.view(batch, length, heads, self.head_dim).transpose(1, 2)
            low, high = t.chunk(2, dim=-1)
            return torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1).to(v.dtype)

        v = v.view(batch, length, self.kv_heads, self.head_dim).transpose(1, 2)
        o = F.scaled_dot_product_attention(rotated(q, self.heads), rotated(k, self.kv_heads), v, is_causal=True,
                                           enable_gqa=self.heads != self.kv_heads)
        x = x + self.out(o.transpose(1, 2).reshape(batch, length, dim))
        gate, up = self.gate_up(self.norm2(x)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)


class Llama(nn.Module):
    def __init__(self, model, length):
        super().__init__()
        dim, heads = model["hidden_size"], model["num_attention_heads"]
        self.embedding = nn.Embedding(model["vocab_size"], dim)
        self.blocks = nn.ModuleList(Block(dim, model["intermediate_size"], heads, model["num_key_value_heads"])
                                    for _ in range(model["num_hidden_layers"]))
        self.norm, self.head = nn.RMSNorm(dim, eps=1e-5), nn.Linear(dim, model["vocab_size"], bias=False)
        if model["tie_word_embeddings"]:
            self.head.weight = self.embedding.weight
        angles = torch.outer(torch.arange(length), 1e4 ** (-torch.arange(0, dim // heads, 2) / (dim // heads)))
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, tokens, targets):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1).float(), targets.flatten())


def bench_step(path, seconds, dtype, compiled):
    with open(path, "rb") as file:
        run = tomllib.load(file)
    batch, length = run["training"]["micro_batch_size"], run["training"]["seq_len"]
    model = Llama(run["model"], length)
    tokens = torch.randint(run["model"]["vocab_size"], (batch, length + 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    forward = torch.compile(model) if compiled else model

    def step():
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bf16"):
            loss = forward(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.item()

    start = time.perf_counter()
    step()
    step()
    first = time.perf_counter() - start
    steps, start = 0, time.perf_counter()
    while (taken := time.perf_counter() - start) < seconds:
        loss, steps = step(), steps + 1
    print(f"torch {torch.__version__} {dtype}{' compiled' if compiled else ''}: {steps * batch * length / taken:.0f} tok/s, "
          f"{taken / steps * 1e3:.1f} ms a step, two steps after {first:.1f} s, loss {loss:.3f}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["gemm", "step"])
    parser.add_argument("run", nargs="?", help="the run file whose step is timed")
    parser.add_argument("--dtype", choices=["bf16", "fp32"], default="bf16", help="bf16: autocast, with FP32 weights")
    parser.add_argument("--compile", action="store_true", help="use torch.compile")
    parser.add_argument("--seconds", type=float, default=10)
    args = parser.parse_args()
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    if args.what == "gemm":
        bench_gemm()
    elif args.run is None:
        parser.error("step needs a run file")
    else:
        bench_step(args.run, args.seconds, args.dtype, args.compile)


if __name__ == "__main__":
    main()
