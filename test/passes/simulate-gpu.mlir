// The simulator by the figures of a GPU: waves of a product's tiles, and attention by cuDNN or by kernels of ours.
// RUN: pp-unproved %s --emit=stats | FileCheck %s
// RUN: sed 's/, multiprocessors = 3.0 : f64//; s/, masked = 0.25 : f64//' %s > %t.mlir
// RUN: pp-unproved %t.mlir --emit=stats | FileCheck %s --check-prefix=PLAIN

!x = tensor<256x8xf32>
!w = tensor<8x256xf32>
!y = tensor<256x256xf32>
!f = tensor<1x8x16xf32>
!b = tensor<1x8x16xbf16>
!sx = !pipeline.slot<tuple<!x>>
!sw = !pipeline.slot<tuple<!w>>
!sy = !pipeline.slot<tuple<!y>>
!sf = !pipeline.slot<tuple<!f>>
!sb = !pipeline.slot<tuple<!b>>

// 2 * 256 * 8 * 256 flops are 2 s at half of 2^20 a second. They are 4 tiles of 128 x 128, or 2 of 128 x 256: 3
// multiprocessors need two waves of the one, or a wave of the other that 3 could share, both 1.5 times as long. Bytes take
// 1.0625 s.
// CHECK:      "rank": 0,
// CHECK-NEXT: "busy": 3.5,
// PLAIN:      "rank": 0,
// PLAIN-NEXT: "busy": 2.5,
func.func private @product(%x: !x, %w: !w) -> !y attributes {
    pipeline.inputs = #pipeline.groups<act x 1, weight x 1>, pipeline.results = #pipeline.groups<act x 1>, pipeline.ties = array<i64: -1>} {
  %y = nn.linear %x, %w : (!x, !w) -> !y
  return %y : !y
}

// 36 pairs of a query and a key it sees, in all heads 16 wide: 4 * 36 * 16 = 2304 flops at half of 2^20 a second, 0.0044 s, and
// then 4 * 512 bytes and 128 of sums at 2^18 a second, 0.0083 s.
// CHECK:      "rank": 1,
// CHECK-NEXT: "busy": 0.51269
func.func private @f32(%x: !f, %w: !w) -> !f attributes {
    pipeline.inputs = #pipeline.groups<act x 1, weight x 1>, pipeline.results = #pipeline.groups<act x 1>, pipeline.ties = array<i64: -1>} {
  %o, %lse = nn.attention %x, %x, %x {causal = true, heads = 4 : i64} : (!f, !f, !f) -> (!f, tensor<1x4x8xf32>)
  return %o : !f
}
// The same by cuDNN, whose 64 KiB are written and read: 0.5 s more; 4 * 256 bytes and 64 of sums.
// CHECK:      "rank": 2,
// CHECK-NEXT: "busy": 3.00415
func.func private @served(%x: !b, %w: !w) -> !b attributes {
    pipeline.inputs = #pipeline.groups<act x 1, weight x 1>, pipeline.results = #pipeline.groups<act x 1>, pipeline.ties = array<i64: -1>} {
  %o, %lse = nn.attention %x, %x, %x {causal = true, heads = 2 : i64} : (!b, !b, !b) -> (!b, tensor<1x2x8xf32>)
  return %o : !b
}
// A window is for kernels of ours: 21 pairs are 1344 flops, at a quarter of 2304 a second 2.3333 s.
// CHECK:      "rank": 3,
// CHECK-NEXT: "busy": 2.83748
// PLAIN:      "rank": 3,
// PLAIN-NEXT: "busy": 1.67081
func.func private @masked(%x: !b, %w: !w) -> !b attributes {
    pipeline.inputs = #pipeline.groups<act x 1, weight x 1>, pipeline.results = #pipeline.groups<act x 1>, pipeline.ties = array<i64: -1>} {
  %o, %lse = nn.attention %x, %x, %x {causal = true, heads = 2 : i64, window = 3 : i64} : (!b, !b, !b) -> (!b, tensor<1x2x8xf32>)
  return %o : !b
}

pipeline.program @four ranks 4 microbatches 4 slices 0 attributes {train = {}, cluster = {
    name = "c", ranks_per_node = 4 : i64, memory = 1000000 : i64,
    device = {f32 = 1048576.0 : f64, bf16 = 2304.0 : f64, bandwidth = 262144.0 : f64, launch = 0.5 : f64, multiprocessors = 3.0 : f64},
    efficiency = {gemm = 0.5 : f64, attention = 0.5 : f64, masked = 0.25 : f64}, inside = {bandwidth = 256.0 : f64, latency = 0.125 : f64}}} {
  pipeline.piece @s0 <stage 0> parts [["s0", 0]]
  pipeline.rank 0 arena 278528 attributes {peak = {}} {
    %x = pipeline.slot act "x" offset 0 : !sx
    %w = pipeline.slot weight "w" offset 8192 : !sw
    %y = pipeline.slot act "y" offset 16384 : !sy
    pipeline.launch @product <F stage 0 mb 0>(%x, %w) -> (%y) : (!sx, !sw) -> (!sy)
  }
  pipeline.rank 1 arena 278528 attributes {peak = {}} {
    %x = pipeline.slot act "x" offset 0 : !sf
    %w = pipeline.slot weight "w" offset 8192 : !sw
    %y = pipeline.slot act "y" offset 16384 : !sf
    pipeline.launch @f32 <F stage 0 mb 1>(%x, %w) -> (%y) : (!sf, !sw) -> (!sf)
  }
  pipeline.rank 2 arena 278528 attributes {peak = {}} {
    %x = pipeline.slot act "x" offset 0 : !sb
    %w = pipeline.slot weight "w" offset 8192 : !sw
    %y = pipeline.slot act "y" offset 16384 : !sb
    pipeline.launch @served <F stage 0 mb 2>(%x, %w) -> (%y) : (!sb, !sw) -> (!sb)
  }
  pipeline.rank 3 arena 278528 attributes {peak = {}} {
    %x = pipeline.slot act "x" offset 0 : !sb
    %w = pipeline.slot weight "w" offset 8192 : !sw
    %y = pipeline.slot act "y" offset 16384 : !sb
    pipeline.launch @masked <F stage 0 mb 3>(%x, %w) -> (%y) : (!sb, !sw) -> (!sb)
  }
}
