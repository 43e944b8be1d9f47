// fuse-epilogues: a product and the add of a residual behind it become one op, in all bodies of the add or in none.
// RUN: pp-opt %s --pp-fuse-epilogues --split-input-file | FileCheck %s

!x = tensor<2x4x8xbf16>
!w = tensor<8x8xbf16>
!b = tensor<8xbf16>

// The product may stand on either side; its bias and its transposed weight stay. What was made first is the residual.
// CHECK-LABEL: func.func private @sides
// CHECK-SAME: (%[[X:.*]]: tensor<2x4x8xbf16>, %[[H:.*]]: tensor<2x4x8xbf16>, %[[W:.*]]: tensor<8x8xbf16>, %[[B:.*]]: tensor<8xbf16>)
func.func private @sides(%x: !x, %h: !x, %w: !w, %b: !b) -> (!x, !x, !x) attributes {
    pipeline.inputs = #pipeline.groups<act x 2, weight x 2>, pipeline.results = #pipeline.groups<act x 3>,
    pipeline.ties = array<i64: -1>} {
  // CHECK-NEXT: %[[Y:.*]] = nn.linear_add %[[H]], %[[W]] bias %[[B]] to %[[X]] :
  %p = nn.linear %h, %w bias %b : (!x, !w, !b) -> !x
  %y = nn.add %x, %p : (!x, !x) -> !x
  // CHECK-NEXT: %[[Z:.*]] = nn.linear_add %[[H]], %[[W]] to %[[Y]] {transposed = true} :
  %q = nn.linear %h, %w {transposed = true} : (!x, !w) -> !x
  %z = nn.add %q, %y : (!x, !x) -> !x
  // CHECK-NEXT: %[[R:.*]] = nn.linear %[[X]], %[[W]] :
  // CHECK-NEXT: %[[S:.*]] = nn.linear_add %[[H]], %[[W]] to %[[R]] :
  %r = nn.linear %x, %w : (!x, !w) -> !x
  %t = nn.linear %h, %w : (!x, !w) -> !x
  %s = nn.add %r, %t : (!x, !x) -> !x
  // CHECK-NEXT: return %[[Y]], %[[Z]], %[[S]]
  return %y, %z, %s : !x, !x, !x
}

// A view runs nothing: rows that are added may be named behind the product.
// CHECK-LABEL: func.func private @views
func.func private @views(%all: tensor<2x8x8xbf16>, %h: tensor<1x4x8xbf16>, %w: !w) -> tensor<1x4x8xbf16> attributes {
    pipeline.inputs = #pipeline.groups<act x 2, weight x 1>, pipeline.results = #pipeline.groups<act x 1>,
    pipeline.ties = array<i64: -1>} {
  // CHECK-NEXT: %[[ROWS:.*]] = nn.rows
  // CHECK-NEXT: nn.linear_add %{{.*}}, %{{.*}} to %[[ROWS]]
  %p = nn.linear %h, %w : (tensor<1x4x8xbf16>, !w) -> tensor<1x4x8xbf16>
  %x = nn.rows %all {start = 4, count = 4} : (tensor<2x8x8xbf16>) -> tensor<1x4x8xbf16>
  %y = nn.add %x, %p : (tensor<1x4x8xbf16>, tensor<1x4x8xbf16>) -> tensor<1x4x8xbf16>
  return %y : tensor<1x4x8xbf16>
}

// Not a product that is saved, or read elsewhere, or added to itself.
// CHECK-LABEL: func.func private @read
func.func private @read(%x: !x, %w: !w) -> (!x, !x, !x, !x) attributes {
    pipeline.inputs = #pipeline.groups<act x 1, weight x 1>, pipeline.results = #pipeline.groups<act x 3, stash x 1>,
    pipeline.ties = array<i64: -1, -1>} {
  // CHECK-NEXT: nn.linear %
  // CHECK-NEXT: nn.add
  // CHECK-NEXT: nn.linear %
  // CHECK-NEXT: nn.add
  // CHECK-NEXT: nn.gelu
  // CHECK-NEXT: nn.linear %
  // CHECK-NEXT: nn.add
  %p = nn.linear %x, %w : (!x, !w) -> !x
  %a = nn.add %x, %p : (!x, !x) -> !x
  %q = nn.linear %x, %w : (!x, !w) -> !x
  %b = nn.add %x, %q : (!x, !x) -> !x
  %g = nn.gelu %q {exact = true} : (!x) -> !x
  %r = nn.linear %b, %w : (!x, !w) -> !x
  %c = nn.add %r, %r : (!x, !x) -> !x
  return %a, %g, %c, %p : !x, !x, !x, !x
}

