#!/usr/bin/env python3
"""Prints the kernels' speed beside PyTorch's on the same GPU: products, attention, and bytes per second of the rest.

usage: kernels.py PATH/TO/pp-gpu-kernels [KERNEL..]   (without PyTorch its columns stay empty; all kernels, or these)
SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""
import csv
import statistics
import subprocess
import sys

try:
    import torch
    import torch.nn.functional as F
except ImportError:
    torch = None


def microseconds(run, captured=True):
    """The median time of one call inside a CUDA graph of ten, as pp-gpu-kernels measures. A backward of autograd cannot
    be captured by itself: its ten calls are asked for one by one, which is faster than they run."""
    def ten():
        for _ in range(10):
            run()

    ten()
    torch.cuda.synchronize()
    if captured:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            ten()
        ten = graph.replay
    times = []
    for _ in range(15):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        ten()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) * 100)
    return statistics.median(times)


def fresh(*shape, kind=None):
    return torch.randn(*shape, device="cuda", dtype=kind or torch.bfloat16)


def product(name, kind, dims):
    t, k, n = dims
    if name.split("/")[0] not in ("linear", "linear_dx", "linear_dw"):
        return None  # pairs stand beside their plain calls
    x, w, dy = fresh(t, k, kind=kind), fresh(k, n, kind=kind), fresh(t, n, kind=kind)
    if name.startswith("linear_dw"):
        dw = torch.zeros(k, n, device="cuda", dtype=kind)  # PyTorch sums in the type of the weights
        return microseconds(lambda: dw.addmm_(x.t(), dy))
    if name.startswith("linear_dx"):
        return microseconds(lambda: torch.mm(dy, w.t()))
    if "bias" in name:
        b = fresh(n, kind=kind)
        return microseconds(lambda: torch.addmm(b, x, w))
    return microseconds(lambda: torch.mm(x, w))


def attention(name, dims):
    """The best of PyTorch's fused attentions; keys of a group are repeated outside the measured time."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    b, s, heads, groups, d = dims[:5]
    q = fresh(b, heads, s, d).requires_grad_()
    grouped = groups != heads
    k, v = (fresh(b, groups, s, d).requires_grad_() for _ in range(2))
    options = {"is_causal": "causal" in name, "enable_gqa": grouped}
    best = None
    for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION):
        try:
            with sdpa_kernel(backend):
                forward = lambda: F.scaled_dot_product_attention(q, k, v, **options)
                if name.startswith("attention_bwd"):
                    out = forward()
                    dout = torch.randn_like(out)
                    grad = lambda: torch.autograd.grad(out, (q, k, v), dout, retain_graph=True)
                    time = microseconds(grad, captured=False)
                else:
                    with torch.no_grad():
                        time = microseconds(forward)
            best = time if best is None else min(best, time)
        except RuntimeError as error:
            print(f"# {backend}: {str(error).splitlines()[0]}", file=sys.stderr)
            torch.cuda.synchronize()
    return best


def beside(row):
    """PyTorch's time; none where it has no such kernel, or not enough memory."""
    try:
        return beside_of(row)
    except Exception as error:
        print(f"# {row['kernel']}: {type(error).__name__}: {str(error).splitlines()[0][:100]}", flush=True)
        return None


def beside_of(row):
    if torch is None or not torch.cuda.is_available():
        return None
    name, dims = row["kernel"], [int(each) for each in row["dims"].split()]
    kind = torch.bfloat16 if row["type"] == "bf16" else torch.float32
    if name.startswith("linear"):
        return product(name, kind, dims)
    if name.split("/")[0] in ("attention", "attention_bwd"):
        return attention(name, dims)
    return None


def rows_of(lines):
    """Those of the table; remarks are printed."""
    for line in iter(lines.readline, ""):
        if line.startswith("#"):
            print(line.strip("# \n"), flush=True)
        else:
            yield line


def main():
    # It waits for a line after each of its rows: while PyTorch is timed, nothing else runs on the GPU.
    process = subprocess.Popen([sys.argv[1], "--wait", *sys.argv[2:]], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                               text=True)
    print(process.stdout.readline().strip("# \n"), flush=True)
    print("\n| kernel | type | dims | us | TFLOP/s | GB/s | cuBLASLt's best / ours | two plain calls / ours | PyTorch "
          "us | PyTorch / ours |", flush=True)
    print("|---|---|---|---|---|---|---|---|---|---|")
    for row in csv.DictReader(rows_of(process.stdout)):
        other = beside(row)
        ratio = other / float(row["us"]) if other else None
        cells = [row["kernel"], row["type"], row["dims"], row["us"], row["TFLOP/s"], row["GB/s"], row["best"] or "",
                 row["plain"] or ""]
        cells += [f"{other:.2f}" if other else "", f"{ratio:.2f}" if ratio else ""]
        print("| " + " | ".join(cells) + " |", flush=True)
        try:
            print(file=process.stdin, flush=True)
        except BrokenPipeError:  # it has ended; its status says why
            break
    return process.wait()


if __name__ == "__main__":
    sys.exit(main())
