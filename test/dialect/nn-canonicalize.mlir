// A transpose of a weight folds into the linear that reads it, and what nothing reads goes.
// RUN: pp-opt %s --canonicalize --cse | FileCheck %s

// CHECK-LABEL: func.func @tied
func.func @tied(%x: tensor<2x8x16xf32>, %table: tensor<32x16xf32>) -> tensor<2x8x32xf32> {
  // CHECK-NEXT: %[[Z:.*]] = nn.linear %arg0, %arg1 {transposed = true} : (tensor<2x8x16xf32>, tensor<32x16xf32>) -> tensor<2x8x32xf32>
  // CHECK-NEXT: return %[[Z]]
  %w = nn.transpose %table : (tensor<32x16xf32>) -> tensor<16x32xf32>
  %z = nn.linear %x, %w : (tensor<2x8x16xf32>, tensor<16x32xf32>) -> tensor<2x8x32xf32>
  %unread = nn.gelu %z : (tensor<2x8x32xf32>) -> tensor<2x8x32xf32>
  return %z : tensor<2x8x32xf32>
}
