// Rank programs become chains of calls: bodies on addresses in the arena, marks around launches, messages by number.
// RUN: pp-unproved %s --emit=llvm --rank=0 | FileCheck %s --check-prefix=RANK0
// RUN: pp-unproved %s --emit=llvm --rank=1 | FileCheck %s --check-prefix=RANK1

!x = tensor<2x4x8xf32>
!w = tensor<8x8xf32>
!sx = !pipeline.slot<tuple<!x>>
!sw = !pipeline.slot<tuple<!w>>
!st = !pipeline.slot<tuple<tensor<256xi8>>>

// One call per op, left at the first status that is not zero; an absent bias is null; the pointers are rank, act, weight,
// act, stash, scratch. The two linears are one entry of the op table: number 0 both times.
// RANK0-LABEL: define internal i32 @s0.F(ptr %0, ptr %1, ptr %2, ptr %3, ptr %4, ptr %5)
// RANK0-NEXT:    %[[S0:.*]] = call i32 @pp_linear(ptr %0, i32 0, ptr %1, ptr %2, ptr null, ptr %4)
// RANK0-NEXT:    %[[BAD:.*]] = icmp ne i32 %[[S0]], 0
// RANK0-NEXT:    br i1 %[[BAD]], label %[[EXIT:.*]], label
// RANK0:         call i32 @pp_gelu(ptr %0, i32 1, ptr %4, ptr %5)
// RANK0:         call i32 @pp_linear(ptr %0, i32 0, ptr %5, ptr %2, ptr null, ptr %3)
// RANK0:         call i32 @pp_add(ptr %0, i32 2, ptr %3, ptr %1, ptr %3)
// RANK0:         ret i32 0
// RANK0:       [[EXIT]]:
// RANK0-NEXT:    %[[STATUS:.*]] = phi i32 {{.*}}%[[S0]]
// RANK0-NEXT:    ret i32 %[[STATUS]]
func.func private @s0.F(%x: !x, %w: !w) -> (!x, !x) attributes {
    pipeline.inputs = #pipeline.groups<act x 1, weight x 1>, pipeline.results = #pipeline.groups<act x 1, stash x 1>,
    pipeline.ties = array<i64: -1, -1>, pipeline.flops = 1024.0 : f64} {
  %a = nn.linear %x, %w : (!x, !w) -> !x
  %g = nn.gelu %a : (!x) -> !x
  %b = nn.linear %g, %w : (!x, !w) -> !x
  %c = nn.add %b, %x : (!x, !x) -> !x
  return %c, %a : !x, !x
}

// The result's slot is the input's: pointers for the rank, two inputs, none for the tied result, and the scratch memory.
func.func private @s1.W(%x: !x, %g: !w) -> !w attributes {
    pipeline.inputs = #pipeline.groups<act x 1, grad x 1>, pipeline.results = #pipeline.groups<grad x 1>, pipeline.ties = array<i64: 1>} {
  %a = nn.linear_dw %x, %x into %g : (!x, !x, !w) -> !w
  return %a : !w
}

pipeline.program @two ranks 2 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["s0", 0]]
  pipeline.piece @s1 <stage 1> parts [["s1", 0]]
  // A rank holds its own bodies only.
  // RANK0-NOT:   @s1.W
  // RANK0-LABEL: define internal i32 @pp_step_0_link_0(ptr %0, ptr %1)
  pipeline.rank 0 arena 4294971392 {
    %x = pipeline.slot data "x" offset 0 : !sx
    %w = pipeline.slot weight "w" offset 256 : !sw
    %y = pipeline.slot act "y" offset 512 : !sx
    %s = pipeline.slot stash "s" offset 4294967296 : !sx
    %t = pipeline.slot temporary "t" offset 1536 : !st
    // Offsets beyond 31 bits stay whole.
    // RANK0:       call i32 @pp_begin_unit(ptr %0, i32 0)
    // RANK0:       %[[W:.*]] = getelementptr i8, ptr %1, i32 256
    // RANK0-NEXT:  %[[Y:.*]] = getelementptr i8, ptr %1, i32 512
    // RANK0-NEXT:  %[[S:.*]] = getelementptr i8, ptr %1, i64 4294967296
    // RANK0-NEXT:  %[[T:.*]] = getelementptr i8, ptr %1, i32 1536
    // RANK0-NEXT:  call i32 @s0.F(ptr %0, ptr %1, ptr %[[W]], ptr %[[Y]], ptr %[[S]], ptr %[[T]])
    // RANK0:       call i32 @pp_end_unit(ptr %0, i32 0)
    pipeline.launch @s0.F <F stage 0 mb 0>(%x, %w) -> (%y, %s) scratch %t : (!sx, !sw) -> (!sx, !sx) scratch !st
    // RANK0:       %[[M:.*]] = getelementptr i8, ptr %1, i32 512
    // RANK0-NEXT:  call i32 @pp_post_send(ptr %0, i32 0, ptr %[[M]])
    // RANK0:       call i32 @pp_complete(ptr %0, i32 0)
    %r = pipeline.post send <act stage 0 mb 0> %y with [1] channel 1 : !sx
    pipeline.complete %r
  }
  // RANK0-LABEL: define i32 @pp_step_0(ptr %0, ptr %1)
  // RANK0:         call i32 @pp_step_0_link_0(ptr %0, ptr %1)

  // RANK1-LABEL: define internal i32 @pp_step_1_link_0(ptr %0, ptr %1)
  pipeline.rank 1 arena 4096 {
    %y = pipeline.slot act "y" offset 512 : !sx
    %g = pipeline.slot grad "g" offset 1024 : !sw
    %n = pipeline.slot stat "norm" offset 64 : !pipeline.slot<tuple<tensor<1xf64>>>
    // Messages are numbered as they are posted and completed by their number, in any order.
    // RANK1:       call i32 @pp_post_receive(ptr %0, i32 0, ptr %{{.*}})
    // RANK1:       call i32 @pp_post_collective(ptr %0, i32 1, ptr %{{.*}}, ptr null)
    // RANK1:       call i32 @pp_complete(ptr %0, i32 1)
    // RANK1:       call i32 @pp_complete(ptr %0, i32 0)
    // RANK1:       call i32 @s1.W(ptr %0, ptr %{{.*}}, ptr %{{.*}}, ptr null)
    %r = pipeline.post receive <act stage 0 mb 0> %y with [0] channel 1 : !sx
    %q = pipeline.post all_reduce <stat part "norm"> %n with [0, 1] channel 4 : !pipeline.slot<tuple<tensor<1xf64>>>
    pipeline.complete %q
    pipeline.complete %r
    pipeline.launch @s1.W <W stage 1 mb 0>(%y, %g) -> () : (!sx, !sw) -> ()
  }
  // RANK1-LABEL: define internal i32 @s1.W(ptr %0, ptr %1, ptr %2, ptr %3)
  // RANK1-NEXT:    call i32 @pp_linear_dw(ptr %0, i32 0, ptr %1, ptr %1, ptr %2)
  // RANK1-LABEL: define i32 @pp_step_1(ptr %0, ptr %1)
}
