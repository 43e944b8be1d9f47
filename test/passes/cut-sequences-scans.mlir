// Scans and convolutions see whole sequences: devices of context exchange heads and columns around them.
// RUN: pp-opt %s --pp-cut-sequences | FileCheck %s
// RUN: pp-opt %s --pp-cut-sequences --pp-derive-tasks --pp-verify-layouts | FileCheck %s --check-prefix=BACK
// RUN: sed 's/tensor 1/tensor 2/' %s | pp-opt --pp-cut-sequences --pp-split-parts | FileCheck %s --check-prefix=TWO

!x = tensor<2x8x32xf32>
!k = tensor<2x8x16xf32>
!h = tensor<2x8x8xf32>
!w = tensor<32x32xf32>
!n = tensor<32x16xf32>
!m = tensor<32x8xf32>
!t = tensor<32x1x3xf32>

// Of four heads of q and k, which eight heads of v read, a device has two.
// CHECK-LABEL: func.func private @layer(
// CHECK: %[[W:.*]] = nn.take_piece %arg{{[0-9]+}} over <context> {members = 2 : i64} : (tensor<32x1x3xf32>) -> tensor<16x1x3xf32>
// CHECK: %[[Y:.*]] = nn.conv %[[X:.*]], %[[W]] : (tensor<2x8x16xf32>, tensor<16x1x3xf32>) -> tensor<2x8x16xf32>
// CHECK: nn.heads_to_runs %[[Y]] over <context> {kept, members = 2 : i64} : (tensor<2x8x16xf32>) -> tensor<2x4x32xf32>
// CHECK-COUNT-5: nn.runs_to_heads
// CHECK: %[[O:.*]] = nn.scan {{.*}} {heads = 4 : i64, key_heads = 2 : i64} : (tensor<2x8x8xf32>, tensor<2x8x8xf32>, tensor<2x8x16xf32>, tensor<2x8x4xf32>, tensor<2x8x4xf32>) -> tensor<2x8x16xf32>
// CHECK: nn.heads_to_runs %[[O]]
// The gradient of the taps is the device's own piece of a sum over both.
// BACK-LABEL: func.func private @s0.B(
// BACK: nn.scan_bwd
// BACK: %[[DW:.*]] = nn.conv_dw
// BACK: nn.place_piece %[[DW]] into %{{.*}} over <context> {members = 2 : i64} : (tensor<16x1x3xf32>, tensor<32x1x3xf32>) -> tensor<32x1x3xf32>
// A device of both axes has one head of q and k.
// TWO: nn.conv {{.*}} : (tensor<2x8x8xf32>, tensor<8x1x3xf32>) -> tensor<2x8x8xf32>
// TWO: nn.scan {{.*}} {heads = 2 : i64, key_heads = 1 : i64}
func.func private @layer(%x: !x, %wx: !w {nn.weight = #nn.weight<"wx">}, %taps: !t {nn.weight = #nn.weight<"taps">},
    %wq: !n {nn.weight = #nn.weight<"wq">}, %wk: !n {nn.weight = #nn.weight<"wk">},
    %wg: !m {nn.weight = #nn.weight<"wg">}, %wb: !m {nn.weight = #nn.weight<"wb">},
    %wo: !w {nn.weight = #nn.weight<"wo">}) -> !x {
  %l = nn.linear %x, %wx : (!x, !w) -> !x
  %v = nn.conv %l, %taps : (!x, !t) -> !x
  %q = nn.linear %x, %wq : (!x, !n) -> !k
  %k = nn.linear %x, %wk : (!x, !n) -> !k
  %g = nn.linear %x, %wg : (!x, !m) -> !h
  %b = nn.linear %x, %wb : (!x, !m) -> !h
  %o = nn.scan %q, %k, %v, %g, %b {heads = 8 : i64, key_heads = 4 : i64} : (!k, !k, !x, !h, !h) -> !x
  %y = nn.linear %o, %wo : (!x, !w) -> !x
  return %y : !x
}

pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {
    train = {"batch" = 2, "sequence" = 8}, mesh = #pipeline.mesh<tensor 1, context 2, data 1, pipeline 1>} {
  pipeline.piece @s0 <stage 0> parts [["layer", 0]] at <[0]>
  pipeline.unit <F stage 0 mb 0> on [0]
  pipeline.unit <B stage 0 mb 0> on [0]
}
