// With `sequence` devices have runs of rows between the products: sums are scattered, norms made of rows and gathered.
// RUN: pp-opt %s --pp-split-parts | FileCheck %s
// RUN: sed 's/sequence, again inputs/sequence/' %s | pp-opt --pp-split-parts | FileCheck %s --check-prefix=KEPT
// RUN: sed -e 's/"sequence" = 8/"sequence" = 7/' -e 's/mesh<tensor 2/mesh<tensor 4/' %s | not pp-opt --pp-split-parts 2>&1 | FileCheck %s --check-prefix=ODD
// RUN: not pp-compile %root/examples/train.pipe -D schedule=1f1b -D ranks=2 -D microbatches=2 -D layers=2 -D heads=6 -D hidden=48 -D ffn=96 -D vocab=96 -D data.sequence=17 -D data.microbatch=2 -D mesh.tensor=3 -D mesh.sequence=true --emit=ranks 2>&1 | FileCheck %s --check-prefix=TRAIN

!x = tensor<2x8x16xf32>
!t = tensor<2x8xi32>
!w = tensor<16x16xf32>
!v = tensor<16xf32>

// Positions are made on every device. The sum is added up for all devices, which take their rows: as many bytes as rows
// of both, for whose gradients two gathers would follow, and an exchange less.
// CHECK-LABEL: func.func private @embed(
// CHECK-SAME: -> tensor<1x8x16xf32>
// CHECK-NEXT: %[[E:.*]] = nn.embedding
// CHECK-NEXT: %[[Q:.*]] = nn.positions %{{.*}} -> tensor<2x8x16xf32>
// CHECK-NEXT: %[[S:.*]] = nn.all_reduce %[[E]] over <tensor>
// CHECK-NEXT: %[[A:.*]] = nn.add %[[S]], %[[Q]]
// CHECK-NEXT: %[[R:.*]] = nn.take_rows %[[A]] over <tensor> {kept, members = 2 : i64} : (tensor<2x8x16xf32>) -> tensor<1x8x16xf32>
// CHECK-NEXT: return %[[R]]
func.func private @embed(%tokens: !t {nn.data = "tokens"},
    %wte: tensor<32x16xf32> {nn.weight = #nn.weight<"wte" as "wte" shared>},
    %wpe: tensor<8x16xf32> {nn.weight = #nn.weight<"wpe">}) -> !x {
  %0 = nn.embedding %tokens, %wte : (!t, tensor<32x16xf32>) -> !x
  %1 = nn.positions %tokens, %wpe : (!t, tensor<8x16xf32>) -> !x
  %2 = nn.add %0, %1 : (!x, !x) -> !x
  return %2 : !x
}

// CHECK-LABEL: func.func private @tokens(
// CHECK-NEXT: %[[E:.*]] = nn.embedding
// CHECK-NEXT: %[[S:.*]] = nn.scatter_rows %[[E]] over <tensor> {kept, members = 2 : i64} : (tensor<2x8x16xf32>) -> tensor<1x8x16xf32>
// CHECK-NEXT: return %[[S]]
func.func private @tokens(%tokens: !t {nn.data = "tokens"},
    %wte: tensor<32x16xf32> {nn.weight = #nn.weight<"wte" as "wte" shared>}) -> !x {
  %0 = nn.embedding %tokens, %wte : (!t, tensor<32x16xf32>) -> !x
  return %0 : !x
}

// The gain works on the device's rows: its gradient is a term of each device, which `terms` says. One gather serves both
// products.
// CHECK-LABEL: func.func private @qkv(
// CHECK-SAME: %[[X:[^:]*]]: tensor<1x8x16xf32> {nn.rows}, %[[G:[^:]*]]: tensor<16xf32> {nn.weight = #nn.weight<{{[^>]*}} terms>}
// CHECK-NEXT: %[[N:.*]], %{{.*}} = nn.rmsnorm %[[X]], %[[G]] : (tensor<1x8x16xf32>, tensor<16xf32>) -> (tensor<1x8x16xf32>, tensor<1x8xf32>)
// CHECK-NEXT: %[[C:.*]] = nn.gather_rows %[[N]] over <tensor> {batch = 2 : i64, members = 2 : i64} : (tensor<1x8x16xf32>) -> tensor<2x8x16xf32>
// KEPT: nn.gather_rows %{{.*}} over <tensor> {batch = 2 : i64, kept, members = 2 : i64}
// CHECK-NEXT: nn.linear %[[C]], %{{.*}} : (tensor<2x8x16xf32>, tensor<16x8xf32>) -> tensor<2x8x8xf32>
// CHECK-NEXT: nn.linear %[[C]]
// CHECK-NOT: nn.gather_rows
func.func private @qkv(%x: !x, %g: !v {nn.weight = #nn.weight<"g">}, %wq: !w {nn.weight = #nn.weight<"wq">},
    %wk: !w {nn.weight = #nn.weight<"wk">}) -> (!x, !x, !x) {
  %n, %r = nn.rmsnorm %x, %g : (!x, !v) -> (!x, tensor<2x8xf32>)
  %q = nn.linear %n, %wq : (!x, !w) -> !x
  %k = nn.linear %n, %wk : (!x, !w) -> !x
  return %q, %k, %x : !x, !x, !x
}

// The bias of a product that is cut by rows is added to the rows of the sum.
// CHECK-LABEL: func.func private @post(
// CHECK: %[[O:.*]], %{{.*}} = nn.attention %{{.*}} {causal = true, heads = 2 : i64}
// CHECK-NEXT: %[[Z:.*]] = nn.linear %[[O]], %{{.*}} : (tensor<2x8x8xf32>, tensor<8x16xf32>) -> tensor<2x8x16xf32>
// CHECK-NEXT: %[[S:.*]] = nn.scatter_rows %[[Z]] over <tensor>
// CHECK-NEXT: %[[B:.*]] = nn.add_bias %[[S]], %{{.*}} : (tensor<1x8x16xf32>, tensor<16xf32>)
// CHECK-NEXT: nn.add %{{.*}}, %[[B]] : (tensor<1x8x16xf32>, tensor<1x8x16xf32>)
func.func private @post(%q: !x, %k: !x, %x: !x, %w: !w {nn.weight = #nn.weight<"wo">},
    %b: !v {nn.weight = #nn.weight<"bo">}) -> !x {
  %o, %l = nn.attention %q, %k, %k {heads = 4, causal = true} : (!x, !x, !x) -> (!x, tensor<2x4x8xf32>)
  %z = nn.linear %o, %w bias %b : (!x, !w, !v) -> !x
  %y = nn.add %x, %z : (!x, !x) -> !x
  return %y : !x
}

// Adapters beside columns work on rows, of which numbers of their rank are gathered; beside rows they are scattered.
// CHECK-LABEL: func.func private @adapted(
// CHECK: nn.linear %{{.*}} : (tensor<1x8x16xf32>, tensor<16x2xf32>) -> tensor<1x8x2xf32>
// CHECK: nn.gather_rows %{{.*}} : (tensor<1x8x2xf32>) -> tensor<2x8x2xf32>
// CHECK: nn.scatter_rows %{{.*}} : (tensor<2x8x2xf32>) -> tensor<1x8x2xf32>
// CHECK: %[[Y:.*]] = nn.add %{{.*}} : (tensor<1x8x16xf32>, tensor<1x8x16xf32>)
// CHECK-NEXT: return %[[Y]]
func.func private @adapted(%x: !x, %w: tensor<16x32xf32> {nn.weight = #nn.weight<"up">},
    %v: tensor<32x16xf32> {nn.weight = #nn.weight<"down">},
    %a: tensor<16x2xf32> {nn.adapter, nn.weight = #nn.weight<"up.A">},
    %b: tensor<2x32xf32> {nn.adapter, nn.weight = #nn.weight<"up.B">},
    %c: tensor<32x2xf32> {nn.adapter, nn.weight = #nn.weight<"down.A">},
    %d: tensor<2x16xf32> {nn.adapter, nn.weight = #nn.weight<"down.B">}) -> !x {
  %u0 = nn.linear %x, %w : (!x, tensor<16x32xf32>) -> tensor<2x8x32xf32>
  %t = nn.linear %x, %a : (!x, tensor<16x2xf32>) -> tensor<2x8x2xf32>
  %u1 = nn.linear %t, %b : (tensor<2x8x2xf32>, tensor<2x32xf32>) -> tensor<2x8x32xf32>
  %u = nn.add %u0, %u1 : (tensor<2x8x32xf32>, tensor<2x8x32xf32>) -> tensor<2x8x32xf32>
  %y0 = nn.linear %u, %v : (tensor<2x8x32xf32>, tensor<32x16xf32>) -> !x
  %r = nn.linear %u, %c : (tensor<2x8x32xf32>, tensor<32x2xf32>) -> tensor<2x8x2xf32>
  %y1 = nn.linear %r, %d : (tensor<2x8x2xf32>, tensor<2x16xf32>) -> !x
  %y = nn.add %y0, %y1 : (!x, !x) -> !x
  return %y : !x
}

// What skips parts is whole: any part may read it.
// CHECK-LABEL: func.func private @skips(
// CHECK: %[[Y:.*]] = nn.add %{{.*}} : (tensor<1x8x16xf32>, tensor<1x8x16xf32>)
// CHECK-NEXT: %[[W:.*]] = nn.gather_rows %[[Y]] over <tensor> {batch = 2 : i64, members = 2 : i64, whole}
// CHECK-NEXT: return %[[Y]], %[[W]]
func.func private @skips(%x: !x) -> (!x, !x) attributes {nn.skips = ["s"]} {
  %y = nn.add %x, %x : (!x, !x) -> !x
  return %y, %y : !x, !x
}

// ODD: error: a microbatch has 14 rows of activations; `tensor = 4` with `sequence` does not divide them
// ODD-NOT: error
// TRAIN: error: a microbatch has 34 rows of activations; `tensor = 3` with `sequence` does not divide them
// TRAIN-NOT: error
pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {
    train = {"batch" = 2, "sequence" = 8}, mesh = #pipeline.mesh<tensor 2, context 1, data 1, pipeline 1, sequence, again inputs>} {
  pipeline.piece @s0 <stage 0> parts [["embed", -1], ["qkv", 0], ["post", 0], ["qkv", 1], ["post", 1], ["adapted", 2], ["skips", 3], ["tokens", -1]] at <[0]>
}
