// Host memory lies behind the arena in the rank's block, on a page of its own, 4096 bytes; its messages are marked.
// RUN: pp-unproved %s --emit=llvm | sed 's/\\22/"/g; s/],"/],\n"/g' | FileCheck %s

!s = !pipeline.slot<tuple<tensor<16xf32>>>

// CHECK: {"rank":0,"arena_bytes":4160,"host_bytes":64,
// CHECK: "messages":[{"kind":"send","peer":0,"channel":0,"bytes":64,"host":true,"label":"stash(0, 0)","line":"host.mlir:{{[0-9:]+}}"},{"kind":"receive","peer":0,"channel":0,"bytes":64,"host":true,"label":"stash(0, 0)","line":"host.mlir:{{[0-9:]+}}"}
// CHECK: call i32 @pp_post_send(ptr %{{.*}}, i32 0, ptr %[[A:.*]])
// CHECK: getelementptr {{.*}} 4096
// CHECK: call i32 @pp_post_receive
pipeline.program @one ranks 1 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["pre", 0]]
  pipeline.rank 0 arena 128 host 64 {
    %a = pipeline.slot stash "a" offset 64 : !s
    %b = pipeline.slot stash "b" host offset 0 : !s
    %0 = pipeline.post send <stash stage 0 mb 0> %a with [0] channel 0 : !s
    %1 = pipeline.post receive <stash stage 0 mb 0> %b with [0] channel 0 : !s
    pipeline.complete %0
    pipeline.complete %1
  }
}
