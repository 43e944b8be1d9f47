// Every op of the `nn` dialect reads back what it prints.
// RUN: pp-opt %s | pp-opt | FileCheck %s

// What a model is written in.
// How a part declares its weights; what is not said is not printed.
// CHECK-LABEL: func.func private @part
// CHECK-SAME: {nn.weight = #nn.weight<"w" as "h.{l}.w" normal 2.000000e-02 transposed>}
// CHECK-SAME: {nn.weight = #nn.weight<"gain" one>}, %{{.*}} {nn.weight = #nn.weight<"wte" as "wte" normal 0.000000e+00 shared>}
// CHECK-SAME: {nn.data = "tokens"}
// CHECK-SAME: attributes {nn.again = "all", nn.attention = "heads", nn.layers = array<i64: 0, 2>, nn.part = "part", nn.per_layer}
func.func private @part(%w: tensor<4x4xf32> {nn.weight = #nn.weight<"w" as "h.{l}.w" normal 0.02 transposed>},
    %gain: tensor<4xf32> {nn.weight = #nn.weight<"gain" one>}, %wte: tensor<8x4xf32> {nn.weight = #nn.weight<"wte" as "wte" shared>},
    %tokens: tensor<1x8xi32> {nn.data = "tokens"}) attributes {nn.per_layer, nn.part = "part", nn.layers = array<i64: 0, 2>,
    nn.attention = "heads", nn.again = "all"} {
  return
}

// CHECK-LABEL: func.func @forward
func.func @forward(%tokens: tensor<2x8xi32>, %table: tensor<32x16xf32>, %rows: tensor<8x16xf32>, %w: tensor<16x32xf32>,
                   %b: tensor<32xf32>, %g: tensor<16xf32>) {
  // CHECK: %[[X:.*]] = nn.embedding %{{.*}}, %{{.*}} : (tensor<2x8xi32>, tensor<32x16xf32>) -> tensor<2x8x16xf32>
  %x = nn.embedding %tokens, %table : (tensor<2x8xi32>, tensor<32x16xf32>) -> tensor<2x8x16xf32>
  // CHECK: nn.positions %{{.*}}, %{{.*}} : (tensor<2x8xi32>, tensor<8x16xf32>) -> tensor<2x8x16xf32>
  %p = nn.positions %tokens, %rows : (tensor<2x8xi32>, tensor<8x16xf32>) -> tensor<2x8x16xf32>
  // CHECK: nn.linear %[[X]], %[[W:.*]] bias %{{.*}} : (tensor<2x8x16xf32>, tensor<16x32xf32>, tensor<32xf32>)
  %y = nn.linear %x, %w bias %b : (tensor<2x8x16xf32>, tensor<16x32xf32>, tensor<32xf32>) -> tensor<2x8x32xf32>
  // CHECK: nn.transpose %[[W]] : (tensor<16x32xf32>) -> tensor<32x16xf32>
  %wt = nn.transpose %w : (tensor<16x32xf32>) -> tensor<32x16xf32>
  // CHECK: nn.linear %[[X]], %{{.*}} {transposed = true} : (tensor<2x8x16xf32>, tensor<32x16xf32>) -> tensor<2x8x32xf32>
  %t = nn.linear %x, %wt {transposed = true} : (tensor<2x8x16xf32>, tensor<32x16xf32>) -> tensor<2x8x32xf32>
  // A stand-in for what runs elsewhere, and its gradients.
  // CHECK: nn.opaque %[[X]], %{{.*}} {flops = 1.000000e+03 : f64, keeps = 5 : i64} : (tensor<2x8x16xf32>, tensor<32xf32>) -> (tensor<2x8x16xf32>, tensor<5xf32>)
  %oy, %kept = nn.opaque %x, %b {flops = 1.0e3 : f64, keeps = 5 : i64} : (tensor<2x8x16xf32>, tensor<32xf32>) -> (tensor<2x8x16xf32>, tensor<5xf32>)
  // CHECK: nn.opaque_dw %{{.*}}, %{{.*}} into %{{.*}} {count = 32 : i64, flops = 1.000000e+03 : f64}
  %ow = nn.opaque_dw %oy, %kept into %b {count = 32 : i64, flops = 1.0e3 : f64} : (tensor<2x8x16xf32>, tensor<5xf32>, tensor<32xf32>) -> tensor<32xf32>
  // CHECK: nn.opaque_dx %{{.*}}, %{{.*}}, %{{.*}} {flops = 1.000000e+03 : f64}
  %ox = nn.opaque_dx %oy, %b, %kept {flops = 1.0e3 : f64} : (tensor<2x8x16xf32>, tensor<32xf32>, tensor<5xf32>) -> tensor<2x8x16xf32>
  // CHECK: nn.layernorm %[[X]], %[[G:.*]], %[[G]] : {{.*}} -> (tensor<2x8x16xf32>, tensor<2x8xf32>, tensor<2x8xf32>)
  %n, %mean, %r = nn.layernorm %x, %g, %g : (tensor<2x8x16xf32>, tensor<16xf32>, tensor<16xf32>)
                                         -> (tensor<2x8x16xf32>, tensor<2x8xf32>, tensor<2x8xf32>)
  // CHECK: nn.rmsnorm %[[X]], %[[G]] {epsilon = 9.765625E-4 : f64} : {{.*}} -> (tensor<2x8x16xf32>, tensor<2x8xf32>)
  %m, %s = nn.rmsnorm %x, %g {epsilon = 9.765625e-4 : f64} : (tensor<2x8x16xf32>, tensor<16xf32>)
                                                     -> (tensor<2x8x16xf32>, tensor<2x8xf32>)
  // A gain that is stored less 1.
  // CHECK: nn.rmsnorm %[[X]], %[[G]] {plus = 1 : i64} : {{.*}} -> (tensor<2x8x16xf32>, tensor<2x8xf32>)
  %mp, %sp = nn.rmsnorm %x, %g {plus = 1 : i64} : (tensor<2x8x16xf32>, tensor<16xf32>) -> (tensor<2x8x16xf32>, tensor<2x8xf32>)
  // CHECK: nn.rope %[[X]] {heads = 4 : i64, offset = 8 : i64, style = "pair"} : (tensor<2x8x16xf32>)
  %q = nn.rope %x {heads = 4 : i64, offset = 8 : i64, style = "pair"} : (tensor<2x8x16xf32>) -> tensor<2x8x16xf32>
  // CHECK: nn.split %{{.*}} {parts = 4 : i64} : (tensor<2x8x32xf32>)
  %k, %v, %a, %c = nn.split %y {parts = 4 : i64} : (tensor<2x8x32xf32>)
      -> (tensor<2x8x8xf32>, tensor<2x8x8xf32>, tensor<2x8x8xf32>, tensor<2x8x8xf32>)
  // CHECK: nn.attention %{{.*}} {causal = true, heads = 4 : i64, kv_heads = 2 : i64} : {{.*}} -> (tensor<2x8x16xf32>, tensor<2x4x8xf32>)
  %o, %lse = nn.attention %q, %k, %v {causal = true, heads = 4 : i64, kv_heads = 2 : i64}
      : (tensor<2x8x16xf32>, tensor<2x8x8xf32>, tensor<2x8x8xf32>) -> (tensor<2x8x16xf32>, tensor<2x4x8xf32>)
  // A window, a scale and a cap; behind the chunks, where documents begin.
  // CHECK: nn.attention %{{.*}}, %[[STARTS:.*]] {causal = true, heads = 4 : i64, kv_heads = 2 : i64, scale = 5.000000e-01 : f64, softcap = 3.000000e+01 : f64, window = 3 : i64} : {{.*}}, tensor<2x8xi32>)
  %od, %lsed = nn.attention %q, %k, %v, %tokens {causal = true, heads = 4 : i64, kv_heads = 2 : i64, scale = 0.5, softcap = 30.0, window = 3 : i64}
      : (tensor<2x8x16xf32>, tensor<2x8x8xf32>, tensor<2x8x8xf32>, tensor<2x8xi32>) -> (tensor<2x8x16xf32>, tensor<2x4x8xf32>)
  // With dropout the numbers of sequences stand behind them.
  // CHECK: nn.attention %{{.*}}, %[[STARTS]], %[[STARTS]] {causal = true, dropout = #nn.dropout<2.500000e-01 site 1 of 3 in 64>, heads = 4 : i64, kv_heads = 2 : i64} :
  %op, %lsep = nn.attention %q, %k, %v, %tokens, %tokens {causal = true, dropout = #nn.dropout<0.25 site 1 of 3 in 64>, heads = 4 : i64, kv_heads = 2 : i64}
      : (tensor<2x8x16xf32>, tensor<2x8x8xf32>, tensor<2x8x8xf32>, tensor<2x8xi32>, tensor<2x8xi32>) -> (tensor<2x8x16xf32>, tensor<2x4x8xf32>)
  // CHECK: nn.attention %{{.*}}, %[[STARTS]] {dropout = #nn.dropout<2.500000e-01 site 7 in 64>, heads = 4 : i64, kv_heads = 2 : i64} :
  %oq, %lseq = nn.attention %q, %k, %v, %tokens {dropout = #nn.dropout<0.25 site 7 in 64>, heads = 4 : i64, kv_heads = 2 : i64}
      : (tensor<2x8x16xf32>, tensor<2x8x8xf32>, tensor<2x8x8xf32>, tensor<2x8xi32>) -> (tensor<2x8x16xf32>, tensor<2x4x8xf32>)
  // CHECK: nn.rope %[[X]] {heads = 4 : i64, passing = 1 : i64} : (tensor<2x8x16xf32>)
  %qv = nn.rope %x {heads = 4 : i64, passing = 1 : i64} : (tensor<2x8x16xf32>) -> tensor<2x8x16xf32>
  // CHECK: nn.rope %{{.*}} from %[[STARTS]] {heads = 4 : i64} : (tensor<2x8x16xf32>, tensor<2x8xi32>) -> tensor<2x8x16xf32>
  %qd = nn.rope %q from %tokens {heads = 4 : i64} : (tensor<2x8x16xf32>, tensor<2x8xi32>) -> tensor<2x8x16xf32>
  // CHECK: nn.gelu %{{.*}} {exact = true} : (tensor<2x8x32xf32>) -> tensor<2x8x32xf32>
  %u = nn.gelu %y {exact = true} : (tensor<2x8x32xf32>) -> tensor<2x8x32xf32>
  // CHECK: nn.swiglu %{{.*}}, %{{.*}} : (tensor<2x8x32xf32>, tensor<2x8x32xf32>) -> tensor<2x8x32xf32>
  %h = nn.swiglu %y, %u : (tensor<2x8x32xf32>, tensor<2x8x32xf32>) -> tensor<2x8x32xf32>
  // CHECK: nn.swiglu %{{.*}} {packed = true} : (tensor<2x8x32xf32>) -> tensor<2x8x16xf32>
  %hh = nn.swiglu %y {packed = true} : (tensor<2x8x32xf32>) -> tensor<2x8x16xf32>
  // CHECK: nn.glu_bwd %{{.*}}, %{{.*}} {packed = true, plus = 1.000000e+00 : f64} : (tensor<2x8x16xf32>, tensor<2x8x32xf32>) -> tensor<2x8x32xf32>
  %dhh = nn.glu_bwd %hh, %y {packed = true, plus = 1.0} : (tensor<2x8x16xf32>, tensor<2x8x32xf32>) -> tensor<2x8x32xf32>
  // CHECK: nn.glu %{{.*}}, %{{.*}} {activation = "gelu_tanh", limit = 7.000000e+00 : f64, plus = 1.000000e+00 : f64} : (tensor<2x8x32xf32>, tensor<2x8x32xf32>)
  %hg = nn.glu %y, %u {activation = "gelu_tanh", limit = 7.0, plus = 1.0} : (tensor<2x8x32xf32>, tensor<2x8x32xf32>) -> tensor<2x8x32xf32>
  // CHECK: nn.scale %{{.*}} {factor = 4.000000e+00 : f64} : (tensor<2x8x32xf32>) -> tensor<2x8x32xf32>
  %hs = nn.scale %h {factor = 4.0} : (tensor<2x8x32xf32>) -> tensor<2x8x32xf32>
  // CHECK: nn.add %{{.*}}, %{{.*}} : (tensor<2x8x32xf32>, tensor<2x8x32xf32>) -> tensor<2x8x32xf32>
  %z = nn.add %h, %t : (tensor<2x8x32xf32>, tensor<2x8x32xf32>) -> tensor<2x8x32xf32>
  // CHECK: nn.cross_entropy %{{.*}}, %{{.*}} : (tensor<2x8x32xf32>, tensor<2x8xi32>) -> tensor<1xf32>
  %loss = nn.cross_entropy %z, %tokens : (tensor<2x8x32xf32>, tensor<2x8xi32>) -> tensor<1xf32>
  // CHECK: nn.cross_entropy %{{.*}}, %{{.*}} {softcap = 3.000000e+01 : f64} : (tensor<2x8x32xf32>, tensor<2x8xi32>) -> tensor<1xf32>
  %capped = nn.cross_entropy %z, %tokens {softcap = 30.0} : (tensor<2x8x32xf32>, tensor<2x8xi32>) -> tensor<1xf32>
  // A z-loss lies behind the loss.
  // CHECK: nn.cross_entropy %{{.*}}, %{{.*}} {z_loss = 1.250000e-01 : f64} : (tensor<2x8x32xf32>, tensor<2x8xi32>) -> tensor<2xf32>
  %both = nn.cross_entropy %z, %tokens {z_loss = 0.125} : (tensor<2x8x32xf32>, tensor<2x8xi32>) -> tensor<2xf32>
  return
}

// Gradients: sums continue `into` a tensor; sums are f32 for bf16.
// CHECK-LABEL: func.func @backward
func.func @backward(%x: tensor<2x8x16xbf16>, %w: tensor<16x16xbf16>, %g: tensor<16xbf16>, %stat: tensor<2x8xf32>,
                    %dw: tensor<16x16xf32>, %db: tensor<16xf32>, %tokens: tensor<2x8xi32>) {
  // CHECK: nn.linear_dx %[[X:.*]], %{{.*}} into %[[X]] : (tensor<2x8x16xbf16>, tensor<16x16xbf16>, tensor<2x8x16xbf16>)
  %0 = nn.linear_dx %x, %w into %x : (tensor<2x8x16xbf16>, tensor<16x16xbf16>, tensor<2x8x16xbf16>) -> tensor<2x8x16xbf16>
  // CHECK: nn.linear_dw %[[X]], %[[X]] : (tensor<2x8x16xbf16>, tensor<2x8x16xbf16>) -> tensor<16x16xf32>
  %1 = nn.linear_dw %x, %x : (tensor<2x8x16xbf16>, tensor<2x8x16xbf16>) -> tensor<16x16xf32>
  // CHECK: nn.linear_dw %[[X]], %[[X]] into %{{.*}} {transposed = true} : {{.*}} -> tensor<16x16xf32>
  %2 = nn.linear_dw %x, %x into %dw {transposed = true}
      : (tensor<2x8x16xbf16>, tensor<2x8x16xbf16>, tensor<16x16xf32>) -> tensor<16x16xf32>
  // CHECK: nn.bias_dw %[[X]] into %{{.*}} : (tensor<2x8x16xbf16>, tensor<16xf32>) -> tensor<16xf32>
  %3 = nn.bias_dw %x into %db : (tensor<2x8x16xbf16>, tensor<16xf32>) -> tensor<16xf32>
  // CHECK: nn.linear_gelu %[[X]], %{{.*}} bias %{{.*}} : {{.*}} -> (tensor<2x8x16xbf16>, tensor<2x8x16xbf16>)
  %p:2 = nn.linear_gelu %x, %w bias %g
      : (tensor<2x8x16xbf16>, tensor<16x16xbf16>, tensor<16xbf16>) -> (tensor<2x8x16xbf16>, tensor<2x8x16xbf16>)
  // CHECK: nn.linear_add %[[X]], %{{.*}} bias %{{.*}} to %[[X]] : {{.*}} -> tensor<2x8x16xbf16>
  %m = nn.linear_add %x, %w bias %g to %x
      : (tensor<2x8x16xbf16>, tensor<16x16xbf16>, tensor<16xbf16>, tensor<2x8x16xbf16>) -> tensor<2x8x16xbf16>
  // CHECK: nn.linear_add %[[X]], %{{.*}} to %[[X]] {transposed = true} : {{.*}} -> tensor<2x8x16xbf16>
  %n = nn.linear_add %x, %w to %x {transposed = true}
      : (tensor<2x8x16xbf16>, tensor<16x16xbf16>, tensor<2x8x16xbf16>) -> tensor<2x8x16xbf16>
  // CHECK: nn.linear_dx_gelu %[[X]], %{{.*}}, %[[X]] {transposed = true} : {{.*}} -> tensor<2x8x16xbf16>
  %q = nn.linear_dx_gelu %x, %w, %x {transposed = true}
      : (tensor<2x8x16xbf16>, tensor<16x16xbf16>, tensor<2x8x16xbf16>) -> tensor<2x8x16xbf16>
  // CHECK: nn.linear_dw_bias %[[X]], %[[X]] into %{{.*}}, %{{.*}} : {{.*}} -> (tensor<16x16xf32>, tensor<16xf32>)
  %r:2 = nn.linear_dw_bias %x, %x into %dw, %db
      : (tensor<2x8x16xbf16>, tensor<2x8x16xbf16>, tensor<16x16xf32>, tensor<16xf32>) -> (tensor<16x16xf32>, tensor<16xf32>)
  // CHECK: nn.linear_dw_bias %[[X]], %[[X]] : {{.*}} -> (tensor<16x16xf32>, tensor<16xf32>)
  %s:2 = nn.linear_dw_bias %x, %x : (tensor<2x8x16xbf16>, tensor<2x8x16xbf16>) -> (tensor<16x16xf32>, tensor<16xf32>)
  // CHECK: nn.embedding_dw %{{.*}}, %[[X]] {vocab = 32 : i64} : (tensor<2x8xi32>, tensor<2x8x16xbf16>) -> tensor<32x16xf32>
  %4 = nn.embedding_dw %tokens, %x {vocab = 32 : i64} : (tensor<2x8xi32>, tensor<2x8x16xbf16>) -> tensor<32x16xf32>
  // CHECK: nn.positions_dw %[[X]] {positions = 64 : i64} : (tensor<2x8x16xbf16>) -> tensor<64x16xf32>
  %5 = nn.positions_dw %x {positions = 64 : i64} : (tensor<2x8x16xbf16>) -> tensor<64x16xf32>
  // CHECK: nn.layernorm_rebuild %[[X]], %{{.*}} : {{.*}} -> tensor<2x8x16xbf16>
  %6 = nn.layernorm_rebuild %x, %g, %g, %stat, %stat
      : (tensor<2x8x16xbf16>, tensor<16xbf16>, tensor<16xbf16>, tensor<2x8xf32>, tensor<2x8xf32>) -> tensor<2x8x16xbf16>
  // CHECK: nn.layernorm_bwd %[[X]], %[[X]], %{{.*}} into %[[X]] : {{.*}} -> (tensor<2x8x16xbf16>, tensor<16xf32>, tensor<16xf32>)
  %7:3 = nn.layernorm_bwd %x, %x, %g, %stat, %stat into %x
      : (tensor<2x8x16xbf16>, tensor<2x8x16xbf16>, tensor<16xbf16>, tensor<2x8xf32>, tensor<2x8xf32>, tensor<2x8x16xbf16>)
     -> (tensor<2x8x16xbf16>, tensor<16xf32>, tensor<16xf32>)
  // CHECK: nn.rmsnorm_rebuild %[[X]], %{{.*}} : {{.*}} -> tensor<2x8x16xbf16>
  %8 = nn.rmsnorm_rebuild %x, %g, %stat : (tensor<2x8x16xbf16>, tensor<16xbf16>, tensor<2x8xf32>) -> tensor<2x8x16xbf16>
  // CHECK: nn.rmsnorm_bwd %[[X]], %[[X]], %{{.*}} : {{.*}} -> (tensor<2x8x16xbf16>, tensor<16xf32>)
  %9:2 = nn.rmsnorm_bwd %x, %x, %g, %stat
      : (tensor<2x8x16xbf16>, tensor<2x8x16xbf16>, tensor<16xbf16>, tensor<2x8xf32>) -> (tensor<2x8x16xbf16>, tensor<16xf32>)
  // CHECK: nn.rmsnorm_rebuild %[[X]], {{.*}} {plus = 1 : i64} :
  %r8 = nn.rmsnorm_rebuild %x, %g, %stat {plus = 1 : i64} : (tensor<2x8x16xbf16>, tensor<16xbf16>, tensor<2x8xf32>) -> tensor<2x8x16xbf16>
  // CHECK: nn.rmsnorm_bwd %[[X]], %[[X]], {{.*}} into %[[X]] {plus = 1 : i64} :
  %r9:2 = nn.rmsnorm_bwd %x, %x, %g, %stat into %x {plus = 1 : i64}
      : (tensor<2x8x16xbf16>, tensor<2x8x16xbf16>, tensor<16xbf16>, tensor<2x8xf32>, tensor<2x8x16xbf16>)
     -> (tensor<2x8x16xbf16>, tensor<16xf32>)
  // CHECK: nn.gelu_bwd %[[X]], %[[X]]
  %11 = nn.gelu_bwd %x, %x : (tensor<2x8x16xbf16>, tensor<2x8x16xbf16>) -> tensor<2x8x16xbf16>
  // CHECK: nn.swiglu_bwd %[[X]], %[[X]], %[[X]]
  %12:2 = nn.swiglu_bwd %x, %x, %x : (tensor<2x8x16xbf16>, tensor<2x8x16xbf16>, tensor<2x8x16xbf16>)
      -> (tensor<2x8x16xbf16>, tensor<2x8x16xbf16>)
  // CHECK: nn.glu_bwd %[[X]], %[[X]], %[[X]] {alpha = 1.702000e+00 : f64, limit = 7.000000e+00 : f64, plus = 1.000000e+00 : f64}
  %g12:2 = nn.glu_bwd %x, %x, %x {alpha = 1.702, limit = 7.0, plus = 1.0}
      : (tensor<2x8x16xbf16>, tensor<2x8x16xbf16>, tensor<2x8x16xbf16>) -> (tensor<2x8x16xbf16>, tensor<2x8x16xbf16>)
  // CHECK: nn.cross_entropy_bwd %[[X]], %{{.*}} {scale = 6.250000e-02 : f64} : {{.*}} -> (tensor<2x8x16xbf16>, tensor<1xf32>)
  %13:2 = nn.cross_entropy_bwd %x, %tokens {scale = 0.0625 : f64} : (tensor<2x8x16xbf16>, tensor<2x8xi32>)
      -> (tensor<2x8x16xbf16>, tensor<1xf32>)
  return
}

// Along a sequence.
// CHECK-LABEL: func.func @scans
func.func @scans(%q: tensor<2x8x10xbf16>, %v: tensor<2x8x12xbf16>, %g: tensor<2x8x4xf32>, %w: tensor<12x1x3xbf16>,
                 %dw: tensor<12x1x3xf32>, %starts: tensor<2x8xi32>) {
  // CHECK: %[[Y:.*]] = nn.conv %[[V:.*]], %[[W:.*]] : (tensor<2x8x12xbf16>, tensor<12x1x3xbf16>) -> tensor<2x8x12xbf16>
  %y = nn.conv %v, %w : (tensor<2x8x12xbf16>, tensor<12x1x3xbf16>) -> tensor<2x8x12xbf16>
  // CHECK: nn.conv %[[V]], %[[W]] from %[[STARTS:.*]] : (
  %y2 = nn.conv %v, %w from %starts : (tensor<2x8x12xbf16>, tensor<12x1x3xbf16>, tensor<2x8xi32>) -> tensor<2x8x12xbf16>
  // CHECK: nn.conv_dx %[[Y]], %[[W]] from %[[STARTS]] : (
  %dx = nn.conv_dx %y, %w from %starts : (tensor<2x8x12xbf16>, tensor<12x1x3xbf16>, tensor<2x8xi32>) -> tensor<2x8x12xbf16>
  // CHECK: nn.conv_dw %[[V]], %[[Y]] {taps = 3 : i64} : (tensor<2x8x12xbf16>, tensor<2x8x12xbf16>) -> tensor<12x1x3xf32>
  %dw1 = nn.conv_dw %v, %y {taps = 3 : i64} : (tensor<2x8x12xbf16>, tensor<2x8x12xbf16>) -> tensor<12x1x3xf32>
  // CHECK: nn.conv_dw %[[V]], %[[Y]] from %[[STARTS]] into %{{.*}} {taps = 3 : i64} : (
  %dw2 = nn.conv_dw %v, %y from %starts into %dw {taps = 3 : i64} : (tensor<2x8x12xbf16>, tensor<2x8x12xbf16>, tensor<2x8xi32>, tensor<12x1x3xf32>) -> tensor<12x1x3xf32>
  // CHECK: nn.scan %[[Q:.*]], %[[Q]], %[[V]], %[[G:.*]], %[[G]] {delta = true, heads = 4 : i64, key_heads = 2 : i64} : (
  %o = nn.scan %q, %q, %v, %g, %g {delta = true, heads = 4 : i64, key_heads = 2 : i64} : (tensor<2x8x10xbf16>, tensor<2x8x10xbf16>, tensor<2x8x12xbf16>, tensor<2x8x4xf32>, tensor<2x8x4xf32>) -> tensor<2x8x12xbf16>
  // CHECK: nn.scan %[[Q]], %[[Q]], %[[V]], %{{.*}}, %[[G]] {channels = true, heads = 4 : i64, key_heads = 2 : i64}
  %each = arith.constant dense<0.0> : tensor<2x8x20xf32>
  %oc = nn.scan %q, %q, %v, %each, %g {channels = true, heads = 4 : i64, key_heads = 2 : i64} : (tensor<2x8x10xbf16>, tensor<2x8x10xbf16>, tensor<2x8x12xbf16>, tensor<2x8x20xf32>, tensor<2x8x4xf32>) -> tensor<2x8x12xbf16>
  // CHECK: nn.scan_bwd %{{.*}}, %[[Q]], %[[Q]], %[[V]], %[[G]], %[[G]] from %[[STARTS]] {heads = 4 : i64, key_heads = 1 : i64} : (
  %b:5 = nn.scan_bwd %o, %q, %q, %v, %g, %g from %starts {heads = 4 : i64, key_heads = 1 : i64} : (tensor<2x8x12xbf16>, tensor<2x8x10xbf16>, tensor<2x8x10xbf16>, tensor<2x8x12xbf16>, tensor<2x8x4xf32>, tensor<2x8x4xf32>, tensor<2x8xi32>) -> (tensor<2x8x10xbf16>, tensor<2x8x10xbf16>, tensor<2x8x12xbf16>, tensor<2x8x4xf32>, tensor<2x8x4xf32>)
  return
}

// Columns, copies, sums and updates.
// CHECK-LABEL: func.func @memory
func.func @memory(%x: tensor<2x8x16xf64>, %w: tensor<16x16xbf16>, %dw: tensor<16x16xf32>, %norm: tensor<1xf64>) {
  // CHECK: nn.slice_columns %{{.*}} {start = 4 : i64, width = 8 : i64} : (tensor<2x8x16xf64>) -> tensor<2x8x8xf64>
  %0 = nn.slice_columns %x {start = 4 : i64, width = 8 : i64} : (tensor<2x8x16xf64>) -> tensor<2x8x8xf64>
  // CHECK: nn.slice_columns %{{.*}} {periods = 4 : i64, start = 1 : i64, width = 2 : i64} : (tensor<2x8x16xf64>) -> tensor<2x8x8xf64>
  %p = nn.slice_columns %x {periods = 4 : i64, start = 1 : i64, width = 2 : i64} : (tensor<2x8x16xf64>) -> tensor<2x8x8xf64>
  // CHECK: nn.place_columns %{{.*}} {periods = 4 : i64, start = 1 : i64, total = 16 : i64}
  %px = nn.place_columns %p {periods = 4 : i64, start = 1 : i64, total = 16 : i64} : (tensor<2x8x8xf64>) -> tensor<2x8x16xf64>
  // CHECK: nn.split %{{.*}} {periods = 2 : i64, widths = array<i64: 5, 3>} : (tensor<2x8x16xf64>) -> (tensor<2x8x10xf64>, tensor<2x8x6xf64>)
  %uneven:2 = nn.split %x {periods = 2 : i64, widths = array<i64: 5, 3>} : (tensor<2x8x16xf64>) -> (tensor<2x8x10xf64>, tensor<2x8x6xf64>)
  // Behind each run of 5 columns its 3 of the other, or 2 that all runs have, or zeros.
  // CHECK: nn.concat %{{.*}}, %{{.*}} {periods = 2 : i64} : (tensor<2x8x10xf64>, tensor<2x8x6xf64>) -> tensor<2x8x16xf64>
  %both = nn.concat %uneven#0, %uneven#1 {periods = 2 : i64} : (tensor<2x8x10xf64>, tensor<2x8x6xf64>) -> tensor<2x8x16xf64>
  // CHECK: %[[SUM:.*]] = nn.sum_columns %{{.*}} {periods = 4 : i64, start = 1 : i64, width = 2 : i64} : (tensor<2x8x16xf64>) -> tensor<2x8x2xf64>
  %sum = nn.sum_columns %x {periods = 4 : i64, start = 1 : i64, width = 2 : i64} : (tensor<2x8x16xf64>) -> tensor<2x8x2xf64>
  // CHECK: nn.concat %{{.*}}, %[[SUM]] {periods = 2 : i64, shared = true} : (tensor<2x8x10xf64>, tensor<2x8x2xf64>) -> tensor<2x8x14xf64>
  %shared = nn.concat %uneven#0, %sum {periods = 2 : i64, shared = true} : (tensor<2x8x10xf64>, tensor<2x8x2xf64>) -> tensor<2x8x14xf64>
  // CHECK: nn.pad %{{.*}} {columns = 3 : i64, periods = 2 : i64} : (tensor<2x8x10xf64>) -> tensor<2x8x16xf64>
  %padded = nn.pad %uneven#0 {columns = 3 : i64, periods = 2 : i64} : (tensor<2x8x10xf64>) -> tensor<2x8x16xf64>
  // CHECK: nn.place_columns %[[SUM]] {periods = 2 : i64, shared = true, start = 1 : i64, total = 8 : i64, zeros = true}
  %many = nn.place_columns %sum {periods = 2 : i64, shared = true, start = 1 : i64, total = 8 : i64, zeros = true} : (tensor<2x8x2xf64>) -> tensor<2x8x8xf64>
  // A table of two pairs turns the first four columns of each head, whose width may be odd then.
  // CHECK: nn.rope %{{.*}} {heads = 2 : i64, table = array<f64: 1.000000e+00, 1.000000e+00, 5.000000e-01>}
  %t = nn.rope %uneven#0 {heads = 2 : i64, table = array<f64: 1.0, 1.0, 0.5>} : (tensor<2x8x10xf64>) -> tensor<2x8x10xf64>
  // CHECK: nn.place_columns %{{.*}} into %{{.*}} {start = 8 : i64, total = 16 : i64}
  %1 = nn.place_columns %0 into %x {start = 8 : i64, total = 16 : i64} : (tensor<2x8x8xf64>, tensor<2x8x16xf64>) -> tensor<2x8x16xf64>
  // Rows of both sequences together: a run may have some of each.
  // CHECK: %[[RUNS:.*]]:2 = nn.split_rows %{{.*}} {counts = array<i64: 10, 6>}
  %runs:2 = nn.split_rows %x {counts = array<i64: 10, 6>} : (tensor<2x8x16xf64>) -> (tensor<1x10x16xf64>, tensor<1x6x16xf64>)
  // CHECK: nn.join_rows %[[RUNS]]#0, %[[RUNS]]#1 {batch = 2 : i64}
  %joined = nn.join_rows %runs#0, %runs#1 {batch = 2 : i64} : (tensor<1x10x16xf64>, tensor<1x6x16xf64>) -> tensor<2x8x16xf64>
  // CHECK: nn.rows %{{.*}} {count = 6 : i64, start = 10 : i64}
  %rows = nn.rows %joined {start = 10 : i64, count = 6 : i64} : (tensor<2x8x16xf64>) -> tensor<1x6x16xf64>
  // CHECK: nn.copy %{{.*}} into %{{.*}} : (tensor<16x16xf32>, tensor<16x16xf32>) -> tensor<16x16xf32>
  %2 = nn.copy %dw into %dw : (tensor<16x16xf32>, tensor<16x16xf32>) -> tensor<16x16xf32>
  // CHECK: nn.zero : tensor<16x16xf32>
  %3 = nn.zero : tensor<16x16xf32>
  // CHECK: nn.accumulate %{{.*}} into %{{.*}} : (tensor<16x16xf32>, tensor<16x16xf32>) -> tensor<16x16xf32>
  %4 = nn.accumulate %3 into %dw : (tensor<16x16xf32>, tensor<16x16xf32>) -> tensor<16x16xf32>
  // CHECK: nn.sum_squares %{{.*}} : (tensor<16x16xf32>) -> tensor<1xf64>
  %5 = nn.sum_squares %4 : (tensor<16x16xf32>) -> tensor<1xf64>
  // CHECK: nn.adamw %{{.*}} norm %{{.*}} into %{{.*}}, %{{.*}}, %{{.*}}, %{{.*}} {decay = true}
  %6:4 = nn.adamw %4 norm %5 into %w, %dw, %dw, %3 {decay = true}
      : (tensor<16x16xf32>, tensor<1xf64>, tensor<16x16xbf16>, tensor<16x16xf32>, tensor<16x16xf32>, tensor<16x16xf32>)
     -> (tensor<16x16xbf16>, tensor<16x16xf32>, tensor<16x16xf32>, tensor<16x16xf32>)
  // Of a tensor that begins at 32 a device along `data` has what is in its shard of 160 elements.
  // CHECK: nn.adamw %{{.*}} {flat = array<i64: 32, 160, 2>} : (tensor<16x16xf32>, tensor<16x16xf32>, tensor<160xf32>
  %shard = nn.zero : tensor<160xf32>
  %flat:3 = nn.adamw %4 into %dw, %shard, %shard {flat = array<i64: 32, 160, 2>}
    : (tensor<16x16xf32>, tensor<16x16xf32>, tensor<160xf32>, tensor<160xf32>)
    -> (tensor<16x16xf32>, tensor<160xf32>, tensor<160xf32>)
  // CHECK: nn.sum_squares %{{.*}} {flat = array<i64: 32, 160, 2>} : (tensor<16x16xf32>)
  %counted = nn.sum_squares %4 {flat = array<i64: 32, 160, 2>} : (tensor<16x16xf32>) -> tensor<1xf64>
  // To the sum of its shard a device adds what it has there of the tensor; whoever reads the sum is told its elements.
  // CHECK: nn.accumulate %{{.*}} into %{{.*}} {flat = array<i64: 32, 160, 2>} : (tensor<16x16xbf16>, tensor<160xf32>) -> tensor<160xf32>
  %added = nn.accumulate %w into %shard {flat = array<i64: 32, 160, 2>} : (tensor<16x16xbf16>, tensor<160xf32>) -> tensor<160xf32>
  // CHECK: nn.sum_squares %{{.*}} {flat = array<i64: 32, 160, 2, 256>} : (tensor<160xf32>)
  %packed = nn.sum_squares %added {flat = array<i64: 32, 160, 2, 256>} : (tensor<160xf32>) -> tensor<1xf64>
  // CHECK: nn.sgd %{{.*}} into %{{.*}}, %{{.*}} {flat = array<i64: 32, 160, 2, 256>} : (tensor<160xf32>, tensor<16x16xf32>, tensor<160xf32>)
  %steered:2 = nn.sgd %added into %dw, %shard {flat = array<i64: 32, 160, 2, 256>}
    : (tensor<160xf32>, tensor<16x16xf32>, tensor<160xf32>) -> (tensor<16x16xf32>, tensor<160xf32>)
  // CHECK: nn.adamw %{{.*}} into %{{.*}}, %{{.*}}, %{{.*}} : (tensor<16x16xf32>, tensor<16x16xf32>
  %7:3 = nn.adamw %4 into %dw, %dw, %3 : (tensor<16x16xf32>, tensor<16x16xf32>, tensor<16x16xf32>, tensor<16x16xf32>)
      -> (tensor<16x16xf32>, tensor<16x16xf32>, tensor<16x16xf32>)
  return
}

// Attention over chunks of keys: parts and their merge, and gradients that go on into sums.
// CHECK-LABEL: func.func @chunks
func.func @chunks(%q: tensor<2x8x16xbf16>, %k: tensor<2x6x8xbf16>, %m: tensor<2x8x8xbf16>, %sum: tensor<2x6x8xf32>) {
  // CHECK: nn.attention %[[Q:.*]], %[[K:.*]], %[[K]], %[[M:.*]], %[[M]] {causal = true, heads = 4 : i64, kv_heads = 2 : i64, offset = 6 : i64} :
  %o, %lse = nn.attention %q, %k, %k, %m, %m {causal = true, heads = 4 : i64, kv_heads = 2 : i64, offset = 6 : i64}
      : (tensor<2x8x16xbf16>, tensor<2x6x8xbf16>, tensor<2x6x8xbf16>, tensor<2x8x8xbf16>, tensor<2x8x8xbf16>)
     -> (tensor<2x8x16xbf16>, tensor<2x4x8xf32>)
  // CHECK: nn.attention %[[Q]], %[[K]], %[[K]] {heads = 4 : i64, kv_heads = 2 : i64, kv_offsets = array<i64: 14>} :
  %p, %l = nn.attention %q, %k, %k {heads = 4 : i64, kv_heads = 2 : i64, kv_offsets = array<i64: 14>}
      : (tensor<2x8x16xbf16>, tensor<2x6x8xbf16>, tensor<2x6x8xbf16>) -> (tensor<2x8x16xbf16>, tensor<2x4x8xf32>)
  // CHECK: nn.attention_merge %{{.*}}, %{{.*}}, %{{.*}}, %{{.*}} {heads = 4 : i64} :
  %w, %all = nn.attention_merge %o, %lse, %p, %l {heads = 4 : i64}
      : (tensor<2x8x16xbf16>, tensor<2x4x8xf32>, tensor<2x8x16xbf16>, tensor<2x4x8xf32>)
     -> (tensor<2x8x16xbf16>, tensor<2x4x8xf32>)
  // CHECK: %[[D:.*]] = nn.attention_delta %[[Q]], %{{.*}} {heads = 4 : i64} : {{.*}} -> tensor<2x4x8xf32>
  %d = nn.attention_delta %q, %w {heads = 4 : i64} : (tensor<2x8x16xbf16>, tensor<2x8x16xbf16>) -> tensor<2x4x8xf32>
  // CHECK: %[[DQ:.*]], %{{.*}} = nn.attention_bwd %[[Q]], %[[Q]], %{{.*}}, %[[D]], %[[K]], %[[K]] {heads = 4 : i64, {{.*}}} : {{.*}} -> (tensor<2x8x16xbf16>, tensor<2x6x8xbf16>, tensor<2x6x8xbf16>)
  %0:3 = nn.attention_bwd %q, %q, %all, %d, %k, %k {heads = 4 : i64, kv_heads = 2 : i64}
      : (tensor<2x8x16xbf16>, tensor<2x8x16xbf16>, tensor<2x4x8xf32>, tensor<2x4x8xf32>, tensor<2x6x8xbf16>, tensor<2x6x8xbf16>)
     -> (tensor<2x8x16xbf16>, tensor<2x6x8xbf16>, tensor<2x6x8xbf16>)
  // CHECK: nn.attention_bwd %[[Q]], {{.*}} into %[[DQ]] into_kv %{{.*}}, %{{.*}} {{{.*}}sums = true} : {{.*}} -> (tensor<2x8x16xbf16>, tensor<2x6x8xf32>, tensor<2x6x8xf32>)
  %1:3 = nn.attention_bwd %q, %q, %all, %d, %k, %k into %0#0 into_kv %sum, %sum {heads = 4 : i64, kv_heads = 2 : i64, sums = true}
      : (tensor<2x8x16xbf16>, tensor<2x8x16xbf16>, tensor<2x4x8xf32>, tensor<2x4x8xf32>, tensor<2x6x8xbf16>, tensor<2x6x8xbf16>,
         tensor<2x8x16xbf16>, tensor<2x6x8xf32>, tensor<2x6x8xf32>) -> (tensor<2x8x16xbf16>, tensor<2x6x8xf32>, tensor<2x6x8xf32>)
  // CHECK: nn.round %{{.*}} to bf16 : (tensor<2x6x8xf32>) -> tensor<2x6x8xbf16>
  %2 = nn.round %1#1 to bf16 : (tensor<2x6x8xf32>) -> tensor<2x6x8xbf16>
  // CHECK: nn.accumulate %{{.*}} into %{{.*}} : (tensor<2x6x8xbf16>, tensor<2x6x8xf32>) -> tensor<2x6x8xf32>
  %3 = nn.accumulate %2 into %sum : (tensor<2x6x8xbf16>, tensor<2x6x8xf32>) -> tensor<2x6x8xf32>
  return
}

// Cross-entropy over shards of the vocabulary.
// CHECK-LABEL: func.func @shards
func.func @shards(%z: tensor<2x8x16xbf16>, %targets: tensor<2x8xi32>) {
  // CHECK: %[[S:.*]] = nn.cross_entropy_stats %[[Z:.*]], %[[T:.*]] {first = 16 : i64, vocab = 48 : i64} : {{.*}} -> tensor<2x8x3xf32>
  %s = nn.cross_entropy_stats %z, %targets {first = 16 : i64, vocab = 48 : i64} : (tensor<2x8x16xbf16>, tensor<2x8xi32>) -> tensor<2x8x3xf32>
  // CHECK: %[[M:.*]] = nn.cross_entropy_merge %[[S]], %[[S]], %[[S]] :
  %m = nn.cross_entropy_merge %s, %s, %s : (tensor<2x8x3xf32>, tensor<2x8x3xf32>, tensor<2x8x3xf32>) -> tensor<2x8x3xf32>
  // CHECK: nn.cross_entropy_loss %[[M]], %[[T]] {scale = 5.000000e-01 : f64} : {{.*}} -> tensor<1xf32>
  %l = nn.cross_entropy_loss %m, %targets {scale = 0.5 : f64} : (tensor<2x8x3xf32>, tensor<2x8xi32>) -> tensor<1xf32>
  // A cap is that of the statistics and of the gradient.
  // CHECK: nn.cross_entropy_stats {{.*}} {softcap = 3.000000e+01 : f64, vocab = 16 : i64}
  %sc = nn.cross_entropy_stats %z, %targets {softcap = 30.0, vocab = 16 : i64} : (tensor<2x8x16xbf16>, tensor<2x8xi32>) -> tensor<2x8x3xf32>
  // CHECK: nn.cross_entropy_dz %[[Z]], %[[T]], %[[M]] {scale = 5.000000e-01 : f64, softcap = 3.000000e+01 : f64, vocab = 16 : i64}
  %dc = nn.cross_entropy_dz %z, %targets, %m {scale = 0.5 : f64, softcap = 30.0, vocab = 16 : i64}
      : (tensor<2x8x16xbf16>, tensor<2x8xi32>, tensor<2x8x3xf32>) -> tensor<2x8x16xbf16>
  // CHECK: nn.cross_entropy_dz %[[Z]], %[[T]], %[[M]] {first = 16 : i64, scale = 5.000000e-01 : f64, vocab = 48 : i64} : {{.*}} -> tensor<2x8x16xbf16>
  %dz = nn.cross_entropy_dz %z, %targets, %m {first = 16 : i64, scale = 0.5 : f64, vocab = 48 : i64}
      : (tensor<2x8x16xbf16>, tensor<2x8xi32>, tensor<2x8x3xf32>) -> tensor<2x8x16xbf16>
  return
}

// What devices of a rank exchange; a weight that is cut over them.
// CHECK-LABEL: func.func @exchanges
// CHECK-SAME: {nn.weight = #nn.weight<"q" as "h.{l}.q" normal 2.000000e-02 transposed cut <[16, 192] dim 1 runs 3>>}
// CHECK-SAME: {nn.weight = #nn.weight<"k" one cut <[16, 8] dim 1 copies 2>>}
func.func @exchanges(%x: tensor<2x8x16xf32>, %s: tensor<4xf32>, %rows: tensor<2x8xi32>,
                     %q: tensor<16x48xf32> {nn.weight = #nn.weight<"q" as "h.{l}.q" normal 0.02 transposed cut <[16, 192] dim 1 runs 3>>},
                     %k: tensor<16x4xf32> {nn.weight = #nn.weight<"k" one cut <[16, 8] dim 1 copies 2>>}) {
  // CHECK: nn.spread %{{.*}} over <tensor> :
  %0 = nn.spread %x over <tensor> : (tensor<2x8x16xf32>) -> tensor<2x8x16xf32>
  // CHECK: nn.all_reduce %{{.*}} over <tensor, context> {neighbours = 2 : i64} :
  %1 = nn.all_reduce %0 over <tensor, context> {neighbours = 2 : i64} : (tensor<2x8x16xf32>) -> tensor<2x8x16xf32>
  // CHECK: nn.all_gather %{{.*}} over <tensor> {dim = 1 : i64, members = 4 : i64} : {{.*}} -> tensor<2x32x16xf32>
  %2 = nn.all_gather %1 over <tensor> {dim = 1 : i64, members = 4 : i64} : (tensor<2x8x16xf32>) -> tensor<2x32x16xf32>
  // CHECK: nn.gather_runs %{{.*}} over <context> {kept, members = 2 : i64} : {{.*}} -> tensor<2x16x16xf32>
  %g = nn.gather_runs %0 over <context> {kept, members = 2 : i64} : (tensor<2x8x16xf32>) -> tensor<2x16x16xf32>
  // CHECK: nn.scatter_runs %{{.*}} over <context> {members = 2 : i64} : {{.*}} -> tensor<2x8x16xf32>
  %h = nn.scatter_runs %g over <context> {members = 2 : i64} : (tensor<2x16x16xf32>) -> tensor<2x8x16xf32>
  // CHECK: nn.runs_to_heads %{{.*}} over <context> {members = 2 : i64} : {{.*}} -> tensor<2x16x8xf32>
  %i = nn.runs_to_heads %h over <context> {members = 2 : i64} : (tensor<2x8x16xf32>) -> tensor<2x16x8xf32>
  // CHECK: nn.heads_to_runs %{{.*}} over <context> {kept, members = 2 : i64} : {{.*}} -> tensor<2x8x16xf32>
  %j = nn.heads_to_runs %i over <context> {kept, members = 2 : i64} : (tensor<2x16x8xf32>) -> tensor<2x8x16xf32>
  // CHECK: nn.repeat_heads %{{.*}} {heads = 2 : i64, times = 3 : i64} : (tensor<2x8x16xf32>) -> tensor<2x8x48xf32>
  %o = nn.repeat_heads %h {heads = 2 : i64, times = 3 : i64} : (tensor<2x8x16xf32>) -> tensor<2x8x48xf32>
  // CHECK: nn.sum_heads %{{.*}} {heads = 2 : i64, times = 3 : i64} : (tensor<2x8x48xf32>) -> tensor<2x8x16xf32>
  %p = nn.sum_heads %o {heads = 2 : i64, times = 3 : i64} : (tensor<2x8x48xf32>) -> tensor<2x8x16xf32>
  // CHECK: nn.take_piece %{{.*}} over <context> {members = 2 : i64} : (tensor<4xf32>) -> tensor<2xf32>
  %t = nn.take_piece %s over <context> {members = 2 : i64} : (tensor<4xf32>) -> tensor<2xf32>
  // CHECK: nn.place_piece %{{.*}} into %{{.*}} over <context> {members = 2 : i64} : {{.*}} -> tensor<4xf32>
  %u = nn.place_piece %t into %s over <context> {members = 2 : i64} : (tensor<2xf32>, tensor<4xf32>) -> tensor<4xf32>
  // CHECK: nn.gather_runs %{{.*}} over <context> {members = 2 : i64} : (tensor<2x8xi32>) -> tensor<2x16xi32>
  %n = nn.gather_runs %rows over <context> {members = 2 : i64} : (tensor<2x8xi32>) -> tensor<2x16xi32>
  // CHECK: nn.rope %{{.*}} {heads = 2 : i64, zigzag = 2 : i64}
  %r = nn.rope %h {heads = 2 : i64, zigzag = 2 : i64} : (tensor<2x8x16xf32>) -> tensor<2x8x16xf32>
  // CHECK: nn.piece %{{.*}} {index = 1 : i64, of = 2 : i64} : {{.*}} -> tensor<1x32x16xf32>
  %3 = nn.piece %2 {index = 1 : i64, of = 2 : i64} : (tensor<2x32x16xf32>) -> tensor<1x32x16xf32>
  // CHECK: nn.sum_squares %{{.*}} {copies = 2 : i64, once = #nn.axes<tensor>} :
  %4 = nn.sum_squares %3 {once = #nn.axes<tensor>, copies = 2 : i64} : (tensor<1x32x16xf32>) -> tensor<1xf64>
  return
}
