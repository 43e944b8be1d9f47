// Losses that are formulas of tokens: statistics of logits, their gradients, and means.
// RUN: pp-opt %s --split-input-file --verify-diagnostics | FileCheck %s

// CHECK-LABEL: func.func @tokens
func.func @tokens(%z: tensor<2x8x16xbf16>, %t: tensor<2x8xi32>, %ids: tensor<2x8x4xi32>, %r: tensor<2x8xf32>,
                  %k: tensor<2x8x4xf32>) {
  // CHECK: nn.token_stats %{{.*}}, %[[T:.*]], %[[T]] : {{.*}} -> (tensor<2x8xf32>, tensor<2x8xf32>, tensor<2x8xf32>, tensor<2x8xf32>)
  %1:4 = nn.token_stats %z, %t, %t : (tensor<2x8x16xbf16>, tensor<2x8xi32>, tensor<2x8xi32>)
      -> (tensor<2x8xf32>, tensor<2x8xf32>, tensor<2x8xf32>, tensor<2x8xf32>)
  // CHECK: nn.token_stats %{{.*}}, %{{.*}}, %{{.*}} {softcap = 3.000000e+00 : f64} : {{.*}}tensor<2x8x4xf32>)
  %2:4 = nn.token_stats %z, %t, %ids {softcap = 3.0} : (tensor<2x8x16xbf16>, tensor<2x8xi32>, tensor<2x8x4xi32>)
      -> (tensor<2x8xf32>, tensor<2x8xf32>, tensor<2x8xf32>, tensor<2x8x4xf32>)
  // CHECK: nn.token_stats_bwd {{.*}} -> tensor<2x8x16xbf16>
  %3 = nn.token_stats_bwd %z, %t, %ids, %r, %r, %r, %r, %r, %k
      : (tensor<2x8x16xbf16>, tensor<2x8xi32>, tensor<2x8x4xi32>, tensor<2x8xf32>, tensor<2x8xf32>, tensor<2x8xf32>,
         tensor<2x8xf32>, tensor<2x8xf32>, tensor<2x8x4xf32>) -> tensor<2x8x16xbf16>
  // CHECK: nn.token_mean %{{.*}}, %{{.*}} {counted, scale = 5.000000e-01 : f64} : (tensor<2x8xf32>, tensor<2x8xi32>) -> tensor<1xf32>
  %4 = nn.token_mean %r, %t {counted, scale = 0.5} : (tensor<2x8xf32>, tensor<2x8xi32>) -> tensor<1xf32>
  // CHECK: nn.token_mean %{{.*}}, %{{.*}} {total} :
  %5 = nn.token_mean %r, %t {total} : (tensor<2x8xf32>, tensor<2x8xi32>) -> tensor<1xf32>
  // CHECK: nn.token_mean_bwd %{{.*}}, %{{.*}} {scale = 2.500000e-01 : f64} : {{.*}} -> (tensor<2x8xf32>, tensor<1xf32>)
  %6:2 = nn.token_mean_bwd %r, %t {scale = 0.25} : (tensor<2x8xf32>, tensor<2x8xi32>) -> (tensor<2x8xf32>, tensor<1xf32>)
  return
}

// -----

func.func @rows(%z: tensor<2x8x16xf32>, %t: tensor<2x8xi32>, %ids: tensor<2x4x4xi32>) {
  // expected-error@+2 {{`token_stats` expects columns to pick as i32 [2, 8] or [2, 8, k], got 'tensor<2x4x4xi32>'}}
  // expected-error@+1 {{failed to infer returned types}}
  %1:4 = nn.token_stats %z, %t, %ids : (tensor<2x8x16xf32>, tensor<2x8xi32>, tensor<2x4x4xi32>)
      -> (tensor<2x8xf32>, tensor<2x8xf32>, tensor<2x8xf32>, tensor<2x4x4xf32>)
  return
}

// -----

func.func @sums(%v: tensor<2x8xbf16>, %t: tensor<2x8xi32>) {
  // expected-error@+2 {{`token_mean` expects the values as 'tensor<2x8xf32>', got 'tensor<2x8xbf16>'}}
  // expected-error@+1 {{failed to infer returned types}}
  %1 = nn.token_mean %v, %t : (tensor<2x8xbf16>, tensor<2x8xi32>) -> tensor<1xf32>
  return
}
