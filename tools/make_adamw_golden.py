#!/usr/bin/env python3
"""Makes tests/golden/adamw/ten_steps.safetensors: ten steps of AdamW, computed by torch from recorded gradients.

Run in an environment with torch, numpy and safetensors (made with torch 2.15, CPU):

    python tools/make_adamw_golden.py [OUTPUT]

There are three parameters, one of them without weight decay. Gradients are sums over a number of tokens that changes from step to step.
Clipping by the global norm is active in some steps. The learning rate warms up and then follows a cosine (torch's LinearLR and
CosineAnnealingLR). Tensors: `w0.NAME`; for each STEP from 1 to 10 `STEP.grad.NAME` (summed over tokens) and, after the step, `STEP.w.NAME`,
`STEP.m.NAME` and `STEP.v.NAME`; `lr`, `tokens` and `grad_norm` [10] F64.
"""

import pathlib
import sys

import torch
from safetensors.torch import save_file

LR, STEPS, WARMUP, MIN_LR_FACTOR = 3e-3, 10, 3, 0.1
BETAS, EPSILON, WEIGHT_DECAY, MAX_GRAD_NORM = (0.9, 0.95), 1e-8, 0.1, 1.0
SHAPES = {"embed": (12, 16), "norm": (16,), "proj": (7, 16)}


def main():
    output = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else (
        pathlib.Path(__file__).resolve().parent.parent / "tests/golden/adamw/ten_steps.safetensors")
    generator = torch.Generator().manual_seed(20240229)
    parameters = {name: torch.nn.Parameter(torch.randn(shape, generator=generator) * 0.5) for name, shape in SHAPES.items()}
    tensors = {f"w0.{name}": p.detach().clone() for name, p in parameters.items()}
    optimizer = torch.optim.AdamW(
        [{"params": [parameters["embed"], parameters["proj"]], "weight_decay": WEIGHT_DECAY},
         {"params": [parameters["norm"]], "weight_decay": 0.0}],
        lr=LR, betas=BETAS, eps=EPSILON, foreach=False)
    scheduler = torch.optim.lr_scheduler.SequentialLR(
        optimizer,
        [torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=1 / WARMUP, total_iters=WARMUP - 1),
         torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=STEPS - WARMUP, eta_min=LR * MIN_LR_FACTOR)],
        milestones=[WARMUP - 1])
    rates, norms, tokens = [], [], []
    for step in range(1, STEPS + 1):
        count = 90 + 7 * step
        size = 0.3 if step % 3 == 0 else 0.03  # standard deviation of the mean gradient's elements; the norm is about 18 times as large
        for name, p in parameters.items():
            total = torch.randn(p.shape, generator=generator) * (size * count)
            tensors[f"{step}.grad.{name}"] = total
            p.grad = total / count
        norms.append(float(torch.nn.utils.clip_grad_norm_(parameters.values(), MAX_GRAD_NORM)))
        rates.append(optimizer.param_groups[0]["lr"])
        tokens.append(float(count))
        optimizer.step()
        scheduler.step()
        for name, p in parameters.items():
            state = optimizer.state[p]
            tensors[f"{step}.w.{name}"] = p.detach().clone()
            tensors[f"{step}.m.{name}"] = state["exp_avg"].clone()
            tensors[f"{step}.v.{name}"] = state["exp_avg_sq"].clone()
    for name, values in {"lr": rates, "tokens": tokens, "grad_norm": norms}.items():
        tensors[name] = torch.tensor(values, dtype=torch.float64)
    output.parent.mkdir(parents=True, exist_ok=True)
    save_file(tensors, output)
    clipped = sum(norm > MAX_GRAD_NORM for norm in norms)
    print(f"{output}: {len(tensors)} tensors, {output.stat().st_size} bytes, {clipped} of {STEPS} steps clipped")


if __name__ == "__main__":
    main()
