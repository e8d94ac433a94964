#!/usr/bin/env python3
"""tools/plan_tables.py [OCTET]: updates the tables of docs/plan.md and docs/measurements/plan-accuracy.md, each between its marks, with the
current output of `octet plan` (default build/release/octet). The measured rows come from tests/golden/plan/measured.tsv."""

import datetime
import json
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
OCTET = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "build/release/octet").resolve()
SHARDED = "--parallel.reshard_after_forward=true --parallel.gradients=sharded"
BF16 = "--precision.recipe=bf16"


def plan(arguments):
    command = [str(OCTET), "plan", *arguments.split(), "--json"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if result.returncode not in (0, 3):  # 3: the run does not fit, and the plan says so
        sys.exit(f"{' '.join(command)}: {result.stderr.strip()}")
    return json.loads(result.stdout)


def speed(run):
    return run["predicted"]["tokens_per_s_per_gpu"]


def cell(run):
    return f"{speed(run):,.0f}" + ("" if run["fits"] else " (does not fit)")


def table(head, rows):
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(str(c) for c in line) + " |" for line in lines)


def written():
    return f"`tools/plan_tables.py` wrote the tables below on {datetime.date.today()}."


def measured():
    lines = (ROOT / "tests/golden/plan/measured.tsv").read_text().splitlines()[1:]
    names = lines[0].split("\t")
    rows = []
    for line in lines[1:]:
        row = dict(zip(names, line.split("\t")))
        run = plan(f"configs/{row['preset']}.toml --gpus {row['gpus']}x{row['gpu']} {row['settings']}")
        seen = float(row["tokens_per_s_per_gpu"])
        used = "" if row["used"] == "-" else row["used"]
        rows.append([row["name"], f"{row['gpus']} {row['gpu']}", cell(run), f"{seen:,.0f}", f"{100 * (speed(run) / seen - 1):+.1f}%", used])
    return table(["row", "GPUs", "predicted", "measured", "", "gave"], rows)


NEMO = "--precision.recipe=fp8_current"  # NeMo's rows say FP8-CS: current scaling with one scale for each tensor

# The layouts of the published rows. What one program keeps for backward another may not: selective checkpointing keeps what the others'
# norms and activations leave, and rebuilds the rest, which costs no product. Their stages share out the blocks without regard to the head.
INTERLEAVED = ("--activation_checkpoint.mode=selective --parallel.pipeline_head_blocks=0 --parallel.pipeline_schedule=interleaved "
               "--parallel.pipeline_chunks=")
SEVENTY = ("configs/llama3-70b.toml --gpus 64xH100 --training.global_batch_size=256 --parallel.pipeline=8 --parallel.tensor=4 "
           f"{INTERLEAVED}5")
MOST = ("configs/llama3.1-405b.toml --gpus 1024xH100 --training.global_batch_size=1536 --parallel.pipeline=8 --parallel.context=2 "
        f"--parallel.tensor=8 {INTERLEAVED}8")
LLAMA = f"--training.global_batch_size=2048 --parallel.pipeline=16 --parallel.tensor=8 {INTERLEAVED}8 {BF16}"


