// The simulator prices each expert's product by its flops or by the bytes of its rows and its matrix.
// RUN: pp-unproved %s --emit=stats | FileCheck %s
// RUN: pp-unproved %s --emit=stats --expert-load=zipf=0 | FileCheck %s
// RUN: pp-unproved %s --emit=stats --expert-load=zipf=2 | FileCheck %s --check-prefix=ZIPF
// RUN: echo '[3, 0, 1, 0]' > %t.json && pp-unproved %s --emit=stats --expert-load=%t.json | FileCheck %s --check-prefix=FILE
// RUN: sed 's/gemm = 0.5 : f64/&, grouped = 0.25 : f64/' %s > %t.mlir && pp-unproved %t.mlir --emit=stats | FileCheck %s --check-prefix=GROUPED
// RUN: echo '[1, 2]' > %t.json && not pp-unproved %s --emit=stats --expert-load=%t.json 2>&1 | FileCheck %s --check-prefix=COUNT
// RUN: echo '[0, 0]' > %t.json && not pp-unproved %s --emit=stats --expert-load=%t.json 2>&1 | FileCheck %s --check-prefix=LIST
// RUN: not pp-unproved %s --emit=stats --expert-load=zipf=-1 2>&1 | FileCheck %s --check-prefix=NUMBER
// RUN: not pp-unproved %s --emit=stats --expert-load=%t.none 2>&1 | FileCheck %s --check-prefix=NONE
// RUN: not pp-unproved %s --emit=stats --costs=units --expert-load=zipf=1 2>&1 | FileCheck %s --check-prefix=UNITS
// COUNT: error: `--expert-load` has 2 shares; this layer has 4 experts
// LIST: json` must be a JSON list of numbers of at least 0, one for each expert, that are not all 0
// NUMBER: `--expert-load=zipf=S` expects a number of at least 0, got `-1`
// NONE: `--expert-load` expects zipf=S or a file; cannot open `{{.*}}.none`
// UNITS: `--expert-load` is of the costs of a cluster

!rows = tensor<1x24x8xf32>
!w = tensor<4x8x8xf32>
!sx = !pipeline.slot<tuple<!rows>>
!sw = !pipeline.slot<tuple<!w, tensor<4xi32>>>

// 24 rows of 8 by four matrices of 8 by 8: 3072 flops at half of 384 a second, 16 s in all. The rows and what comes of them
// are 1536 bytes, and counts 16: at 128 a second 12.125 s; a matrix has 256, 2 s. The launch takes 0.5 s.
// A quarter each: max(4, 3.03125 + 2) s four times.
// CHECK: "step": 20.625,
// At a quarter of the peak max(8, 5.03125) s four times.
// GROUPED: "step": 32.5,
// 144, 36, 16 and 9 of 205: 16 * 144 / 205 s of flops, then 12.125 * 61 / 205 s of rows, and three matrices.
// ZIPF: "step": 21.3469
// Three quarters and a quarter: max(12, 11.09375) + 5.03125; the matrices of two experts are not read.
// FILE: "step": 17.53125,
func.func private @product(%x: !rows, %w: !w, %counts: tensor<4xi32>) -> !rows attributes {
    pipeline.inputs = #pipeline.groups<act x 1, weight x 2>, pipeline.results = #pipeline.groups<act x 1>,
    pipeline.ties = array<i64: -1>} {
  %y = nn.expert_linear %x, %w, %counts : (!rows, !w, tensor<4xi32>) -> !rows
  return %y : !rows
}

pipeline.program @one ranks 1 microbatches 1 slices 0 attributes {train = {}, cluster = {
    name = "c", ranks_per_node = 1 : i64, memory = 1000000 : i64,
    device = {f32 = 384.0 : f64, bandwidth = 128.0 : f64, launch = 0.5 : f64}, efficiency = {gemm = 0.5 : f64},
    inside = {bandwidth = 256.0 : f64}, between = {bandwidth = 64.0 : f64}}} {
  pipeline.piece @s0 <stage 0> parts [["s0", 0]]
  pipeline.rank 0 arena 4096 attributes {peak = {}} {
    %x = pipeline.slot act "x" offset 0 : !sx
    %w = pipeline.slot weight "w" offset 1024 : !sw
    %y = pipeline.slot act "y" offset 3072 : !sx
    pipeline.launch @product <F stage 0 mb 0>(%x, %w) -> (%y) : (!sx, !sw) -> (!sx)
  }
}