// Not with a kernel between them: dropout, or the sum over devices of a product that is cut by rows, and its bias.
// CHECK-LABEL: func.func private @between
func.func private @between(%x: !x, %h: !x, %w: !w, %b: !b, %rows: tensor<2x4xi32>) -> (!x, !x, !x, !x) attributes {
    pipeline.inputs = #pipeline.groups<act x 2, weight x 2, tokens x 1>, pipeline.results = #pipeline.groups<act x 4>,
    pipeline.ties = array<i64: -1>} {
  // CHECK-NEXT: nn.linear %
  // CHECK-NEXT: nn.dropout
  // CHECK-NEXT: nn.add
  %p = nn.linear %h, %w bias %b : (!x, !w, !b) -> !x
  %d = nn.dropout %p of %rows {rate = 0.1 : f64, sites = 1 : i64} : (!x, tensor<2x4xi32>) -> !x
  %y = nn.add %x, %d : (!x, !x) -> !x
  // CHECK-NEXT: nn.linear %
  // CHECK-NEXT: nn.all_reduce
  // CHECK-NEXT: nn.add_bias
  // CHECK-NEXT: nn.add
  %q = nn.linear %h, %w : (!x, !w) -> !x
  %s = nn.all_reduce %q over <tensor> : (!x) -> !x
  %t = nn.add_bias %s, %b : (!x, !b) -> !x
  %z = nn.add %x, %t : (!x, !x) -> !x
  // CHECK-NEXT: nn.linear %
  // CHECK-NEXT: nn.gelu
  // CHECK-NEXT: nn.add
  %r = nn.linear %h, %w : (!x, !w) -> !x
  %g = nn.gelu %x {exact = true} : (!x) -> !x
  %u = nn.add %g, %r : (!x, !x) -> !x
  return %y, %z, %u, %g : !x, !x, !x, !x
}

// Parts of the model are differentiated yet.
// CHECK-LABEL: func.func @part
func.func @part(%x: !x, %w: !w) -> !x {
  // CHECK-NEXT: nn.linear %
  // CHECK-NEXT: nn.add
  %p = nn.linear %x, %w : (!x, !w) -> !x
  %y = nn.add %x, %p : (!x, !x) -> !x
  return %y : !x
}

// -----

!x = tensor<2x4x8xbf16>
!w = tensor<8x8xbf16>

// F runs a gelu that R leaves out, and so R alone could make one op of the first add: then its y would not be that of F.
// The second add stands in both bodies behind its product. An add of gradients may have the place of the model's add
// that it is the derivative of, and says nothing.
// CHECK-LABEL: func.func private @F
func.func private @F(%x: !x, %w: !w) -> (!x, !x) attributes {
    pipeline.inputs = #pipeline.groups<act x 1, weight x 1>, pipeline.results = #pipeline.groups<act x 2>,
    pipeline.ties = array<i64: -1>} {
  // CHECK-NEXT: nn.linear %
  // CHECK-NEXT: nn.gelu
  // CHECK-NEXT: nn.add
  // CHECK-NEXT: nn.linear_add
  %p = nn.linear %x, %w : (!x, !w) -> !x
  %g = nn.gelu %x {exact = true} : (!x) -> !x
  %y = nn.add %x, %p : (!x, !x) -> !x loc("first")
  %q = nn.linear %y, %w : (!x, !w) -> !x
  %z = nn.add %y, %q : (!x, !x) -> !x loc("second")
  return %g, %z : !x, !x
}
// CHECK-LABEL: func.func private @R
func.func private @R(%x: !x, %w: !w) -> !x attributes {
    pipeline.inputs = #pipeline.groups<act x 1, weight x 1>, pipeline.results = #pipeline.groups<stash x 1>,
    pipeline.ties = array<i64: -1>} {
  // CHECK-NEXT: nn.linear %
  // CHECK-NEXT: nn.add
  // CHECK-NEXT: nn.linear_add
  %p = nn.linear %x, %w : (!x, !w) -> !x
  %y = nn.add %x, %p : (!x, !x) -> !x loc("first")
  %q = nn.linear %y, %w : (!x, !w) -> !x
  %z = nn.add %y, %q : (!x, !x) -> !x loc("second")
  return %z : !x
}
// CHECK-LABEL: func.func private @I
func.func private @I(%dz: !x, %w: !w, %da: !x) -> !x attributes {
    pipeline.inputs = #pipeline.groups<dact x 1, weight x 1, dact x 1>, pipeline.results = #pipeline.groups<dact x 1>,
    pipeline.ties = array<i64: -1>} {
  // CHECK-NEXT: nn.linear_dx
  // CHECK-NEXT: nn.add
  %dy = nn.linear_dx %dz, %w : (!x, !w) -> !x
  %dx = nn.add %da, %dy : (!x, !x) -> !x loc("second")
  return %dx : !x
}
