#!/usr/bin/env bash
# tools/quality.sh [NAME...]: measures what FP8 and the fast settings cost in loss, on a machine with one or several GPUs. Trains
# configs/quality-380m.toml on the sources of this machine's Python packages, once for each NAME below (default: all) and each of SEEDS
# (default "1 2 3"). A seed gives the weights and the order of the data, so runs of one seed see the same batches. Each GPU takes the next
# run that nobody has begun. After MINUTES (default: no limit) the runs are asked to save; the next call goes on with them, and then with
# the rest. A complete run keeps its figures, but not its checkpoint of 4.5 GB. In the end tools/quality_table.py prints the table of all
# complete runs. OPTIONS are further options of every run, such as --training.steps=3072. The program octet comes from OCTET_BIN (default
# build/release). Everything goes to OUT (default out/quality).
set -uo pipefail
cd "$(dirname "$(realpath "$0")")/.." || exit
octet=${OCTET_BIN:-build/release}/octet
out=${OUT:-out/quality}
seeds=${SEEDS:-1 2 3}
ends=$((${MINUTES:-1000000} * 60))  # SECONDS counts from the start of this script
mkdir -p "$out"
folders=$(python3 -c 'import glob, sys; print(":".join(f for p in sys.path if p for f in glob.glob(p + "/nvidia/*/lib")))' 2>/dev/null)
export LD_LIBRARY_PATH="${LD_LIBRARY_PATH:-}${LD_LIBRARY_PATH:+:}$folders"

# bf16-repeat takes each batch in two halves: its difference from bf16 is rounding alone.
delayed="--precision.recipe=fp8_delayed"
sixteen="--training.grad_dtype=bf16 --optimizer.state_dtype=bf16 --optimizer.master_weights=false"
all="$delayed $sixteen --optimizer.state_dtype=fp8 --precision.head=recipe --precision.accumulation=fast"
declare -A settings=(
  [bf16]="--precision.recipe=bf16"
  [bf16-repeat]="--precision.recipe=bf16 --training.micro_batch_size=8"
  [fp8_delayed]="$delayed"
  [fp8_current]="--precision.recipe=fp8_current"
  [fp8_rowwise]="--precision.recipe=fp8_rowwise"
  [fp8_block]="--precision.recipe=fp8_block"
  [fast-dgrad]="$delayed --precision.accumulation.dgrad=fast"
  [fast]="$delayed --precision.accumulation=fast"
  [fp8-head]="$delayed --precision.head=recipe"
  [fp8-head-fast]="$delayed --precision.head=recipe --precision.accumulation=fast"
  [16-bit]="$delayed $sixteen"
  [fp8-moments]="$delayed --optimizer.state_dtype=fp8"
  [fp8-attention]="$delayed --precision.attention=fp8_forward"
  [fp8-attention-backward]="$delayed --precision.attention=fp8"
  [attention-dgrad]="$delayed --precision.attention=fp8_forward --precision.accumulation.dgrad=fast"
  [all]="$all"
  [all-attention]="$all --precision.attention=fp8"
  [16-bit-dgrad]="$delayed $sixteen --precision.accumulation.dgrad=fast"
  [16-bit-bf16]="--precision.recipe=bf16 $sixteen"
  [no-calibration]="$delayed --precision.calibrate=false"
)
names=("$@")
[ $# -gt 0 ] || names=(bf16 bf16-repeat fp8_delayed fp8_current fp8_rowwise fp8_block fast-dgrad fast fp8-head fp8-head-fast 16-bit
  fp8-moments fp8-attention fp8-attention-backward attention-dgrad all all-attention 16-bit-dgrad 16-bit-bf16 no-calibration)
for name in "${names[@]}"; do
  [ -n "${settings[$name]:-}" ] || { echo "tools/quality.sh: no setting is called $name; there are ${!settings[*]}" >&2; exit 2; }
done

if [ ! -e "$out/corpus.json" ]; then
  texts=$(realpath "$out")/texts
  mkdir -p "$texts"
  python3 -c 'import sys; print("\n".join(p for p in sys.path if p.startswith("/")))' | while read -r folder; do
    cd "$folder" 2>/dev/null || continue
    find . -name '*.py' -size -400k -not -path './site-packages/*' -not -path './dist-packages/*' -print0 |
      xargs -0 -r cp --parents --no-preserve=all --target-directory "$texts"
  done
  "$octet" data prepare --input "$out/texts" --tokenizer byte --output "$out/corpus" || exit 1
fi

train() {  # GPU SEED NAME: a run that was asked to save goes on
  local gpu=$1 seed=$2 name=$3 run=$out/$2/$3
  # shellcheck disable=SC2086
  CUDA_VISIBLE_DEVICES=$gpu timeout --signal=TERM $((ends - SECONDS)) "$octet" train configs/quality-380m.toml --run.device=cuda \
    --run.seed="$seed" --run.name="$name" --run.output_dir="$run" --data.source="[{path=\"$out/corpus\"}]" \
    ${settings[$name]} ${OPTIONS:-} >>"$run.log" 2>&1 && touch "$run/done" && rm -r "$run/checkpoints"
  tail -n 1 "$run.log" | sed "s/^/$name, seed $seed: /"
}
work() {  # GPU
  local seed name
  for seed in $seeds; do
    mkdir -p "$out/$seed"
    for name in "${names[@]}"; do
      [ $((ends - SECONDS)) -gt 30 ] || return
      [ -e "$out/$seed/$name/done" ] || ! mkdir "$claims/$seed-$name" 2>/dev/null || train "$1" "$seed" "$name"
    done
  done
}
claims=$(mktemp -d)
gpus=$(nvidia-smi --list-gpus | wc -l)
for ((gpu = 0; gpu < gpus; ++gpu)); do work "$gpu" & done
wait
rm -r "$claims"

python3 tools/quality_table.py "$octet" "$out"
