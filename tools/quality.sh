#!/usr/bin/env bash
# tools/quality.sh [NAME...]: measures what FP8 costs in loss, on a machine with one or several GPUs. Trains configs/quality-380m.toml on
# the sources of this machine's Python packages, once for each NAME below (default: all). Each GPU takes one run at a time. Then makes the
# table and report.html of docs/measurements/quality-379m.md, and their picture (loss-light.svg, loss-dark.svg). Complete runs are kept, so
# several calls can share the work. The program octet comes from OCTET_BIN (default build/release). Everything goes to OUT (default
# out/quality).
set -uo pipefail
cd "$(dirname "$(realpath "$0")")/.."
octet=${OCTET_BIN:-build/release}/octet
out=${OUT:-out/quality}
mkdir -p "$out"
folders=$(python3 -c 'import glob, sys; print(":".join(f for p in sys.path if p for f in glob.glob(p + "/nvidia/*/lib")))' 2>/dev/null)
export LD_LIBRARY_PATH="${LD_LIBRARY_PATH:-}${LD_LIBRARY_PATH:+:}$folders"

# All runs see the same batches. bf16-repeat takes each batch in two halves.
declare -A settings=(
  [bf16]="--precision.recipe=bf16"
  [bf16-repeat]="--precision.recipe=bf16 --training.micro_batch_size=8"
  [fp8_delayed]="--precision.recipe=fp8_delayed"
  [fp8_current]="--precision.recipe=fp8_current"
  [fp8_rowwise]="--precision.recipe=fp8_rowwise"
  [fp8_block]="--precision.recipe=fp8_block"
  [fp8_delayed-head-fast]="--precision.recipe=fp8_delayed --precision.head=recipe --precision.accumulation=fast"
  [fp8_delayed-16-bit]="--precision.recipe=fp8_delayed --training.grad_dtype=bf16 --optimizer.state_dtype=bf16 --optimizer.master_weights=false"
)
names=("$@")
[ $# -gt 0 ] || names=(bf16 bf16-repeat fp8_block fp8_current fp8_delayed fp8_rowwise fp8_delayed-head-fast fp8_delayed-16-bit)

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

gpus=$(nvidia-smi --list-gpus | wc -l)
train_on() {  # GPU NAME...
  local gpu=$1 name
  shift
  for name in "$@"; do
    [ ! -e "$out/$name/done" ] || continue
    # shellcheck disable=SC2086
    CUDA_VISIBLE_DEVICES=$gpu "$octet" train configs/quality-380m.toml --run.device=cuda --run.name="$name" --run.output_dir="$out/$name" \
      --data.source="[{path=\"$out/corpus\"}]" ${settings[$name]} >"$out/$name.log" 2>&1 && touch "$out/$name/done"
    tail -n 1 "$out/$name.log" | sed "s/^/$name: /"
  done
}
for ((gpu = 0; gpu < gpus; ++gpu)); do
  share=()
  for ((i = gpu; i < ${#names[@]}; i += gpus)); do share+=("${names[$i]}"); done
  train_on "$gpu" "${share[@]}" &
done
wait

complete=()
for name in "${names[@]}"; do if [ -e "$out/$name/done" ]; then complete+=("$out/$name"); fi; done
[ ${#complete[@]} -gt 0 ] && "$octet" report "${complete[@]}" --output "$out" --picture "$out/loss.svg" --title "BF16 and FP8 on the same batches"
