// Formulas are read and printed: axes, heads, kept rows, sums over all rows; and the ops that a region may hold.
// RUN: pp-opt %s | pp-opt | FileCheck %s

// A gated norm: full tensors and a weight make a full tensor, and a number for each row.
// CHECK-LABEL: func.func private @gated
// CHECK: %{{.*}}:2 = nn.map reads(%arg0: "thd", %arg1: "hd", %arg2: "thd") makes("thd", "t") heads 1 {
// CHECK-NEXT: ^bb0(%[[X:.*]]: f32, %[[G:.*]]: f32, %[[Z:.*]]: f32):
// CHECK: nn.reduce "mean" "hd" %{{.*}} : f32
// CHECK: nn.sigmoid %[[Z]] : f32
// CHECK: nn.give %{{.*}}, %{{.*}} : f32, f32
// CHECK-NEXT: } : (tensor<2x8x64xbf16>, tensor<64xbf16>, tensor<2x8x64xbf16>) -> (tensor<2x8x64xbf16>, tensor<2x8xf32>)
func.func private @gated(%x: tensor<2x8x64xbf16>, %g: tensor<64xbf16>, %z: tensor<2x8x64xbf16>)
    -> (tensor<2x8x64xbf16>, tensor<2x8xf32>) {
  %y:2 = nn.map reads(%x: "thd", %g: "hd", %z: "thd") makes("thd", "t") heads 1 {
  ^bb0(%a: f32, %b: f32, %c: f32):
    %eps = arith.constant 1.0e-06 : f32
    %s = arith.mulf %a, %a : f32
    %m = nn.reduce "mean" "hd" %s : f32
    %v = arith.addf %m, %eps : f32
    %q = math.rsqrt %v : f32
    %n = arith.mulf %a, %q : f32
    %t = arith.mulf %n, %b : f32
    %u = nn.sigmoid %c : f32
    %h = arith.mulf %c, %u : f32
    %o = arith.mulf %t, %h : f32
    nn.give %o, %q : f32, f32
  } : (tensor<2x8x64xbf16>, tensor<64xbf16>, tensor<2x8x64xbf16>) -> (tensor<2x8x64xbf16>, tensor<2x8xf32>)
  return %y#0, %y#1 : tensor<2x8x64xbf16>, tensor<2x8xf32>
}

// With heads: a number for each head of each row, a gain for the columns of every head, a scale for each head, and one
// number. What is made without rows is the sum over them.
// CHECK-LABEL: func.func private @heads
// CHECK: nn.map reads(%arg0: "thd", %arg1: "th", %arg2: "d", %arg3: "h", %arg4: "") makes("thd", "d", "h", "") heads 4
// CHECK: nn.softplus
// CHECK: nn.rounded
// CHECK: nn.stop
// CHECK: -> (tensor<2x8x64xf64>, tensor<16xf64>, tensor<4xf64>, tensor<1xf64>)
func.func private @heads(%x: tensor<2x8x64xf64>, %r: tensor<2x8x4xf64>, %g: tensor<16xf64>, %s: tensor<4xf64>,
                         %w: tensor<1xf64>) -> tensor<16xf64> {
  %y:4 = nn.map reads(%x: "thd", %r: "th", %g: "d", %s: "h", %w: "") makes("thd", "d", "h", "") heads 4 {
  ^bb0(%a: f64, %b: f64, %c: f64, %d: f64, %e: f64):
    %0 = nn.softplus %a : f64
    %1 = nn.rounded %b : f64
    %2 = nn.stop %c : f64
    %yes = arith.constant true
    %3 = arith.cmpf ogt, %0, %1 : f64
    %4 = arith.xori %3, %yes : i1
    %5 = arith.select %4, %0, %2 : f64
    %6 = math.fma %5, %d, %e : f64
    %7 = nn.reduce "variance" "d" %6 : f64
    nn.give %6, %6, %7, %7 : f64, f64, f64, f64
  } : (tensor<2x8x64xf64>, tensor<2x8x4xf64>, tensor<16xf64>, tensor<4xf64>, tensor<1xf64>)
    -> (tensor<2x8x64xf64>, tensor<16xf64>, tensor<4xf64>, tensor<1xf64>)
  return %y#1 : tensor<16xf64>
}
