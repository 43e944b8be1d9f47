// Parts on a tensor axis of two devices: Megatron's cut of a layer, a padded vocabulary, and heads of keys with copies.
// RUN: pp-opt %s --pp-split-parts | FileCheck %s


!x = tensor<1x8x16xf32>
!t = tensor<1x8xi32>
!w = tensor<16x16xf32>
!v = tensor<16xf32>

// 33 rows over two devices: 17 each, the last one is padding. A device's rows give a term of the sum.
// CHECK-LABEL: func.func private @embed(
// CHECK-SAME: %[[T:.*]]: tensor<1x8xi32> {nn.data = "tokens"}, %[[W:.*]]: tensor<17x16xf32> {nn.weight = #nn.weight<"wte" as "wte" normal 0.000000e+00 shared cut <[33, 16] dim 0>>}
// CHECK-SAME: %[[P:.*]]: tensor<8x16xf32> {nn.weight = #nn.weight<"wpe" normal 0.000000e+00>}
// CHECK-NEXT: %[[E:.*]] = nn.embedding %[[T]], %[[W]] {first = 0 : i64, first_by = #nn.axes<tensor>, whole = 33 : i64}
// CHECK-NEXT: %[[Q:.*]] = nn.positions %[[T]], %[[P]]
// CHECK-NEXT: %[[S:.*]] = nn.all_reduce %[[E]] over <tensor>
// CHECK-NEXT: %[[A:.*]] = nn.add %[[S]], %[[Q]]
// CHECK-NEXT: return %[[A]]
func.func private @embed(%tokens: !t {nn.data = "tokens"},
    %wte: tensor<33x16xf32> {nn.weight = #nn.weight<"wte" as "wte" shared>},
    %wpe: tensor<8x16xf32> {nn.weight = #nn.weight<"wpe">}) -> !x {
  %0 = nn.embedding %tokens, %wte : (!t, tensor<33x16xf32>) -> !x
  %1 = nn.positions %tokens, %wpe : (!t, tensor<8x16xf32>) -> !x
  %2 = nn.add %0, %1 : (!x, !x) -> !x
  return %2 : !x
}

// q|k|v is cut as three runs, and its bias with it; the norm is whole, and spread for the product.
// CHECK-LABEL: func.func private @qkv(
// CHECK-SAME: %[[X:[^:]*]]: tensor<1x8x16xf32>
// CHECK-SAME: %[[W:[^:]*]]: tensor<16x24xf32> {nn.weight = #nn.weight<"w" normal 0.000000e+00 cut <[16, 48] dim 1 runs 3>>}
// CHECK-SAME: %[[B:[^:]*]]: tensor<24xf32> {nn.weight = #nn.weight<"b" normal 0.000000e+00 cut <[48] dim 0 runs 3>>}
// CHECK-SAME: -> (tensor<1x8x8xf32>, tensor<1x8x8xf32>, tensor<1x8x8xf32>, tensor<1x8x16xf32>)
// CHECK-NEXT: %[[N:.*]], %{{.*}} = nn.rmsnorm %[[X]]
// CHECK-NEXT: %[[C:.*]] = nn.spread %[[N]] over <tensor>
// CHECK-NEXT: %[[Y:.*]] = nn.linear %[[C]], %[[W]] bias %[[B]]
// CHECK-NEXT: %[[S:.*]]:3 = nn.split %[[Y]] {parts = 3 : i64}
// CHECK-NEXT: return %[[S]]#0, %[[S]]#1, %[[S]]#2, %[[X]]
func.func private @qkv(%x: !x, %g: !v {nn.weight = #nn.weight<"g">}, %w: tensor<16x48xf32> {nn.weight = #nn.weight<"w">},
    %b: tensor<48xf32> {nn.weight = #nn.weight<"b">}) -> (!x, !x, !x, !x) {
  %n, %r = nn.rmsnorm %x, %g : (!x, !v) -> (!x, tensor<1x8xf32>)
  %y = nn.linear %n, %w bias %b : (!x, tensor<16x48xf32>, tensor<48xf32>) -> tensor<1x8x48xf32>
  %s:3 = nn.split %y {parts = 3} : (tensor<1x8x48xf32>) -> (!x, !x, !x)
  return %s#0, %s#1, %s#2, %x : !x, !x, !x, !x
}

// Two of four heads on a device. The bias of a product that is cut by rows is added once, behind the sum.
// CHECK-LABEL: func.func private @post(
// CHECK: %[[O:.*]], %{{.*}} = nn.attention %{{.*}} {causal = true, heads = 2 : i64}
// CHECK-NEXT: %[[Z:.*]] = nn.linear %[[O]], %{{.*}} : (tensor<1x8x8xf32>, tensor<8x16xf32>) -> tensor<1x8x16xf32>
// CHECK-NEXT: %[[S:.*]] = nn.all_reduce %[[Z]] over <tensor>
// CHECK-NEXT: %[[B:.*]] = nn.add_bias %[[S]], %{{.*}} : (tensor<1x8x16xf32>, tensor<16xf32>)
// CHECK-NEXT: nn.add %{{.*}}, %[[B]]
func.func private @post(%q: !x, %k: !x, %v: !x, %x: !x, %w: !w {nn.weight = #nn.weight<"wo">},
    %b: !v {nn.weight = #nn.weight<"bo">}) -> !x {
  %o, %l = nn.attention %q, %k, %v {heads = 4, causal = true} : (!x, !x, !x) -> (!x, tensor<1x4x8xf32>)
  %z = nn.linear %o, %w bias %b : (!x, !w, !v) -> !x
  %y = nn.add %x, %z : (!x, !x) -> !x
  return %y : !x
}

// One head of keys for both devices: each has a copy of its weight, and their gradients are summed.
// CHECK-LABEL: func.func private @grouped(
// CHECK-SAME: tensor<16x4xf32> {nn.weight = #nn.weight<"wk" normal 0.000000e+00 cut <[16, 4] dim 1 copies 2>>}
// CHECK-SAME: %[[WV:[^:]*]]: tensor<16x4xf32> {nn.weight = #nn.weight<"wv" normal 0.000000e+00 cut <[16, 4] dim 1 copies 2>>}
// CHECK: %[[V:.*]] = nn.spread %[[WV]] over <tensor> {neighbours = 2 : i64}
// CHECK-NEXT: nn.linear %{{.*}}, %[[V]]
// CHECK: nn.rope %{{.*}} {heads = 1 : i64}
// CHECK: nn.attention %{{.*}} {causal = true, heads = 2 : i64, kv_heads = 1 : i64}
func.func private @grouped(%x: !x, %wq: !w {nn.weight = #nn.weight<"wq">},
    %wk: tensor<16x4xf32> {nn.weight = #nn.weight<"wk">}, %wv: tensor<16x4xf32> {nn.weight = #nn.weight<"wv">},
    %wo: !w {nn.weight = #nn.weight<"wo">}) -> !x {
  %q = nn.linear %x, %wq : (!x, !w) -> !x
  %v = nn.linear %x, %wv : (!x, tensor<16x4xf32>) -> tensor<1x8x4xf32>
  %k = nn.linear %x, %wk : (!x, tensor<16x4xf32>) -> tensor<1x8x4xf32>
  %t = nn.rope %k {heads = 1} : (tensor<1x8x4xf32>) -> tensor<1x8x4xf32>
  %o, %l = nn.attention %q, %t, %v {heads = 4, kv_heads = 1, causal = true}
      : (!x, tensor<1x8x4xf32>, tensor<1x8x4xf32>) -> (!x, tensor<1x4x8xf32>)
  %z = nn.linear %o, %wo : (!x, !w) -> !x
  return %z : !x
}

// Adapters: of a weight that is cut by columns B is cut, of one that is cut by rows A; what is between is of their rank.
// CHECK-LABEL: func.func private @adapted(
// CHECK-SAME: tensor<16x2xf32> {nn.adapter, nn.weight = #nn.weight<"up.A" normal 0.000000e+00>}
// CHECK-SAME: tensor<2x16xf32> {nn.adapter, nn.weight = #nn.weight<"up.B" normal 0.000000e+00 cut <[2, 32] dim 1>>}
// CHECK-SAME: tensor<16x2xf32> {nn.adapter, nn.weight = #nn.weight<"down.A" normal 0.000000e+00 cut <[32, 2] dim 0>>}
// CHECK-SAME: tensor<2x16xf32> {nn.adapter, nn.weight = #nn.weight<"down.B" normal 0.000000e+00>}
// CHECK: nn.spread %{{.*}} : (tensor<1x8x2xf32>) -> tensor<1x8x2xf32>
// CHECK: nn.all_reduce %{{.*}} : (tensor<1x8x2xf32>) -> tensor<1x8x2xf32>
func.func private @adapted(%x: !x, %w: tensor<16x32xf32> {nn.weight = #nn.weight<"up">},
    %v: tensor<32x16xf32> {nn.weight = #nn.weight<"down">},
    %a: tensor<16x2xf32> {nn.adapter, nn.weight = #nn.weight<"up.A">},
    %b: tensor<2x32xf32> {nn.adapter, nn.weight = #nn.weight<"up.B">},
    %c: tensor<32x2xf32> {nn.adapter, nn.weight = #nn.weight<"down.A">},
    %d: tensor<2x16xf32> {nn.adapter, nn.weight = #nn.weight<"down.B">}) -> !x {
  %u0 = nn.linear %x, %w : (!x, tensor<16x32xf32>) -> tensor<1x8x32xf32>
  %t = nn.linear %x, %a : (!x, tensor<16x2xf32>) -> tensor<1x8x2xf32>
  %u1 = nn.linear %t, %b : (tensor<1x8x2xf32>, tensor<2x32xf32>) -> tensor<1x8x32xf32>
  %u = nn.add %u0, %u1 : (tensor<1x8x32xf32>, tensor<1x8x32xf32>) -> tensor<1x8x32xf32>
  %y0 = nn.linear %u, %v : (tensor<1x8x32xf32>, tensor<32x16xf32>) -> !x
  %r = nn.linear %u, %c : (tensor<1x8x32xf32>, tensor<32x2xf32>) -> tensor<1x8x2xf32>
  %y1 = nn.linear %r, %d : (tensor<1x8x2xf32>, tensor<2x16xf32>) -> !x
  %y = nn.add %y0, %y1 : (!x, !x) -> !x
  return %y : !x
}

// The columns of the table are a device's rows of the embedding; statistics of all columns make the loss.
// CHECK-LABEL: func.func private @head(
// CHECK: %[[Z:.*]] = nn.linear %{{.*}} : (tensor<1x8x16xf32>, tensor<16x17xf32>) -> tensor<1x8x17xf32>
// CHECK-NEXT: %[[OWN:.*]] = nn.cross_entropy_stats %[[Z]], %{{.*}} {first_by = #nn.axes<tensor>, softcap = 3.000000e+01 : f64, vocab = 33 : i64}
// CHECK-NEXT: %[[ALL:.*]] = nn.all_gather %[[OWN]] over <tensor> {dim = 0 : i64, members = 2 : i64} : (tensor<1x8x3xf32>) -> tensor<2x8x3xf32>
// CHECK-NEXT: %[[P0:.*]] = nn.piece %[[ALL]] {index = 0 : i64, of = 2 : i64}
// CHECK-NEXT: %[[P1:.*]] = nn.piece %[[ALL]] {index = 1 : i64, of = 2 : i64}
// CHECK-NEXT: %[[M:.*]] = nn.cross_entropy_merge %[[P0]], %[[P1]]
// CHECK-NEXT: nn.cross_entropy_loss %[[M]]
func.func private @head(%x: !x, %targets: !t {nn.data = "targets"},
    %wte: tensor<33x16xf32> {nn.weight = #nn.weight<"wte" as "wte" shared>}) -> tensor<1xf32> {
  %w = nn.transpose %wte : (tensor<33x16xf32>) -> tensor<16x33xf32>
  %z = nn.linear %x, %w : (!x, tensor<16x33xf32>) -> tensor<1x8x33xf32>
  %loss = nn.cross_entropy %z, %targets {softcap = 30.0} : (tensor<1x8x33xf32>, !t) -> tensor<1xf32>
  return %loss : tensor<1xf32>
}

pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}, mesh = #pipeline.mesh<tensor 2, context 1, data 1, pipeline 1>} {
  pipeline.piece @s0 <stage 0> parts [["embed", -1], ["qkv", 0], ["post", 0], ["qkv", 1], ["post", 1], ["grouped", 2], ["adapted", 3], ["head", -1]] at <[0]>
}