def published():
    fsdp = ("configs/runs/llama3.1-8b-8xh100.toml --gpus 8xH100 --training.global_batch_size=128 "
            f"--training.micro_batch_size=1 {NEMO} {SHARDED}")
    context = "configs/runs/llama3.1-8b-16k-8xh100.toml --gpus 8xH100 --training.global_batch_size="
    seven = f"configs/llama2-7b.toml --gpus 8xH100 {SHARDED} "
    rows, commands = [], []
    for name, command, figures, alike in (
        ("8B, 8 GPUs, 128 x 8192 a step", fsdp, "14,451 / - (NeMo)", "batch, micro-batch, current scaling, FSDP"),
        ("70B, 64 GPUs, 256 x 8192", f"{SEVENTY} {NEMO}", "1,664 / - (NeMo)",
         "batch, micro-batch, current scaling, layout: data 2 x tensor 4 x pipeline 8 of 5 chunks; recomputation unknown"),
        ("405B, 1024 GPUs, 1536 x 8192", f"{MOST} {NEMO}", "328 / - (NeMo)",
         "likewise: data 8 x context 2 x tensor 8 x pipeline 8 of 8 chunks"),
        ("8B at 16K, context 8, 4 sequences a step", context + "4", "6,246 / 4,157 (AWS)", "context; batch and recipe as far as known"),
        ("the same, 1 sequence", context + "1", "6,246 / 4,157 (AWS)", "the same, with a fourth of the batch"),
        ("Llama 2 7B, 8 GPUs, 4 x 4096 each", seven + "--training.micro_batch_size=4 --training.global_batch_size=32",
         "11,000 / 9,350 (AWS)", "sequence length; batch as far as known; recipe and sharding unknown"),
        ("the same, 1 x 4096 each", seven + "--training.micro_batch_size=1 --training.global_batch_size=8", "11,000 / 9,350 (AWS)",
         "the same, with a fourth of the batch"),
    ):
        fp8, bf16 = plan(command), plan(f"{command} {BF16}")
        memory = " / ".join(f"{run['memory_bytes']['needed'] / 2**30:.1f}" for run in (fp8, bf16))
        rows.append([len(rows) + 1, name, f"{cell(fp8)} / {cell(bf16)}", f"{speed(fp8) / speed(bf16):.2f}", memory, figures, alike])
        commands.append(f"{len(rows)}  octet plan {command}")
    head = ["", "run", "predicted, FP8 / BF16", "FP8 / BF16", "GiB", "published, FP8 / BF16", "how alike"]
    return table(head, rows) + "\n\n```\n" + "\n".join(commands) + "\n```"


def stages():
    rows, commands = [], []
    for name, command, figure in (
        ("405B, 8,192 GPUs, BF16", f"configs/llama3.1-405b.toml --gpus 8192xH100 {LLAMA}", (None, 430)),
        ("405B, 16,384 GPUs, BF16", f"configs/llama3.1-405b.toml --gpus 16384xH100 {LLAMA}", (None, 400)),
        ("405B, 1,024 GPUs, FP8", f"{MOST} {NEMO}", (328, 827)),
        ("70B, 64 GPUs, FP8", f"{SEVENTY} {NEMO}", (1664, 731)),
    ):
        run = plan(command)
        layout, step = run["layout"], run["predicted"]
        data = layout["replicate"] * layout["shard"]
        chunks, batches = layout["pipeline_chunks"], layout["micro_batches"]
        axes = f"{data} x {layout['context']} x {layout['tensor']} x {layout['pipeline']} of {chunks}"
        ideal = (layout["pipeline"] - 1) / (chunks * batches)
        bubble = step["bubble_s"] / (step["step_s"] - step["bubble_s"])
        tokens = "-" if figure[0] is None else f"{figure[0]:,}"
        rows.append([name, axes, batches, f"{cell(run)} / {tokens}", f"{step['tflops_per_gpu']:.0f} / {figure[1]}",
                     f"{100 * (step['tflops_per_gpu'] / figure[1] - 1):+.0f}%", f"{run['memory_bytes']['needed'] / 2**30:.1f}",
                     f"{100 * bubble:.1f}% / {100 * ideal:.1f}%"])
        commands.append(f"octet plan {command}")
    head = ["run", "data x context x tensor x pipeline", "M", "tokens/s", "TFLOPS", "", "GiB", "bubble / (P - 1) / (V M)"]
    return table(head, rows) + "\n\n```\n" + "\n".join(commands) + "\n```"


# The run of the rows about failures: storage takes 200 GB/s, whatever the number of nodes.
FAILING = f"configs/llama3.1-405b.toml --gpus GPUSxH100 --mtbf HOURS --goodput --storage 200GB {LLAMA}"


