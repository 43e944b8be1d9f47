#!/usr/bin/env python3
"""Times products of fp8 by cuBLASLt, as PyTorch calls it, beside bf16 in turns; and experts beside dense products."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: fp8.py [SECONDS]     (40; needs PyTorch and an H100 or H200)
# Measures what `precision = fp8`, which does not exist yet, could give: it decides which scales are worth building.
# Operands are random. Each way runs for 20 ms in turn with bf16, in five rounds after one second of products; the table
# has the median of the rounds' ratios. `error` compares the product with that of the same operands in f64 (rounded to
# bf16), relative to its norm. Casts are timed only in the row that says so.
import statistics, sys, time

import torch
import torch.nn.functional as F

E4M3 = torch.float8_e4m3fn
SHAPES = [("y up", 4096, 4096, 14336), ("y down", 4096, 14336, 4096), ("y o", 4096, 4096, 4096),
          ("dw up", 4096, 4096, 14336), ("y up", 16384, 4096, 14336), ("y, 4096 x 16384", 15872, 4096, 16384)]
GROUPS = [(8, 1024), (8, 2048), (64, 256)]  # experts, rows of each


def scaled(x, block):
    """x in e4m3 and what it is multiplied with again: a scale for each block of rows x columns."""
    rows, columns = block[0] or x.shape[0], block[1] or x.shape[1]
    parts = x.float().view(x.shape[0] // rows, rows, x.shape[1] // columns, columns)
    scale = parts.abs().amax((1, 3)).clamp(min=1e-12) / 448
    return (parts / scale[:, None, :, None]).to(E4M3).view(x.shape), scale


def ways(x, w):
    """By name: a function that multiplies x (m, k) with w (n, k) transposed."""
    def tensors(fast):
        (a, sa), (b, sb) = scaled(x, (0, 0)), scaled(w, (0, 0))
        sa, sb = sa.view(()), sb.view(())
        return lambda: torch._scaled_mm(a, b.t(), sa, sb, out_dtype=torch.bfloat16, use_fast_accum=fast)

    def rows(fast):
        (a, sa), (b, sb) = scaled(x, (1, 0)), scaled(w, (1, 0))
        sb = sb.t().contiguous()
        return lambda: torch._scaled_mm(a, b.t(), sa, sb, out_dtype=torch.bfloat16, use_fast_accum=fast)

    def blocks(of_w):
        recipe = {1: F.ScalingType.BlockWise1x128, 128: F.ScalingType.BlockWise128x128}
        (a, sa), (b, sb) = scaled(x, (1, 128)), scaled(w, (of_w, 128))
        sa = sa.t().contiguous().t()
        sb = sb.t().contiguous().t() if of_w == 1 else sb.t()
        return lambda: F.scaled_mm(a, b.t(), sa, recipe[1], sb, recipe[of_w], output_dtype=torch.bfloat16)

    return {"tensor, fast sums": lambda: tensors(True), "tensor": lambda: tensors(False),
            "row, fast sums": lambda: rows(True), "row": lambda: rows(False),
            "tile 1x128, 128x128": lambda: blocks(128), "tile 1x128, 1x128": lambda: blocks(1)}


def timed(run, seconds=0.02):
    """Microseconds of one call, of as many as take the time."""
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    count = 4
    while True:
        begin.record()
        for _ in range(count):
            run()
        end.record()
        end.synchronize()
        took = begin.elapsed_time(end)
        if took >= seconds * 1e3 or count >= 4096:
            return took * 1e3 / count
        count = int(count * max(2, 1.2 * seconds * 1e3 / max(took, 1e-3)))


def beside(base, run):
    """Both times and the median of the ratios of five rounds."""
    pairs = [(timed(base), timed(run)) for _ in range(5)]
    return (*(statistics.median(column) for column in zip(*pairs)), statistics.median(a / b for a, b in pairs))


def warm(run):
    until = time.monotonic() + 1
    while time.monotonic() < until:
        run()
        torch.cuda.synchronize()


def main():
    until = time.monotonic() + float((sys.argv[1:] or [40])[0])
    torch.manual_seed(1)
    print(f"# {torch.cuda.get_device_name()}, PyTorch {torch.__version__}")
    print("| product | m, k, n | scales | us | TFLOP/s | bf16 us | bf16 / fp8 | error |\n|" + "---|" * 8, flush=True)
    for name, m, k, n in SHAPES:
        x, w = (torch.randn(size, device="cuda", dtype=torch.bfloat16) for size in ((m, k), (n, k)))
        base = lambda: x @ w.t()
        warm(base)
        exact = (x[:128].double() @ w.double().t()).to(torch.bfloat16).double()
        for kind, make in ways(x, w).items():
            if time.monotonic() > until:
                return 0
            head = f"| {name} | {m}, {k}, {n} | {kind} |"
            try:
                run = make()
                error = float((run()[:128].double() - exact).norm() / exact.norm())
            except Exception as refused:  # a mode that this PyTorch or this GPU has not
                print(f"{head} {str(refused).strip().splitlines()[0][:110]} | | | | |", flush=True)
                continue
            plain, time_of, ratio = beside(base, run)
            rate = 2e-6 * m * k * n / time_of
            print(f"{head} {time_of:.1f} | {rate:.0f} | {plain:.1f} | {ratio:.2f} | {error:.1e} |", flush=True)
        cast = torch.compile(lambda x: scaled(x, (1, 0)))
        cast(x)
        took = timed(lambda: cast(x))
        print(f"| {name} | {m}, {k} | the cast of x by row, compiled | {took:.1f} | | | | |", flush=True)
        del x, w, exact
    print("\n| experts | rows of each | k, n | us | TFLOP/s | dense us | dense / grouped |\n|" + "---|" * 7, flush=True)
    for count, rows in GROUPS:
        if time.monotonic() > until:
            return 0
        x = torch.randn((count * rows, 4096), device="cuda", dtype=torch.bfloat16)
        w = torch.randn((count, 4096, 2048), device="cuda", dtype=torch.bfloat16)
        ends = torch.arange(1, count + 1, device="cuda", dtype=torch.int32) * rows
        try:
            plain, time_of, ratio = beside(lambda: x @ w[0], lambda: torch._grouped_mm(x, w, offs=ends))
            rate = 2e-6 * count * rows * 4096 * 2048 / time_of
            print(f"| {count} | {rows} | 4096, 2048 | {time_of:.1f} | {rate:.0f} | {plain:.1f} | {ratio:.2f} |",
                  flush=True)
        except Exception as refused:
            print(f"| {count} | {rows} | {str(refused).strip().splitlines()[0][:110]} | | | | |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
