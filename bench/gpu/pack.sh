#!/usr/bin/env bash
# Packs what a machine with a GPU needs, and no network, MPI or MLIR: programs as objects, sources, data.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: bench/gpu/pack.sh BUILD FOLDER [rehearsal]
# Then carry FOLDER (under 64 MiB) there and run FOLDER/bench/gpu/run.sh. With `rehearsal` few and small programs, for
# test/run/device_bench.py, which runs them over stand-ins.
set -euo pipefail
build=$(realpath "$1") folder=$2 extent=${3:-all}
root=$(dirname "$(realpath "$0")")/../..
rm -rf "$folder" && mkdir -p "$folder/programs" "$folder/usr/include" "$folder/usr/share/cmake"
folder=$(realpath "$folder")

for file in /usr/share/common-licenses/*; do [ -L "$file" ] || cat "$file"; done > "$folder/text.txt"

# One folder of objects a program: rank<k>.o and table.o, and formulas.o where there are some. Beside those timed alone
# lies what an H100 would take.
train=$root/examples/train.pipe
pack() { # NAME -D..
  local name=$1 && shift
  "$build/bin/pp-compile" "$train" --target=cuda --emit=obj -o "$folder/programs/$name" "$@"
  [[ $name != step*.single ]] ||
    "$build/bin/pp-compile" "$train" --target=cuda --cluster=h100_sxm --emit=stats \
      -o "$folder/programs/$name/stats.json" "$@"
}
define() { for pair in "$@"; do printf -- '-D %s ' "$pair"; done; }

schedules=(gpipe 1f1b 1f1b_recompute interleaved looped_bfs zb_h1 zb_h2 zb_v v_half v_min dualpipe_v weipipe_interleave
  weipipe_prefetch weipipe_naive wzb1 wzb2 helixpipe tawpipe fsdp zero1 zero2 data_parallel terapipe slimpipe
  slimpipe_interleaved gpipe_offload 1f1b_vocabulary)
types=(f32 bf16 f16)
few=(1f1b zb_v weipipe_interleave tawpipe slimpipe) # for f16, whose programs differ only in their type
others=(1f1b 1f1b_recompute zb_v) # of GPT-2
sizes="layers=8 hidden=64 heads=4 vocab=256 sequence=64 microbatch=2 microbatches=8"
if [ "$extent" = rehearsal ]; then
  schedules=(1f1b tawpipe) others=(1f1b) types=(bf16)
  sizes="layers=4 hidden=16 heads=2 vocab=256 sequence=8 microbatch=1 microbatches=4"
fi
for type in "${types[@]}"; do
  size=$(define model=llama $sizes kv_heads=1 ffn=96 precision="$type")
  pack "gradients.$type.single" $size -D schedule=single
  if [ "$type" = f16 ]; then schedules=("${few[@]}"); fi
  for schedule in "${schedules[@]}"; do
    pack "gradients.$type.$schedule" $size -D schedule="$schedule" -D ranks=4
  done
  if [ "$extent" = all ]; then
    pack "gradients.$type.slimpipe_exchange" $size -D schedule=slimpipe -D exchange=true -D ranks=4
  fi
done

# GPT-2 has what the epilogues of products do: gelu, residuals and biases.
kinds=(f32 bf16)
if [ "$extent" = rehearsal ]; then kinds=(bf16); fi
for type in "${kinds[@]}"; do
  size=$(define model=gpt2 $sizes ffn=256 context=64 precision="$type")
  pack "gradients.$type-gpt2.single" $size -D schedule=single
  for schedule in "${others[@]}"; do
    pack "gradients.$type-gpt2.$schedule" $size -D schedule="$schedule" -D ranks=4
  done
done

# Families with experts, windows or caps, of which one rank is judged by the CPU's program, and meshes.
judge() { # NAME -D..
  local name=$1 && shift
  pack "$name" "$@"
  "$build/bin/pp-compile" "$train" -o "$folder/host" "$@"
  OMP_NUM_THREADS=1 "$folder/host" --in-process --data "$folder/text.txt" --steps 1 \
    --grads "$folder/programs/$name/host.grads" --log "$folder/programs/$name/host.jsonl" > /dev/null
  rm -f "$folder/host"
}
families=(llama gemma olmo mixtral qwen3_moe olmoe glm4_moe) meshes=(tensor sequence gather heads data zero expert)
meshed=(llama mixtral)
if [ "$extent" = rehearsal ]; then families=(mixtral) meshes=(tensor) meshed=(mixtral); fi
for family in "${families[@]}"; do
  size=$(define model="$family" $sizes layers=4 ffn=96 precision=f32)
  case $family in
  mixtral | *moe) size+=" -D experts=8 -D top=2" ;;
  gemma) size+=" $(define model.sliding_window=16 model.score_cap=50 model.logit_cap=30)" ;;
  olmo) size+=" $(define model.sliding_window=16)" ;;
  esac
  judge "gradients.f32-$family.single" $size -D schedule=single
  pack "gradients.f32-$family.zb_v" $size -D schedule=zb_v -D ranks=2
done
for mesh in "${meshes[@]}"; do
  case $mesh in
  tensor) on=(-D mesh.tensor=2) ;;
  sequence) on=(-D mesh.tensor=2 -D mesh.sequence=true) ;;
  gather) on=(-D mesh.context=2) ;;
  heads) on=(-D mesh.context=2 -D mesh.attention=heads) ;;
  data) on=(-D mesh.data=2 -D microbatch=1) ;; # one rank's sequences are shared out
  zero) on=(-D mesh.data=2 -D mesh.zero=2 -D microbatch=1) ;;
  expert) on=(-D mesh.data=2 -D mesh.expert=2 -D microbatch=1) ;;
  esac
  for family in "${meshed[@]}"; do
    [ "$family-$mesh" = llama-expert ] && continue
    size=$(define model="$family" $sizes layers=4 ffn=96 precision=f32)
    [ "$family" = mixtral ] && size+=" -D experts=8 -D top=2"
    pack "gradients.f32-$family.1f1b+$mesh" $size -D schedule=1f1b -D ranks=4 "${on[@]}"
  done
done

# Models of formulas, whose kernels the GPU's driver makes of PTX.
mkdir "$folder/formulas"
PYTHONPATH=$root/test/run python3 -c 'import harness, sys; harness.add_models(*sys.argv[1:])' \
  "$folder/formulas" "$root/test/run/Inputs/formulas.pipe"
train=$folder/formulas/train.pipe models=(relu2 gated ngpt)
if [ "$extent" = rehearsal ]; then models=(gated); fi
for model in "${models[@]}"; do
  size=$(define model="$model" $sizes layers=4 ffn=100 precision=f32)
  judge "gradients.f32-$model.single" $size -D schedule=single
  pack "gradients.f32-$model.zb_v" $size -D schedule=zb_v -D ranks=2
done
train=$root/examples/train.pipe
rm -r "$folder/formulas"

# Slices so long that cuDNN has plans for their chunks of keys, by which it is wrong; heads that share keys, or do not.
if [ "$extent" = all ]; then
  for groups in 1 4; do
    size=$(define model=llama $sizes layers=4 kv_heads=$groups ffn=96 sequence=1024 precision=bf16)
    pack "gradients.bf16-slices$groups.single" $size -D schedule=single
    for schedule in terapipe slimpipe; do
      pack "gradients.bf16-slices$groups.$schedule" $size -D schedule=$schedule -D ranks=4 -D slices=4
    done
  done
fi

# A stack of llama layers as bench/gpu/step.py has it for PyTorch.
if [ "$extent" = rehearsal ]; then
  pack step.16.single $(define model=llama layers=2 hidden=16 heads=2 kv_heads=1 ffn=16 vocab=256 sequence=16 \
    microbatch=1 microbatches=4 precision=bf16 schedule=single clip=0)
else
  for length in 4096 16384; do
    pack "step.$length.single" $(define model=llama layers=4 hidden=4096 heads=32 kv_heads=8 ffn=14336 vocab=4096 \
      sequence=$length microbatch=1 microbatches=4 precision=bf16 schedule=single clip=0)
  done
  pack step.4096.1f1b $(define model=llama layers=4 hidden=4096 heads=32 kv_heads=8 ffn=14336 vocab=4096 \
    sequence=4096 microbatch=1 microbatches=4 precision=bf16 schedule=1f1b ranks=4 clip=0)
  pack step-mixtral.4096.single $(define model=mixtral layers=1 hidden=4096 heads=32 kv_heads=8 ffn=14336 experts=8 \
    top=2 vocab=4096 sequence=4096 microbatch=1 microbatches=4 precision=bf16 schedule=single clip=0)
  for schedule in terapipe slimpipe; do # slices: attention of chunks of keys
    pack step.16384.$schedule $(define model=llama layers=4 hidden=4096 heads=32 kv_heads=8 ffn=14336 vocab=4096 \
      sequence=16384 microbatch=1 microbatches=4 precision=bf16 schedule=$schedule ranks=4 slices=4 clip=0)
  done
  pack step-gpt2.1024.single $(define model=gpt2 layers=12 hidden=768 heads=12 ffn=3072 vocab=8192 context=1024 \
    sequence=1024 microbatch=8 microbatches=4 precision=bf16 schedule=single clip=0)
fi

cp -r "$root"/{CMakeLists.txt,runtime,test,bench} "$folder"
rm -rf "$folder"/test/{translate,passes,frontend,stdlib,dialect,lowering,docs,fuzz}
cp -r /usr/include/nlohmann "$folder/usr/include"
cp -r /usr/share/cmake/nlohmann_json "$folder/usr/share/cmake"
[ -d /usr/src/googletest ] && cp -r /usr/src/googletest "$folder/googletest"
du -sh "$folder" | cut -f1
