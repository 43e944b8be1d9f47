// Parts with whole weights on a tensor axis: what they read is gathered, and devices take columns of what they make.
// RUN: pp-opt %s --pp-split-parts --split-input-file | FileCheck %s

!x = tensor<1x8x16xf32>
!w = tensor<16x16xf32>

// Nothing is cut, and nothing is exchanged: every device has all columns of q, which a norm of all of them needs.
// CHECK-LABEL: func.func private @qkv(
// CHECK-SAME: %[[W:[^:]*]]: tensor<16x16xf32> {nn.weight = #nn.weight<"wq" normal 0.000000e+00>}
// CHECK-SAME: -> (tensor<1x8x16xf32>, tensor<1x8x16xf32>)
// CHECK-NEXT: %[[Q:.*]] = nn.linear %{{.*}}, %[[W]]
// CHECK-NEXT: %[[N:.*]], %{{.*}} = nn.rmsnorm %[[Q]]
// CHECK-NEXT: return %[[N]]
func.func private @qkv(%x: !x, %w: !w {nn.weight = #nn.weight<"wq">}, %g: tensor<16xf32> {nn.weight = #nn.weight<"g">})
    -> (!x, !x) attributes {nn.whole} {
  %q = nn.linear %x, %w : (!x, !w) -> !x
  %n, %r = nn.rmsnorm %q, %g : (!x, tensor<16xf32>) -> (!x, tensor<1x8xf32>)
  return %n, %x : !x, !x
}

// The heads of a device are half of the columns.
// CHECK-LABEL: func.func private @attn(
// CHECK-SAME: %[[Q:[^:]*]]: tensor<1x8x16xf32>, %[[X:[^:]*]]: tensor<1x8x16xf32>)
// CHECK-SAME: -> (tensor<1x8x8xf32>, tensor<1x8x16xf32>)
// CHECK-NEXT: %[[C:.*]] = nn.take_columns %[[Q]] over <tensor> {members = 2 : i64} : (tensor<1x8x16xf32>) -> tensor<1x8x8xf32>
// CHECK-NEXT: %[[O:.*]], %{{.*}} = nn.attention %[[C]], %[[C]], %[[C]] {causal = true, heads = 2 : i64}
// CHECK-NEXT: return %[[O]], %[[X]]
func.func private @attn(%q: !x, %x: !x) -> (!x, !x) {
  %o, %l = nn.attention %q, %q, %q {heads = 4, causal = true} : (!x, !x, !x) -> (!x, tensor<1x4x8xf32>)
  return %o, %x : !x, !x
}

// CHECK-LABEL: func.func private @post(
// CHECK-SAME: %[[O:[^:]*]]: tensor<1x8x8xf32>, %[[X:[^:]*]]: tensor<1x8x16xf32>
// CHECK-NEXT: %[[A:.*]] = nn.all_gather %[[O]] over <tensor> {dim = 2 : i64, members = 2 : i64} : (tensor<1x8x8xf32>) -> tensor<1x8x16xf32>
// CHECK-NEXT: %[[Z:.*]] = nn.linear %[[A]], %{{.*}} : (tensor<1x8x16xf32>, tensor<16x16xf32>) -> tensor<1x8x16xf32>
// CHECK-NEXT: nn.add %[[X]], %[[Z]]
func.func private @post(%o: !x, %x: !x, %w: !w {nn.weight = #nn.weight<"wo">}) -> !x attributes {nn.whole} {
  %z = nn.linear %o, %w : (!x, !w) -> !x
  %y = nn.add %x, %z : (!x, !x) -> !x
  return %y : !x
}

pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}, mesh = #pipeline.mesh<tensor 2, context 1, data 1, pipeline 1>} {
  pipeline.piece @s0 <stage 0> parts [["qkv", 0], ["attn", 0], ["post", 0]] at <[0]>
}

// -----

!x = tensor<2x8x16xf32>
!w = tensor<16x16xf32>

// With rows a device multiplies those it has, by whole weights whose gradient it has a term of.
// CHECK-LABEL: func.func private @rows(
// CHECK-SAME: %[[X:[^:]*]]: tensor<1x8x16xf32> {nn.rows}, %[[W:[^:]*]]: tensor<16x16xf32> {nn.weight = #nn.weight<"w" normal 0.000000e+00 terms>}
// CHECK-NEXT: %[[Z:.*]] = nn.linear %[[X]], %[[W]]
// CHECK-NEXT: return %[[Z]]
func.func private @rows(%x: !x, %w: !w {nn.weight = #nn.weight<"w">}) -> !x attributes {nn.whole} {
  %z = nn.linear %x, %w : (!x, !w) -> !x
  return %z : !x
}
pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}, mesh = #pipeline.mesh<tensor 2, context 1, data 1, pipeline 1, sequence, again inputs>} {
  pipeline.piece @s0 <stage 0> parts [["rows", 0]] at <[0]>
}

// -----

!x = tensor<2x8x16xf32>
!w = tensor<16x32xf32>

// Of a tied table that is whole the table itself is spread, for the linear takes it transposed.
// CHECK-LABEL: func.func private @head(
// CHECK-SAME: %[[X:[^:]*]]: tensor<1x8x16xf32> {nn.rows}, %[[W:[^:]*]]: tensor<32x16xf32>
// CHECK: %[[S:.*]] = nn.spread %[[W]] over <tensor> : (tensor<32x16xf32>) -> tensor<32x16xf32>
// CHECK-NEXT: %[[T:.*]] = nn.transpose %[[S]]
// CHECK-NEXT: nn.linear %[[X]], %[[T]]
func.func private @head(%x: !x, %w: tensor<32x16xf32> {nn.weight = #nn.weight<"wte" shared>}) -> tensor<2x8x32xf32> attributes {nn.whole} {
  %t = nn.transpose %w : (tensor<32x16xf32>) -> !w
  %z = nn.linear %x, %t : (!x, !w) -> tensor<2x8x32xf32>
  return %z : tensor<2x8x32xf32>
}
pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}, mesh = #pipeline.mesh<tensor 2, context 1, data 1, pipeline 1, sequence, again inputs>} {
  pipeline.piece @s0 <stage 0> parts [["head", -1]] at <[0]>
}
