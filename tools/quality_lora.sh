#!/usr/bin/env bash
# tools/quality_lora.sh: measures what an FP8 base costs LoRA in loss, on a CPU in about twenty minutes on two cores. Trains a Llama of
# 3.3 million parameters on the sources of this repository in BF16, then adapters beside it on its documents, once with each recipe.
# Writes the table, report.html and picture of docs/measurements/quality-lora.md. The program octet comes from OCTET_BIN (default
# build/release). Everything goes to OUT (default out/quality-lora).
set -euo pipefail
cd "$(dirname "$(realpath "$0")")/.."
octet=${OCTET_BIN:-build/release}/octet
out=${OUT:-out/quality-lora}
mkdir -p "$out"

$octet data prepare --input src tests --tokenizer byte --output "$out/sources"
$octet data prepare --input docs README.md --tokenizer byte --output "$out/documents"

$octet train configs/quickstart.toml --run.name=base --run.output_dir="$out/base" --data.source.0.path="$out/sources" \
  --model.hidden_size=256 --model.intermediate_size=704 --model.num_hidden_layers=4 --model.num_attention_heads=8 \
  --model.num_key_value_heads=4 --precision.recipe=bf16 --training.steps=1200 --optimizer.lr=1e-3 --lr_scheduler.warmup_steps=20 \
  --evaluation.interval=100

cat >"$out/lora.toml" <<TOML
[run]
name = "lora"
output_dir = "$out/lora"
seed = 43
device = "cpu"
[model]
init_from = "$out/base/model"
[lora]
rank = 16
alpha = 32
[[data.source]]
path = "$out/documents"
[data]
split = [0.95, 0.05]
[training]
seq_len = 128
micro_batch_size = 16
global_batch_size = 16
steps = 600
[optimizer]
lr = 3e-3
max_grad_norm = 0.5
[lr_scheduler]
warmup_steps = 20
decay = "cosine"
min_lr_factor = 0.1
[precision]
recipe = "bf16"
[evaluation]
interval = 50
sequences = 64
[checkpoint]
interval = 0
[metrics]
log_freq = 1
TOML
$octet compare "$out/lora.toml" --recipes bf16,fp8_delayed,fp8_current,fp8_rowwise,fp8_block,mxfp8 --output "$out/lora"
$octet report "$out/lora" --picture "$out/lora-quality.svg"
