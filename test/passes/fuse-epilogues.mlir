// fuse-epilogues: a product and what stands beside it in the body become one op, where nothing else needs them apart.
// RUN: pp-opt %s --pp-fuse-epilogues | FileCheck %s

!x = tensor<2x4x8xbf16>
!u = tensor<2x4x16xbf16>
!w = tensor<8x16xbf16>
!b = tensor<16xbf16>
!dw = tensor<8x16xf32>
!db = tensor<16xf32>

// What F saves is what the linear alone would give: u; and the y of the same op goes on.
// CHECK-LABEL: func.func private @forward
// CHECK-SAME: (%[[X:.*]]: tensor<2x4x8xbf16>, %[[W:.*]]: tensor<8x16xbf16>, %[[B:.*]]: tensor<16xbf16>)
func.func private @forward(%x: !x, %w: !w, %b: !b) -> (!x, !u) attributes {pipeline.inputs = #pipeline.groups<act x 1, weight x 2>,
    pipeline.results = #pipeline.groups<act x 1, stash x 1>, pipeline.ties = array<i64: -1, -1>} {
  // CHECK-NEXT: %[[U:.*]], %[[Y:.*]] = nn.linear_gelu %[[X]], %[[W]] bias %[[B]] : {{.*}} -> (tensor<2x4x16xbf16>, tensor<2x4x16xbf16>)
  %u = nn.linear %x, %w bias %b : (!x, !w, !b) -> !u
  %y = nn.gelu %u : (!u) -> !u
  // CHECK-NEXT: %[[OUT:.*]] = nn.linear %[[Y]], %[[W]] {transposed = true}
  %out = nn.linear %y, %w {transposed = true} : (!u, !w) -> !x
  // CHECK-NEXT: return %[[OUT]], %[[U]]
  return %out, %u : !x, !u
}

// The backward of the same: the second linear has no bias, the first one has. The gelu that is made again of what was saved
// belongs to no product.
// CHECK-LABEL: func.func private @backward
// CHECK-SAME: (%[[X:.*]]: tensor<2x4x8xbf16>, %[[U:.*]]: tensor<2x4x16xbf16>, %[[W:.*]]: tensor<8x16xbf16>, %[[DOUT:.*]]: tensor<2x4x8xbf16>, %[[G0:.*]]: tensor<8x16xf32>, %[[G1:.*]]: tensor<16xf32>)
func.func private @backward(%x: !x, %u: !u, %w: !w, %dout: !x, %g0: !dw, %g1: !db) -> (!x, !dw, !db) attributes {
    pipeline.inputs = #pipeline.groups<act x 1, stash x 1, weight x 1, dact x 1, grad x 2>,
    pipeline.results = #pipeline.groups<dact x 1, grad x 2>, pipeline.ties = array<i64: -1, 4>} {
  // CHECK-NEXT: %[[Y:.*]] = nn.gelu %[[U]]
  %y = nn.gelu %u : (!u) -> !u
  // CHECK-NEXT: %[[W2:.*]] = nn.linear_dw %[[Y]], %[[DOUT]] into %[[G0]] {transposed = true}
  %w2 = nn.linear_dw %y, %dout into %g0 {transposed = true} : (!u, !x, !dw) -> !dw
  // CHECK-NEXT: %[[DU:.*]] = nn.linear_dx_gelu %[[DOUT]], %[[W]], %[[U]] {transposed = true}
  %dy = nn.linear_dx %dout, %w {transposed = true} : (!x, !w) -> !u
  %du = nn.gelu_bwd %dy, %u : (!u, !u) -> !u
  // CHECK-NEXT: %[[DW:.*]], %[[DB:.*]] = nn.linear_dw_bias %[[X]], %[[DU]] into %[[W2]], %[[G1]] : {{.*}} -> (tensor<8x16xf32>, tensor<16xf32>)
  %w1 = nn.linear_dw %x, %du into %w2 : (!x, !u, !dw) -> !dw
  %b1 = nn.bias_dw %du into %g1 : (!u, !db) -> !db
  // CHECK-NEXT: %[[DX:.*]] = nn.linear_dx %[[DU]], %[[W]]
  %dx = nn.linear_dx %du, %w : (!u, !w) -> !x
  // CHECK-NEXT: return %[[DX]], %[[DW]], %[[DB]]
  return %dx, %w1, %b1 : !x, !dw, !db
}

// The first sums are written, and a transposed weight stays one.
// CHECK-LABEL: func.func private @first
func.func private @first(%x: !x, %dy: !u) -> (tensor<16x8xf32>, !db) attributes {
    pipeline.inputs = #pipeline.groups<act x 1, dact x 1>, pipeline.results = #pipeline.groups<grad x 2>, pipeline.ties = array<i64: -1>} {
  // CHECK-NEXT: nn.linear_dw_bias %{{[a-z0-9]+}}, %{{[a-z0-9]+}} {transposed = true} : (tensor<2x4x8xbf16>, tensor<2x4x16xbf16>) -> (tensor<16x8xf32>, tensor<16xf32>)
  %dw = nn.linear_dw %x, %dy {transposed = true} : (!x, !u) -> tensor<16x8xf32>
  %db = nn.bias_dw %dy : (!u) -> !db
  return %dw, %db : tensor<16x8xf32>, !db
}

