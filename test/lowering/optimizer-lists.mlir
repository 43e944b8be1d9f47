// Updates that follow each other, and the terms of one sum of squares, are one call each, on lists of tensors.
// RUN: pp-unproved %s --emit=llvm | FileCheck %s
// RUN: pp-unproved %s --emit=llvm | sed 's/\\22/"/g; s/],"/],\n"/g' | FileCheck %s --check-prefix=OPS

!w = tensor<8x16xbf16>
!g = tensor<8x16xf32>
!v = tensor<16xbf16>
!h = tensor<16xf32>
!n = tensor<1xf64>
!sw = !pipeline.slot<tuple<!w, !v>>
!sg = !pipeline.slot<tuple<!g, !h>>
!so = !pipeline.slot<tuple<!g, !g, !g, !h, !h, !h>>
!sn = !pipeline.slot<tuple<!n>>

// Of each tensor its gradient, weight, m, v and master.
// CHECK-LABEL: define internal i32 @u(ptr %0, ptr %1, ptr %2, ptr %3, ptr %4, ptr %5)
// CHECK:         %[[LIST:.*]] = alloca ptr, i32 10
// CHECK-DAG:     store ptr %2, ptr %[[LIST]]
// CHECK-DAG:     %[[AT1:.*]] = getelementptr i8, ptr %[[LIST]], i32 8
// CHECK-DAG:     store ptr %1, ptr %[[AT1]]
// CHECK-DAG:     %[[AT2:.*]] = getelementptr i8, ptr %[[LIST]], i32 16
// CHECK-DAG:     store ptr %3, ptr %[[AT2]]
// CHECK:         call i32 @pp_adamw_all(ptr %0, i32 0, ptr %4, ptr %[[LIST]])
func.func private @u(%w: !w, %v: !v, %g: !g, %h: !h, %m0: !g, %v0: !g, %c0: !g, %m1: !h, %v1: !h, %c1: !h, %n: !n)
    -> (!w, !v, !g, !g, !g, !h, !h, !h) attributes {
    pipeline.inputs = #pipeline.groups<weight x 2, grad x 2, opt x 6, norm x 1>,
    pipeline.results = #pipeline.groups<weight x 2, opt x 6>, pipeline.ties = array<i64: 0, 2>, pipeline.flops = 1.0 : f64} {
  %0:4 = nn.adamw %g norm %n into %w, %m0, %v0, %c0 {decay = true} : (!g, !n, !w, !g, !g, !g) -> (!w, !g, !g, !g)
  %1:4 = nn.adamw %h norm %n into %v, %m1, %v1, %c1 : (!h, !n, !v, !h, !h, !h) -> (!v, !h, !h, !h)
  return %0#0, %1#0, %0#1, %0#2, %0#3, %1#1, %1#2, %1#3 : !w, !v, !g, !g, !g, !h, !h, !h
}

// The first term writes the sum, or adds to what another stage has made of it.
// CHECK-LABEL: define internal i32 @n(
// CHECK:         %[[GRADS:.*]] = alloca ptr, i32 2
// CHECK:         call i32 @pp_sum_squares_all(ptr %0, i32 1, ptr %[[GRADS]], ptr %2)
func.func private @n(%g: !g, %h: !h, %n: !n) -> !n attributes {
    pipeline.inputs = #pipeline.groups<grad x 2, norm x 1>, pipeline.results = #pipeline.groups<norm x 1>, pipeline.ties = array<i64: 1>,
    pipeline.flops = 1.0 : f64} {
  %0 = nn.sum_squares %g into %n : (!g, !n) -> !n
  %1 = nn.sum_squares %h into %0 : (!h, !n) -> !n
  return %1 : !n
}

// A size and whether it decays, for each.
// OPS: "kernel":"adamw_all","type":"bf16","dims":[128,1,16,0],
// OPS-NEXT: "params":[],
// OPS-NEXT: "flags":[]
// OPS: "kernel":"sum_squares_all","type":"f32","dims":[128,0,16,0],
// OPS-NEXT: "params":[],
// OPS-NEXT: "flags":["accumulate"]
pipeline.program @one ranks 1 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["s0", 0]]
  pipeline.rank 0 arena 8192 {
    %w = pipeline.slot weight "w" offset 0 : !sw
    %g = pipeline.slot grad "g" offset 1024 : !sg
    %o = pipeline.slot opt "o" offset 2048 : !so
    %n = pipeline.slot stat "n" offset 6144 : !sn
    pipeline.launch @u <U stage 0>(%w, %g, %o, %n) -> () : (!sw, !sg, !so, !sn) -> ()
    pipeline.launch @n <U stage 0>(%g, %n) -> () : (!sg, !sn) -> ()
  }
}
