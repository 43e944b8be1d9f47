// A kernel that takes a list of tensors gets one array of their addresses, on the stack, in the order of the operands.
// RUN: pp-unproved %s --emit=llvm | FileCheck %s
// RUN: pp-unproved %s --emit=llvm | sed 's/\\22/"/g; s/],"/],\n"/g' | FileCheck %s --check-prefix=OPS

!q = tensor<1x4x8xbf16>
!k = tensor<1x6x8xbf16>
!s = tensor<1x6x8xf32>
!l = tensor<1x2x4xf32>
!sq = !pipeline.slot<tuple<!q>>
!sl = !pipeline.slot<tuple<!q, !l>>
!sk = !pipeline.slot<tuple<!k, !k>>
!ss = !pipeline.slot<tuple<!s, !s>>
!t = !pipeline.slot<tuple<tensor<256xi8>>>

// Keys 0 to 5 in one chunk, 6 to 11 in another; queries from 8 on.
// CHECK-LABEL: define internal i32 @f(ptr %0, ptr %1, ptr %2, ptr %3, ptr %4, ptr %5)
// CHECK:         %[[KV:.*]] = alloca ptr, i32 4
// CHECK:         %[[V0:.*]] = getelementptr i8, ptr %2, i32 128
// CHECK:         %[[V1:.*]] = getelementptr i8, ptr %3, i32 128
// CHECK:         store ptr %2, ptr %[[KV]]
// CHECK:         %[[AT1:.*]] = getelementptr i8, ptr %[[KV]], i32 8
// CHECK-NEXT:    store ptr %[[V0]], ptr %[[AT1]]
// CHECK:         %[[AT2:.*]] = getelementptr i8, ptr %[[KV]], i32 16
// CHECK-NEXT:    store ptr %3, ptr %[[AT2]]
// CHECK:         %[[AT3:.*]] = getelementptr i8, ptr %[[KV]], i32 24
// CHECK-NEXT:    store ptr %[[V1]], ptr %[[AT3]]
// CHECK:         call i32 @pp_attention(ptr %0, i32 0, ptr %1, ptr %[[KV]], ptr %4, ptr
func.func private @f(%q: !q, %k0: !k, %v0: !k, %k1: !k, %v1: !k) -> (!q, !l) attributes {
    pipeline.inputs = #pipeline.groups<act x 1, kv x 2, kv x 2>, pipeline.results = #pipeline.groups<act x 2>, pipeline.ties = array<i64: -1>,
    pipeline.flops = 1.0 : f64} {
  %o, %lse = nn.attention %q, %k0, %v0, %k1, %v1 {heads = 2 : i64, causal = true, offset = 8 : i64}
      : (!q, !k, !k, !k, !k) -> (!q, !l)
  return %o, %lse : !q, !l
}

// The sums are written where they are read: the results' list is that of the arguments. The last is the output of which
// delta was made.
// CHECK-LABEL: define internal i32 @b(ptr %0, ptr %1, ptr %2, ptr %3, ptr %4, ptr %5)
// CHECK:         %[[KV2:.*]] = alloca ptr, i32 2
// CHECK:         %[[DKV:.*]] = alloca ptr, i32 2
// CHECK-DAG:     store ptr %2, ptr %[[KV2]]
// CHECK-DAG:     store ptr %3, ptr %[[DKV]]
// CHECK:         call i32 @pp_attention_bwd(ptr %0, i32 2, ptr %1, ptr %1, ptr %{{.*}}, ptr %{{.*}}, ptr %[[KV2]], ptr %4, ptr %[[DKV]], ptr %1)
func.func private @b(%o: !q, %lse: !l, %k: !k, %v: !k, %dk: !s, %dv: !s) -> (!q, !s, !s) attributes {
    pipeline.inputs = #pipeline.groups<act x 2, kv x 2, dkv x 2>, pipeline.results = #pipeline.groups<dact x 1, dkv x 2>,
    pipeline.ties = array<i64: -1, 2>, pipeline.flops = 1.0 : f64} {
  %d = nn.attention_delta %o, %o {heads = 2 : i64} : (!q, !q) -> !l
  %0:3 = nn.attention_bwd %o, %o, %lse, %d, %k, %v into_kv %dk, %dv {heads = 2 : i64, sums = true, kv_offsets = array<i64: 30>}
      : (!q, !q, !l, !l, !k, !k, !s, !s) -> (!q, !s, !s)
  return %0#0, %0#1, %0#2 : !q, !s, !s
}

// Here the output is gone: its place in the scratch is that of the next sum.
// CHECK-LABEL: define internal i32 @c(
// CHECK:         call i32 @pp_attention_delta(ptr %0, i32 {{[0-9]+}}, ptr %1, ptr %[[AT:[0-9]+]],
// CHECK:         call i32 @pp_attention_bwd({{.*}}, ptr null)
func.func private @c(%q: !q, %lse: !l, %k: !k, %v: !k) -> (!q, !k, !k) attributes {
    pipeline.inputs = #pipeline.groups<act x 2, kv x 2>, pipeline.results = #pipeline.groups<dact x 1, dkv x 2>,
    pipeline.ties = array<i64: -1, -1>, pipeline.flops = 1.0 : f64} {
  %o = nn.add %q, %q : (!q, !q) -> !q
  %d = nn.attention_delta %q, %o {heads = 2 : i64} : (!q, !q) -> !l
  %x = nn.add %q, %q : (!q, !q) -> !q
  %0:3 = nn.attention_bwd %x, %q, %lse, %d, %k, %v {heads = 2 : i64} : (!q, !q, !l, !l, !k, !k) -> (!q, !k, !k)
  return %0#0, %0#1, %0#2 : !q, !k, !k
}

// b s H G d position, then length and position of each chunk.
// OPS: "kernel":"attention","type":"bf16","dims":[1,4,2,2,4,8,6,0,6,6],
// OPS-NEXT: "params":[],
// OPS-NEXT: "flags":["causal"]
// OPS: "kernel":"attention_delta","type":"bf16","dims":[1,4,2,4],
// OPS: "kernel":"attention_bwd","type":"bf16","dims":[1,4,2,2,4,0,6,30],
// OPS-NEXT: "params":[],
// OPS-NEXT: "flags":["accumulate_kv"]
pipeline.program @one ranks 1 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["s0", 0]]
  pipeline.rank 0 arena 4096 {
    %q = pipeline.slot act "q" offset 0 : !sq
    %k0 = pipeline.slot kv "k0" offset 256 : !sk
    %k1 = pipeline.slot kv "k1" offset 512 : !sk
    %o = pipeline.slot act "o" offset 768 : !sl
    %d = pipeline.slot dkv "d" offset 1024 : !ss
    %x = pipeline.slot dact "x" offset 2048 : !sq
    %t = pipeline.slot temporary "t" offset 2560 : !t
    pipeline.launch @f <F stage 0 mb 0>(%q, %k0, %k1) -> (%o) : (!sq, !sk, !sk) -> (!sl)
    pipeline.launch @b <B stage 0 mb 0>(%o, %k1, %d) -> (%x) scratch %t : (!sl, !sk, !ss) -> (!sq) scratch !t
    pipeline.launch @c <B stage 0 mb 0>(%o, %k1) -> (%x, %k0) scratch %t : (!sl, !sk) -> (!sq, !sk) scratch !t
  }
}
