// Attention and gates read where one product leaves their operands, unless others read them, or order or turns differ.
// RUN: pp-opt %s --pp-derive-tasks | FileCheck %s

!x = tensor<1x8x16xf32>
!k = tensor<1x8x8xf32>
!w = tensor<16x32xf32>

// Two heads of keys for four of queries.
func.func private @fits(%x: !x, %w: !w {nn.weight = #nn.weight<"w">}) -> !x {
  %qkv = nn.linear %x, %w : (!x, !w) -> tensor<1x8x32xf32>
  %q, %k, %v = nn.split %qkv {widths = array<i64: 16, 8, 8>} : (tensor<1x8x32xf32>) -> (!x, !k, !k)
  %o, %lse = nn.attention %q, %k, %v {heads = 4 : i64, kv_heads = 2 : i64, causal = true} : (!x, !k, !k) -> (!x, tensor<1x4x8xf32>)
  return %o : !x
}
func.func private @elsewhere(%x: !x, %w: !w {nn.weight = #nn.weight<"w">}) -> !x {
  %qkv = nn.linear %x, %w : (!x, !w) -> tensor<1x8x32xf32>
  %q, %k, %v = nn.split %qkv {widths = array<i64: 16, 8, 8>} : (tensor<1x8x32xf32>) -> (!x, !k, !k)
  %o, %lse = nn.attention %q, %k, %v {heads = 4 : i64, kv_heads = 2 : i64, causal = true} : (!x, !k, !k) -> (!x, tensor<1x4x8xf32>)
  %y = nn.add %o, %q : (!x, !x) -> !x
  return %y : !x
}
func.func private @order(%x: !x, %w: !w {nn.weight = #nn.weight<"w">}) -> !x {
  %qkv = nn.linear %x, %w : (!x, !w) -> tensor<1x8x32xf32>
  %q, %k, %v = nn.split %qkv {widths = array<i64: 16, 8, 8>} : (tensor<1x8x32xf32>) -> (!x, !k, !k)
  %o, %lse = nn.attention %q, %v, %k {heads = 4 : i64, kv_heads = 2 : i64, causal = true} : (!x, !k, !k) -> (!x, tensor<1x4x8xf32>)
  return %o : !x
}
func.func private @turned(%x: !x, %w: !w {nn.weight = #nn.weight<"w">}) -> !x {
  %qkv = nn.linear %x, %w : (!x, !w) -> tensor<1x8x32xf32>
  %q, %k, %v = nn.split %qkv {widths = array<i64: 16, 8, 8>} : (tensor<1x8x32xf32>) -> (!x, !k, !k)
  %tq = nn.rope %q {heads = 4 : i64, theta = 5.0e+2 : f64, style = "pair"} : (!x) -> !x
  %tk = nn.rope %k {heads = 2 : i64, theta = 5.0e+2 : f64, style = "pair"} : (!k) -> !k
  %o, %lse = nn.attention %tq, %tk, %v {heads = 4 : i64, kv_heads = 2 : i64, causal = true} : (!x, !k, !k) -> (!x, tensor<1x4x8xf32>)
  return %o : !x
}
// Keys turn by other angles.
func.func private @apart(%x: !x, %w: !w {nn.weight = #nn.weight<"w">}) -> !x {
  %qkv = nn.linear %x, %w : (!x, !w) -> tensor<1x8x32xf32>
  %q, %k, %v = nn.split %qkv {widths = array<i64: 16, 8, 8>} : (tensor<1x8x32xf32>) -> (!x, !k, !k)
  %tq = nn.rope %q {heads = 4 : i64, theta = 5.0e+2 : f64} : (!x) -> !x
  %tk = nn.rope %k {heads = 2 : i64, theta = 5.0e+3 : f64} : (!k) -> !k
  %o, %lse = nn.attention %tq, %tk, %v {heads = 4 : i64, kv_heads = 2 : i64, causal = true} : (!x, !k, !k) -> (!x, tensor<1x4x8xf32>)
  return %o : !x
}
// Keys do not turn.
func.func private @half(%x: !x, %w: !w {nn.weight = #nn.weight<"w">}) -> !x {
  %qkv = nn.linear %x, %w : (!x, !w) -> tensor<1x8x32xf32>
  %q, %k, %v = nn.split %qkv {widths = array<i64: 16, 8, 8>} : (tensor<1x8x32xf32>) -> (!x, !k, !k)
  %tq = nn.rope %q {heads = 4 : i64} : (!x) -> !x
  %o, %lse = nn.attention %tq, %k, %v {heads = 4 : i64, kv_heads = 2 : i64, causal = true} : (!x, !k, !k) -> (!x, tensor<1x4x8xf32>)
  return %o : !x
}
// The rope takes two heads for one.
func.func private @wide(%x: !x, %w: !w {nn.weight = #nn.weight<"w">}) -> !x {
  %qkv = nn.linear %x, %w : (!x, !w) -> tensor<1x8x32xf32>
  %q, %k, %v = nn.split %qkv {widths = array<i64: 16, 8, 8>} : (tensor<1x8x32xf32>) -> (!x, !k, !k)
  %tq = nn.rope %q {heads = 2 : i64} : (!x) -> !x
  %tk = nn.rope %k {heads = 1 : i64} : (!k) -> !k
  %o, %lse = nn.attention %tq, %tk, %v {heads = 4 : i64, kv_heads = 2 : i64, causal = true} : (!x, !k, !k) -> (!x, tensor<1x4x8xf32>)
  return %o : !x
}
func.func private @gates(%x: !x, %w: !w {nn.weight = #nn.weight<"w">}) -> !x {
  %pq = nn.linear %x, %w : (!x, !w) -> tensor<1x8x32xf32>
  %p, %q = nn.split %pq {parts = 2 : i64} : (tensor<1x8x32xf32>) -> (!x, !x)
  %y = nn.swiglu %p, %q : (!x, !x) -> !x
  %both = nn.linear %y, %w : (!x, !w) -> tensor<1x8x32xf32>
  %a, %b = nn.split %both {parts = 2 : i64} : (tensor<1x8x32xf32>) -> (!x, !x)
  %z = nn.glu %a, %b {plus = 1.0} : (!x, !x) -> !x
  return %z : !x
}
// The second half is the gate; a half goes on.
func.func private @halves(%x: !x, %w: !w {nn.weight = #nn.weight<"w">}) -> !x {
  %pq = nn.linear %x, %w : (!x, !w) -> tensor<1x8x32xf32>
  %p, %q = nn.split %pq {parts = 2 : i64} : (tensor<1x8x32xf32>) -> (!x, !x)
  %y = nn.swiglu %q, %p : (!x, !x) -> !x
  %both = nn.linear %y, %w : (!x, !w) -> tensor<1x8x32xf32>
  %a, %b = nn.split %both {parts = 2 : i64} : (tensor<1x8x32xf32>) -> (!x, !x)
  %z = nn.glu %a, %b {plus = 1.0} : (!x, !x) -> !x
  %s = nn.add %z, %b : (!x, !x) -> !x
  return %s : !x
}

pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["fits", 0]]
  pipeline.piece @s1 <stage 1> parts [["elsewhere", 0]]
  pipeline.piece @s2 <stage 2> parts [["order", 0]]
  pipeline.piece @s3 <stage 3> parts [["turned", 0]]
  pipeline.piece @s4 <stage 4> parts [["apart", 0]]
  pipeline.piece @s5 <stage 5> parts [["half", 0]]
  pipeline.piece @s6 <stage 6> parts [["wide", 0]]
  pipeline.piece @s7 <stage 7> parts [["gates", 0]]
  pipeline.piece @s8 <stage 8> parts [["halves", 0]]
  pipeline.unit <F stage 0 mb 0> on [0]
  pipeline.unit <B stage 0 mb 0> on [0]
  pipeline.unit <F stage 1 mb 0> on [0]
  pipeline.unit <B stage 1 mb 0> on [0]
  pipeline.unit <F stage 2 mb 0> on [0]
  pipeline.unit <B stage 2 mb 0> on [0]
  pipeline.unit <F stage 3 mb 0> on [0]
  pipeline.unit <B stage 3 mb 0> on [0]
  pipeline.unit <F stage 4 mb 0> on [0]
  pipeline.unit <B stage 4 mb 0> on [0]
  pipeline.unit <F stage 5 mb 0> on [0]
  pipeline.unit <B stage 5 mb 0> on [0]
  pipeline.unit <F stage 6 mb 0> on [0]
  pipeline.unit <B stage 6 mb 0> on [0]
  pipeline.unit <F stage 7 mb 0> on [0]
  pipeline.unit <B stage 7 mb 0> on [0]
  pipeline.unit <F stage 8 mb 0> on [0]
  pipeline.unit <B stage 8 mb 0> on [0]
}

// CHECK: func.func private @s0.F(
// CHECK-NEXT: %[[QKV:.*]] = nn.linear
// CHECK-NEXT: %[[O:.*]], %[[LSE:.*]] = nn.attention %[[QKV]], %[[QKV]], %[[QKV]] {causal = true, heads = 4 : i64, kv_heads = 2 : i64, packed = true}
// CHECK: return %[[O]], %[[QKV]], %{{.*}}, %[[LSE]] :
// CHECK: func.func private @s0.B
// CHECK: %[[D:.*]] = nn.attention_bwd {{.*}}packed = true{{.*}} -> tensor<1x8x32xf32>
// CHECK: nn.linear_dx %[[D]]
// CHECK: func.func private @s1.F(
// CHECK-COUNT-3: nn.slice_columns
// CHECK-NOT: packed
// CHECK: func.func private @s2.F(
// CHECK-COUNT-3: nn.slice_columns
// CHECK-NOT: packed
// CHECK: func.func private @s3.F(
// CHECK-NEXT: %[[QKV:.*]] = nn.linear
// CHECK-NEXT: %[[T:.*]] = nn.rope %[[QKV]] {heads = 8 : i64, passing = 2 : i64, style = "pair", theta = 5.000000e+02 : f64}
// CHECK-NEXT: nn.attention %[[T]], %[[T]], %[[T]] {causal = true, heads = 4 : i64, kv_heads = 2 : i64, packed = true}
// CHECK: func.func private @s3.B
// CHECK: %[[D:.*]] = nn.attention_bwd {{.*}}packed = true{{.*}} -> tensor<1x8x32xf32>
// CHECK-NEXT: %[[B:.*]] = nn.rope %[[D]] {heads = 8 : i64, inverse = true, passing = 2 : i64, style = "pair", theta = 5.000000e+02 : f64}
// CHECK-NOT: place_columns
// CHECK: nn.linear_dx %[[B]]
// CHECK: func.func private @s4.F(
// CHECK-COUNT-3: nn.slice_columns
// CHECK-NOT: packed
// CHECK: func.func private @s5.F(
// CHECK-COUNT-3: nn.slice_columns
// CHECK-NOT: packed
// CHECK: func.func private @s6.F(
// CHECK-COUNT-3: nn.slice_columns
// CHECK-NOT: packed
// CHECK: func.func private @s7.F(
// CHECK-NEXT: %[[PQ:.*]] = nn.linear
// CHECK-NEXT: %[[Y:.*]] = nn.swiglu %[[PQ]] {packed = true} : (tensor<1x8x32xf32>) -> tensor<1x8x16xf32>
// CHECK-NEXT: %[[AB:.*]] = nn.linear %[[Y]]
// CHECK-NEXT: nn.glu %[[AB]] {packed = true, plus = 1.000000e+00 : f64}
// CHECK: func.func private @s7.B
// CHECK: %[[DAB:.*]] = nn.glu_bwd %{{.*}}, %{{.*}} {packed = true, plus = 1.000000e+00 : f64} : {{.*}} -> tensor<1x8x32xf32>
// CHECK: %[[DY:.*]] = nn.linear_dx %[[DAB]]
// CHECK: nn.swiglu_bwd %[[DY]], %{{.*}} {packed = true} : {{.*}} -> tensor<1x8x32xf32>
// CHECK: func.func private @s8.F(
// CHECK-COUNT-2: nn.slice_columns
// CHECK: nn.swiglu %{{.*}}, %{{.*}} :
// CHECK-COUNT-2: nn.slice_columns
// CHECK: nn.glu %{{.*}}, %{{.*}} {plus