// Views run nothing: rows of u that the derivative is taken at may stand between.
// CHECK-LABEL: func.func private @views
func.func private @views(%all: tensor<2x8x16xbf16>, %w: !w, %dout: tensor<1x4x8xbf16>) -> tensor<1x4x16xbf16> attributes {
    pipeline.inputs = #pipeline.groups<stash x 1, weight x 1, dact x 1>, pipeline.results = #pipeline.groups<dact x 1>,
    pipeline.ties = array<i64: -1>} {
  // CHECK-NEXT: nn.rows
  // CHECK-NEXT: nn.linear_dx_gelu
  %dy = nn.linear_dx %dout, %w {transposed = true} : (tensor<1x4x8xbf16>, !w) -> tensor<1x4x16xbf16>
  %u = nn.rows %all {start = 4, count = 4} : (tensor<2x8x16xbf16>) -> tensor<1x4x16xbf16>
  %du = nn.gelu_bwd %dy, %u : (tensor<1x4x16xbf16>, tensor<1x4x16xbf16>) -> tensor<1x4x16xbf16>
  return %du : tensor<1x4x16xbf16>
}

// The erf form is another function than the library's.
// CHECK-LABEL: func.func private @exact
func.func private @exact(%x: !x, %w: !w, %dout: !x) -> (!u, !u) attributes {
    pipeline.inputs = #pipeline.groups<act x 1, weight x 1, dact x 1>, pipeline.results = #pipeline.groups<act x 2>,
    pipeline.ties = array<i64: -1>} {
  // CHECK-NEXT: nn.linear
  // CHECK-NEXT: nn.gelu
  // CHECK-NEXT: nn.linear_dx
  // CHECK-NEXT: nn.gelu_bwd
  %u = nn.linear %x, %w : (!x, !w) -> !u
  %y = nn.gelu %u {exact = true} : (!u) -> !u
  %dy = nn.linear_dx %dout, %w {transposed = true} : (!x, !w) -> !u
  %du = nn.gelu_bwd %dy, %u {exact = true} : (!u, !u) -> !u
  return %y, %du : !u, !u
}

// A gradient that is read elsewhere too, or was added to another, is needed itself.
// CHECK-LABEL: func.func private @elsewhere
func.func private @elsewhere(%u: !u, %w: !w, %dout: !x, %more: !u) -> (!u, !u, !u) attributes {
    pipeline.inputs = #pipeline.groups<stash x 1, weight x 1, dact x 1, dact x 1>, pipeline.results = #pipeline.groups<dact x 3>,
    pipeline.ties = array<i64: -1>} {
  // CHECK-NEXT: nn.linear_dx
  // CHECK-NEXT: nn.gelu_bwd
  %dy = nn.linear_dx %dout, %w {transposed = true} : (!x, !w) -> !u
  %du = nn.gelu_bwd %dy, %u : (!u, !u) -> !u
  // CHECK-NEXT: nn.linear_dx {{.*}} into
  // CHECK-NEXT: nn.gelu_bwd
  %sum = nn.linear_dx %dout, %w into %more {transposed = true} : (!x, !w, !u) -> !u
  %dsum = nn.gelu_bwd %sum, %u : (!u, !u) -> !u
  return %dy, %du, %dsum : !u, !u, !u
}

// Not what is not beside it, nor a sum that begins beside one that goes on, nor the sum of another dy.
// CHECK-LABEL: func.func private @apart
func.func private @apart(%x: !x, %w: !w, %dy: !u, %other: !u, %g0: !dw) -> (!u, !dw, !db, !dw, !db, !dw, !db) attributes {
    pipeline.inputs = #pipeline.groups<act x 1, weight x 1, dact x 2, grad x 1>, pipeline.results = #pipeline.groups<act x 1, grad x 6>,
    pipeline.ties = array<i64: -1, -1>} {
  // CHECK-NEXT: nn.linear %
  // CHECK-NEXT: nn.linear_dw %
  // CHECK-NEXT: nn.gelu %
  // CHECK-NEXT: nn.bias_dw %
  // CHECK-NEXT: nn.linear_dw %{{.*}} into
  // CHECK-NEXT: nn.bias_dw %
  // CHECK-NEXT: nn.linear_dw %
  // CHECK-NEXT: nn.bias_dw %
  %u = nn.linear %x, %w : (!x, !w) -> !u
  %dw = nn.linear_dw %x, %dy : (!x, !u) -> !dw
  %y = nn.gelu %u : (!u) -> !u
  %db = nn.bias_dw %dy : (!u) -> !db
  %dw1 = nn.linear_dw %x, %dy into %g0 : (!x, !u, !dw) -> !dw
  %db1 = nn.bias_dw %dy : (!u) -> !db
  %dw2 = nn.linear_dw %x, %dy : (!x, !u) -> !dw
  %db2 = nn.bias_dw %other : (!u) -> !db
  return %y, %dw, %db, %dw1, %db1, %dw2, %db2 : !u, !dw, !db, !dw, !db, !dw, !db
}

// A gelu of what another body has made stays a gelu; so does one outside of bodies: parts of a model are differentiated yet.
// CHECK-LABEL: func.func private @another
func.func private @another(%u: !u, %w: !w) -> !x attributes {pipeline.inputs = #pipeline.groups<act x 1, weight x 1>,
    pipeline.results = #pipeline.groups<act x 1>, pipeline.ties = array<i64: -1>} {
  // CHECK-NEXT: nn.gelu
  %y = nn.gelu %u : (!u) -> !u
  %out = nn.linear %y, %w {transposed = true} : (!u, !w) -> !x
  return %out : !x
}
// CHECK-LABEL: func.func @part
func.func @part(%x: !x, %w: !w) -> !u {
  // CHECK-NEXT: nn.linear
  // CHECK-NEXT: nn.gelu
  %u = nn.linear %x, %w : (!x, !w) -> !u
  %y = nn.gelu %u : (!u) -> !u
  return %y : !u
}
