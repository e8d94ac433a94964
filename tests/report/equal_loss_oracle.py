"""Computes the time to equal loss of made-up runs with numpy's polynomial fits, by the definition in src/octet/report/equal_loss.h, and
compares it with `octet report --json`."""

import json
import pathlib
import subprocess
import sys
import tempfile

import numpy as np


def fit(steps, losses, at, h):
    """Returns the value and the slope at `at` of the weighted line through the losses."""
    near = np.abs(steps - at) <= 5 * h
    root = np.exp(-0.25 * ((steps[near] - at) / h) ** 2)  # polyfit squares its weights
    slope, value = np.polyfit(steps[near] - at, losses[near], 1, w=root)
    return value, slope


def weights(steps, at, h):
    """Returns the weights of the losses in the value of the fit, from the pseudoinverse of the weighted design matrix."""
    root = np.where(np.abs(steps - at) <= 5 * h, np.exp(-0.25 * ((steps - at) / h) ** 2), 0)
    return np.linalg.pinv(root[:, None] * np.stack([np.ones_like(steps), steps - at], axis=1))[0] * root


class Curve:
    def __init__(self, begin, steps, losses, times):
        finite = np.isfinite(losses)
        self.all_steps, self.times = np.append(begin, steps), np.append(0, times)
        self.steps, self.losses = steps[finite].astype(float), losses[finite]
        span = self.steps[-1] - self.steps[0]
        self.h = max(span / 40, 2 * span / (len(self.steps) - 1))
        self.smooth = np.array([fit(self.steps, self.losses, x, self.h)[0] for x in self.steps])

    def step_of(self, loss):
        last = np.flatnonzero(self.smooth > loss)[-1]
        return np.interp(-loss, -self.smooth[last : last + 2], self.steps[last : last + 2])

    def time_at(self, step):
        return np.interp(step, self.all_steps, self.times)

    def weighted_scatter(self, at):
        own = np.array([weights(self.steps, x, self.h)[i] for i, x in enumerate(self.steps)])
        return dict(zip(self.steps, weights(self.steps, at, self.h) * (self.losses - self.smooth) / (1 - own)))


def expected(run, baseline, repeat):
    slower, faster = (run, baseline) if run.smooth[-1] > baseline.smooth[-1] else (baseline, run)
    loss = slower.smooth[-1]
    begin = max(run.all_steps[0], baseline.all_steps[0])  # the time before the later run began says nothing about the two
    time_s, baseline_time_s = (curve.time_at(curve.step_of(loss)) - curve.time_at(begin) for curve in (run, baseline))
    step = faster.step_of(loss)
    a, b = slower.weighted_scatter(slower.steps[-1]), faster.weighted_scatter(step)
    d, source = np.sqrt(sum((a.get(x, 0) - b.get(x, 0)) ** 2 for x in a.keys() | b.keys())), "scatter"
    if repeat:
        end = baseline.steps > 0.9 * baseline.steps[-1]
        gap = np.interp(baseline.steps[end], repeat.steps, repeat.smooth) - baseline.smooth[end]
        d, source = max((d, source), (np.sqrt(np.mean(gap**2)), "repeat"))
    slope = fit(faster.steps, faster.losses, step, 2 * faster.h)[1]
    around = np.clip([step - faster.h, step + faster.h], faster.all_steps[0], faster.all_steps[-1])
    pace = np.diff(faster.time_at(around))[0] / np.diff(around)[0]
    return {
        "loss": loss,
        "time_s": time_s,
        "baseline_time_s": baseline_time_s,
        "speedup": baseline_time_s / time_s,
        "noise_from": source,
        "noise_pct": 100 * d / -slope * pace / (faster.time_at(step) - faster.time_at(begin)),
    }


def write_run(folder, name, repeat_of, begin, lines):
    """Writes a run that went on from the checkpoint of step `begin` of another folder, or began anew at 0."""
    folder.mkdir()
    (folder / "run.json").write_text(json.dumps({"name": name, "recipe": name, "repeat_of": repeat_of, "device": "cuda", "processes": 1}))
    with open(folder / "metrics.jsonl", "w") as file:
        for step, loss, step_time in lines:
            value = float(loss) if np.isfinite(loss) else None
            file.write(json.dumps({"step": int(step), "loss": value, "step_time_s": float(step_time), "tokens_per_s_per_gpu": 1.0}) + "\n")
    steps, losses, step_times = (np.array(column, dtype=float) for column in zip(*lines))
    step_times[0] = min(step_times[0], step_times[1])  # the first step of a process is cold
    return Curve(begin, steps, losses, np.cumsum(step_times * np.diff(np.append(begin, steps))))


def made_up(random, batch, begin, steps, tau, above, step_time, log_freq):
    """Lines of a run whose loss falls exponentially, with the noise of the batches, some of its own, uneven times and skipped steps."""
    lines = []
    for step in range(begin + log_freq, steps + 1, log_freq):
        loss = 2 + above + 4 * np.exp(-step / tau) + batch[step] + random.normal(0, 0.005)
        cold = 30 if step == begin + log_freq else 1
        lines.append((step, np.nan if random.random() < 0.02 and step < steps else loss, cold * step_time * random.uniform(0.8, 1.2)))
    return lines


def main(octet):
    random = np.random.default_rng(3)
    with tempfile.TemporaryDirectory() as folder:
        # Whether BF16 was trained twice, the steps of a line of fp8_block, and after which step bf16 and the other runs went on.
        cases = ((True, 1, 0, 0), (False, 1, 0, 0), (True, 5, 0, 0), (False, 5, 0, 0), (True, 5, 50, 50), (False, 1, 0, 50))
        for case, (repeated, log_freq, bf16_begin, begin) in enumerate(cases):
            root = pathlib.Path(folder) / str(case)
            root.mkdir()
            batch = random.normal(0, 0.03, 1001)
            rates = {
                "bf16": (bf16_begin, 300, 120, 0, 1.0, 1),
                "fp8_delayed": (begin, 300, 120, 0.02, 0.7, 1),
                "fp8_block": (begin, 280, 100, 0.0, 1.3, log_freq),
            }
            runs = {name: write_run(root / name, name, "", rate[0], made_up(random, batch, *rate)) for name, rate in rates.items()}
            repeat = None
            if repeated:
                lines = made_up(random, batch, bf16_begin, 300, 119, 0, 1.1, 1)
                repeat = write_run(root / "bf16-repeat", "bf16-repeat", "bf16", bf16_begin, lines)
            done = subprocess.run([octet, "report", root, "--json"], capture_output=True, text=True, check=True)
            rows = {row["name"]: row for row in json.loads(done.stdout)["rows"]}
            assert rows["bf16"]["equal_loss"] is None
            for name in ("fp8_delayed", "fp8_block"):
                said = rows[name]["equal_loss"]
                values = expected(runs[name], runs["bf16"], repeat)
                assert said["noise_from"] == values.pop("noise_from"), said
                for key, value in values.items():
                    assert abs(said[key] - value) <= 1e-6 * abs(value), (case, name, key, said[key], value)
                print(f"{name}: {said['speedup']:.3f}x, noise {said['noise_pct']:.1f}% from the {said['noise_from']}")


main(sys.argv[1])
