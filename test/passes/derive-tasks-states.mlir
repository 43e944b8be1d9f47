// A convolution and a scan on three slices of a sequence of 8: what each goes on from, and leaves for the next slice.
// RUN: pp-opt %s --pp-derive-tasks --pp-verify-layouts | FileCheck %s

!x = tensor<2x8x16xbf16>
!q = tensor<2x8x8xbf16>
!n = tensor<2x8x4xf32>
!w = tensor<16x16xbf16>

func.func private @embed(%t: tensor<2x8xi32> {nn.data = "tokens"}, %e: !w {nn.weight = #nn.weight<"e">}) -> !x {
  %a = nn.embedding %t, %e : (tensor<2x8xi32>, !w) -> !x
  return %a : !x
}
func.func private @mix(%x: !x, %w: tensor<16x1x4xbf16> {nn.weight = #nn.weight<"w">}, %g: !n, %b: !n) -> (!x, !n, !n) {
  %y = nn.conv %x, %w : (!x, tensor<16x1x4xbf16>) -> !x
  %q, %k = nn.split %y {widths = array<i64: 8, 8>} : (!x) -> (!q, !q)
  %o = nn.scan %q, %k, %y, %g, %b {delta = true, heads = 4 : i64, key_heads = 2 : i64} : (!q, !q, !x, !n, !n) -> !x
  return %o, %g, %b : !x, !n, !n
}

// 8 tokens in 3 slices: 3, 3 and 2. Both stages have the bodies of the first one: a backward that is whole, and one in
// halves behind an R.
pipeline.program @p ranks 1 microbatches 2 slices 3 attributes {train = {sequence = 8 : i64}} {
  pipeline.piece @s0 <stage 0> parts [["mix", 0]]
  pipeline.piece @s1 <stage 1> parts [["mix", 1]]
  pipeline.unit <B stage 0 mb 0 slice 0> on [0]
  pipeline.unit <R stage 1 mb 0 slice 0> on [0]
  pipeline.unit <I stage 1 mb 0 slice 0> on [0]
  pipeline.unit <W stage 1 mb 0 slice 0> on [0]
}

// The first slice goes on from nothing. The last three rows of x, of 16 bits, and the states, sums, are for the next one.
// CHECK: func.func private @s0.F.0(
// CHECK-SAME: pipeline.inputs = #pipeline.groups<act x 3, weight x 1>
// CHECK-SAME: pipeline.results = #pipeline.groups<act x 3, state[0] x 2, stash x
// CHECK: %{{.*}}, %[[ROWS:.*]] = nn.conv %{{.*}}, %{{.*}} {carries = true} : (tensor<2x3x16xbf16>, tensor<16x1x4xbf16>) -> (tensor<2x3x16xbf16>, tensor<2x3x16xbf16>)
// CHECK: %{{.*}}, %[[STATE:.*]] = nn.scan %{{.*}} {carries = true, delta = true, heads = 4 : i64, key_heads = 2 : i64} : {{.*}} -> (tensor<2x3x16xbf16>, tensor<2x4x4x4xf32>)
// CHECK: return %{{.*}}, %{{.*}}, %{{.*}}, %[[ROWS]], %[[STATE]],
// Its backward comes last, and ends the gradients of both; those of rows are in the type of sums, too.
// CHECK: func.func private @s0.B.0(
// CHECK-SAME: dstate[0] x 2, dact x 3, grad x 1>
// CHECK-SAME: pipeline.results = #pipeline.groups<dact x 3, grad x 1>
// CHECK: nn.scan_bwd {{.*}} with %{{.*}} {delta
// CHECK: nn.conv_dx {{.*}} behind %{{.*}} : (tensor<2x3x16xbf16>, tensor<16x1x4xbf16>, tensor<2x3x16xf32>) -> tensor<2x3x16xbf16>

// The second one goes on, and keeps the rows before it for the gradient of the taps.
// CHECK: func.func private @s0.F.1(
// CHECK-SAME: pipeline.inputs = #pipeline.groups<act x 3, state[0] x 2, weight x 1>
// CHECK-SAME: pipeline.results = #pipeline.groups<act x 3, state[1] x 2, kept x 1, stash x
// CHECK: %[[COPY:.*]] = nn.copy %arg3
// CHECK: nn.conv %arg0, %arg5 behind %[[COPY]] {carries = true, offset = 3 : i64}
// CHECK: nn.scan {{.*}} behind %arg4 {carries = true, delta = true, heads = 4 : i64, key_heads = 2 : i64, offset = 3 : i64}
// R makes no state; I hands back gradients of states; W reads none.
// CHECK: func.func private @s0.R.1(
// CHECK-SAME: pipeline.results = #pipeline.groups<stash x 2>
// CHECK: func.func private @s0.I.1(
// CHECK-SAME: state[0] x 2, dstate[1] x 2
// CHECK-SAME: pipeline.results = #pipeline.groups<dact x 3, dstate[0] x 2, pending x 2>
// CHECK: func.func private @s0.B.1(
// CHECK-SAME: state[0] x 2, dstate[1] x 2, dact x 3, grad x 1>
// CHECK-SAME: pipeline.results = #pipeline.groups<dact x 3, dstate[0] x 2, grad x 1>
// CHECK: nn.scan_bwd {{.*}} behind %{{.*}} with %{{.*}} {{.*}} -> ({{.*}}, tensor<2x4x4x4xf32>)
// CHECK: nn.conv_dw {{.*}} behind %{{.*}} into
// CHECK: nn.conv_dx {{.*}} {carries = true, offset = 3 : i64} : {{.*}} -> (tensor<2x3x16xbf16>, tensor<2x3x16xf32>)
// CHECK: func.func private @s0.W.1(
// CHECK-SAME: pipeline.inputs = #pipeline.groups<act x 3, pending x 2, grad x 1>

// The last one leaves nothing, and begins the gradients.
// CHECK: func.func private @s0.F.2(
// CHECK-SAME: pipeline.inputs = #pipeline.groups<act x 3, state[1] x 2, weight x 1>
// CHECK-SAME: pipeline.results = #pipeline.groups<act x 3, kept x 1, stash x
// CHECK: func.func private @s0.B.2(
// CHECK-SAME: state[1] x 2, dact x 3, grad x 1>
// CHECK-SAME: pipeline.results = #pipeline.groups<dact x 3, dstate[1] x 2, grad x 1>
