"""What `h100_sxm` predicts beside what one H100 and one H200 took (bench/RESULTS.md): each step within 5 %."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: measured_steps.py PP TRAIN     PP stats TRAIN .. is asked; TRAIN is examples/train.pipe
import json, subprocess, sys

LLAMA = "model=llama layers=4 hidden=4096 heads=32 kv_heads=8 ffn=14336 vocab=4096 microbatch=1"
GPT2 = "model=gpt2 layers=12 hidden=768 heads=12 ffn=3072 vocab=8192 context=1024 sequence=1024 microbatch=8"
MIXTRAL = LLAMA.replace("llama layers=4", "mixtral layers=1") + " experts=8 top=2 sequence=4096"
# Milliseconds by the GPUs' clocks, on up to three machines. Where ranks share one, all that they compute counts.
MEASURED = {LLAMA + " schedule=single sequence=4096": (165.0, 169.8, 167.0),
            LLAMA + " schedule=single sequence=16384": (787.2, 797.3, 783.3),
            GPT2 + " schedule=single": (57.9, 58.1, 55.9),
            MIXTRAL + " schedule=single": (1594.7, 1597),
            LLAMA + " schedule=terapipe slices=4 ranks=4 sequence=16384": (1063.9,),
            LLAMA + " schedule=slimpipe slices=4 ranks=4 sequence=16384": (1073.1,)}

for program, times in MEASURED.items():
    values = [word for value in (program + " microbatches=4 precision=bf16 clip=0").split() for word in ("-D", value)]
    told = json.loads(subprocess.run([sys.argv[1], "stats", sys.argv[2], "--cluster=h100_sxm", *values], check=True,
                                     capture_output=True, text=True).stdout)
    update = told["step"] - told["makespan"]
    step = 1e3 * sum(rank["busy"] + update for rank in told["per_rank"])
    least, most = min(times), max(times)
    right = 0.95 * least <= step <= 1.05 * most
    print(f"{'right' if right else 'WRONG'}: {step:.1f} ms predicted, {least} to {most} measured: {program}")
