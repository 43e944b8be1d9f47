// Addresses stay whole where MLIR's static indices (29 bits, signed) and 32 bits end: in a step, and inside a body.
// RUN: pp-unproved %s --emit=llvm --rank=0 | FileCheck %s

!x = tensor<16xf32>
!big = tensor<73400320xf32>
!sx = !pipeline.slot<tuple<!x>>
!sb = !pipeline.slot<tuple<!big, !x>>

// The second tensor of a slot lies 280 MiB behind its first one.
func.func private @wide(%b: !big, %t: !x) -> !x attributes {
    pipeline.inputs = #pipeline.groups<stash x 2>, pipeline.results = #pipeline.groups<act x 1>, pipeline.ties = array<i64: -1>} {
  %g = nn.gelu %t : (!x) -> !x
  return %g : !x
}

func.func private @narrow(%t: !x) -> !x attributes {
    pipeline.inputs = #pipeline.groups<act x 1>, pipeline.results = #pipeline.groups<act x 1>, pipeline.ties = array<i64: -1>} {
  %g = nn.gelu %t : (!x) -> !x
  return %g : !x
}

pipeline.program @large ranks 1 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["s0", 0]]
  pipeline.rank 0 arena 6442450944 {
    // The last static index, the first that is none, 600 MiB, the last one below 2 GiB, 4 GiB, 5 GiB.
    %a = pipeline.slot act "a" offset 268435392 : !sx
    %b = pipeline.slot act "b" offset 268435456 : !sx
    %c = pipeline.slot act "c" offset 629145600 : !sx
    %d = pipeline.slot act "d" offset 2147483584 : !sx
    %e = pipeline.slot act "e" offset 4294967296 : !sx
    %f = pipeline.slot act "f" offset 5368709120 : !sx
    %s = pipeline.slot stash "s" offset 5368709184 : !sb
    // CHECK-LABEL: define internal i32 @pp_step_0_link_0
    // CHECK:       %[[A:.*]] = getelementptr i8, ptr %1, i32 268435392
    // CHECK-NEXT:  %[[B:.*]] = getelementptr i8, ptr %1, i64 268435456
    // CHECK-NEXT:  call i32 @narrow(ptr %0, ptr %[[A]], ptr %[[B]], ptr null)
    pipeline.launch @narrow <F stage 0 mb 0>(%a) -> (%b) : (!sx) -> (!sx)
    // CHECK:       %[[C:.*]] = getelementptr i8, ptr %1, i64 629145600
    // CHECK-NEXT:  %[[D:.*]] = getelementptr i8, ptr %1, i64 2147483584
    // CHECK-NEXT:  call i32 @narrow(ptr %0, ptr %[[C]], ptr %[[D]], ptr null)
    pipeline.launch @narrow <F stage 0 mb 0>(%c) -> (%d) : (!sx) -> (!sx)
    // CHECK:       %[[E:.*]] = getelementptr i8, ptr %1, i64 4294967296
    // CHECK-NEXT:  %[[F:.*]] = getelementptr i8, ptr %1, i64 5368709120
    // CHECK-NEXT:  call i32 @narrow(ptr %0, ptr %[[E]], ptr %[[F]], ptr null)
    pipeline.launch @narrow <F stage 0 mb 0>(%e) -> (%f) : (!sx) -> (!sx)
    // CHECK:       %[[S:.*]] = getelementptr i8, ptr %1, i64 5368709184
    // CHECK:       call i32 @wide(ptr %0, ptr %[[S]],
    pipeline.launch @wide <F stage 0 mb 0>(%s) -> (%a) : (!sb) -> (!sx)
    // A message's address, too.
    // CHECK:       %[[P:.*]] = getelementptr i8, ptr %1, i64 5368709120
    // CHECK-NEXT:  call i32 @pp_post_send(ptr %0, i32 0, ptr %[[P]])
    %r = pipeline.post send <act stage 0 mb 0> %f with [0] channel 0 : !sx
    pipeline.complete %r
  }
  // CHECK-LABEL: define internal i32 @wide(ptr %0, ptr %1, ptr %2, ptr %3)
  // CHECK-NEXT:    %[[T:.*]] = getelementptr i8, ptr %1, i64 293601280
  // CHECK-NEXT:    call i32 @pp_gelu(ptr %0, i32 0, ptr %[[T]], ptr %2)
}