def goodput():
    rows = []
    for gpus, hours in ((1024, 8090), (1024, 50000), (4096, 8090), (4096, 50000), (16384, 8090), (16384, 29500), (16384, 50000)):
        run = plan(FAILING.replace("GPUS", str(gpus)).replace("HOURS", str(hours)))
        snapshots, best = run["snapshots"], run["best"]
        rows.append([f"{gpus:,}", f"{hours:,}", f"{run['failure_every_s'] / 3600:.2f} h", f"{snapshots['interval'] * run['step_s']:.1f} s",
                     f"{snapshots['recover_s']:.1f} s", f"{100 * snapshots['productive']:.2f}%", f"{best['interval'] * run['step_s']:.1f} s",
                     f"{run['recover_s']:.1f} s", f"{100 * best['productive']:.2f}%", f"{100 * run['as_configured']['productive']:.1f}%"])
    head = ["GPUs", "hours between two failures of a GPU", "a failure every", "a snapshot every", "recovery from a snapshot", "productive, snapshots",
            "a checkpoint every, at best", "recovery from a checkpoint", "productive, checkpoints alone", "the same, one every 500 steps"]
    return table(head, rows) + f"\n\n```\noctet plan {FAILING}\n```"


def nodes():
    rows = []
    for count in (1, 2, 4, 8, 16, 32):
        gpus = 8 * count
        small = (f"configs/llama3.2-1b.toml --training.seq_len=4096 --training.micro_batch_size=4 "
                 f"--training.global_batch_size={4 * gpus} --gpus {gpus}xH100")
        large = f"configs/llama2-7b.toml --training.global_batch_size={gpus} --gpus {gpus}xH100"
        kept = f"{large} --parallel.reshard_after_forward=false --parallel.gradients=whole"
        rows.append([count, cell(plan(small)), cell(plan(kept)), cell(plan(f"{kept} {BF16}")), cell(plan(f"{large} {SHARDED}"))])
    rows.append(["published (AWS), 1 to 32; batches and recipe may differ", "40,800 to 38,000", "11,000 to 9,700", "9,350", ""])
    return table(["nodes", "1B", "7B, weights kept", "7B in BF16, kept", "7B, resharded"], rows)


def search():
    arguments = "configs/llama3.1-8b.toml --gpus 256xH100 --search --training.global_batch_size=512"
    result = subprocess.run([str(OCTET), "plan", *arguments.split()], cwd=ROOT, capture_output=True, text=True, check=True)
    lines = result.stdout.rstrip().splitlines()
    return f"`octet plan {arguments}`:\n\n```\n" + "\n".join([*lines[:6], "...", *lines[-2:]]) + "\n```"


def example():
    arguments = "configs/runs/llama3.1-8b-8xh100.toml --gpus 8xH100"
    result = subprocess.run([str(OCTET), "plan", *arguments.split()], cwd=ROOT, capture_output=True, text=True, check=True)
    return "```\n" + result.stdout[result.stdout.index("a step of a GPU"):].rstrip() + "\n```"


def main():
    makers = (written, measured, published, stages, goodput, nodes, search, example)
    found = set()
    for page in (ROOT / "docs/plan.md", ROOT / "docs/measurements/plan-accuracy.md"):
        if not page.exists():
            continue
        text = page.read_text()
        for make in makers:
            mark = re.compile(rf"(<!-- {make.__name__} -->\n).*?(<!-- end -->)", re.DOTALL)
            if mark.search(text):
                body = make()
                text = mark.sub(lambda match: f"{match[1]}{body}\n{match[2]}", text)
                found.add(make)
        page.write_text(text)
    missing = [make.__name__ for make in makers if make not in found]
    if missing:
        sys.exit(f"no page has the marks of: {', '.join(missing)}")


main()
