// The step projected on its ranks: both ends post where the move stands, the receiver completes where the wait stands.
// RUN: pp-opt %s --pp-project-ranks | FileCheck %s
// RUN: pp-opt %s --pp-project-ranks=stretch=1 | FileCheck %s

func.func private @make() attributes {pipeline.scratch_bytes = 0 : i64}
func.func private @use() attributes {pipeline.scratch_bytes = 192 : i64}
!a0 = !pipeline.val<act, tuple<tensor<16xf32>>, [0]>
!a1 = !pipeline.val<act, tuple<tensor<16xf32>>, [1]>
!w0 = !pipeline.val<weight, tuple<tensor<16xf32>>, [0]>
!w1 = !pipeline.val<weight, tuple<tensor<16xf32>>, [1]>

// CHECK-LABEL: pipeline.program @message
pipeline.program @message ranks 2 microbatches 2 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["a", -1]] at <[0]>
  pipeline.piece @s1 <stage 1> parts [["b", -1]] at <[1]>
  %w = pipeline.input <weight stage 0> : !w0
  %t = pipeline.input <data part "tokens" mb 0> "tokens" : !pipeline.val<data, tuple<tensor<2xi32>>, [0]>
  %a = pipeline.task @make <F stage 0 mb 0> on [0](%t, %w) ties [-1] : (!pipeline.val<data, tuple<tensor<2xi32>>, [0]>, !w0) -> !a0
  %f = pipeline.move <act stage 0 mb 0> %a : !a0 -> <!a1>
  %b = pipeline.task @make <F stage 0 mb 1> on [0](%w) ties [-1] : (!w0) -> !a0
  pipeline.task @make <F stage 1 mb 1> on [1]() ties [] : () -> ()
  %x = pipeline.wait %f : <!a1> -> !a1
  pipeline.task @use <F stage 1 mb 0> on [1](%x) ties [] : (!a1) -> ()
}
// What the trainer fills is bound; a weight is saved from its first home.
// CHECK:      pipeline.rank 0 {
// CHECK-NEXT:   %[[W:.*]] = pipeline.slot weight "weight(0)" binding <weight @s0 save>
// CHECK-NEXT:   %[[T:.*]] = pipeline.slot data "data(tokens, 0)" binding <tokens mb 0>
// CHECK-NEXT:   %[[A:.*]] = pipeline.slot act "act(0, 0)"
// CHECK-NEXT:   pipeline.launch @make <F stage 0 mb 0>(%[[T]], %[[W]]) -> (%[[A]])
// The channel is the sender's number times the ranks plus the receiver's.
// CHECK-NEXT:   %[[S:.*]] = pipeline.post send <act stage 0 mb 0> %[[A]] with [1] channel 1
// The send is completed after the launch that follows it.
// CHECK-NEXT:   %[[B:.*]] = pipeline.slot act "act(0, 1)"
// CHECK-NEXT:   pipeline.launch @make <F stage 0 mb 1>(%[[W]]) -> (%[[B]])
// CHECK-NEXT:   pipeline.complete %[[S]]
// CHECK-NEXT: }
// CHECK-NEXT: pipeline.rank 1 {
// The receive is posted before the unit that runs meanwhile, and completed before the one that reads it.
// CHECK-NEXT:   %[[X:.*]] = pipeline.slot act "act(0, 0)"
// CHECK-NEXT:   %[[R:.*]] = pipeline.post receive <act stage 0 mb 0> %[[X]] with [0] channel 1
// CHECK-NEXT:   pipeline.launch @make <F stage 1 mb 1>() -> ()
// CHECK-NEXT:   pipeline.complete %[[R]]
// CHECK-NEXT:   %[[M:.*]] = pipeline.slot temporary "scratch" : <tuple<tensor<192xi8>>>
// CHECK-NEXT:   pipeline.launch @use <F stage 1 mb 0>(%[[X]]) -> () scratch %[[M]]
// CHECK-NEXT: }

// A result tied to an input is its slot; before it is written, what is being sent from it must have left.
// CHECK-LABEL: pipeline.program @tied
pipeline.program @tied ranks 2 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.piece @s1 <stage 1> parts [["s1", 0]]
  pipeline.piece @s0 <stage 0> parts [["a", -1]] at <[0]>
  %w = pipeline.input <weight stage 0> : !w0
  %f = pipeline.move <weight stage 0> %w : !w0 -> <!w1>
  %v = pipeline.task @make <U stage 0> on [0](%w) ties [0] : (!w0) -> !w0
  pipeline.task @make <F stage 1 mb 0> on [1]() ties [] : () -> ()
  pipeline.task @make <B stage 1 mb 0> on [1]() ties [] : () -> ()
  pipeline.output <weight stage 0> %v : !w0
}
// CHECK:      pipeline.rank 0 {
// CHECK-NEXT:   %[[W:.*]] = pipeline.slot weight
// CHECK-NEXT:   %[[S:.*]] = pipeline.post send <weight stage 0> %[[W]] with [1] channel 1
// CHECK-NEXT:   pipeline.complete %[[S]]
// CHECK-NEXT:   pipeline.launch @make <U stage 0>(%[[W]]) -> ()
// CHECK-NEXT: }
// Nobody on rank 1 waits for it: it is received, and completed after the launch that follows, which frees its slot.
// CHECK-NEXT: pipeline.rank 1 {
// CHECK-NEXT:   %[[X:.*]] = pipeline.slot weight "weight(0)"
// CHECK-NEXT:   %[[R:.*]] = pipeline.post receive <weight stage 0> %[[X]] with [0] channel 1
// CHECK-NEXT:   pipeline.launch @make <F stage 1 mb 0>
// CHECK-NEXT:   pipeline.complete %[[R]]
// CHECK-NEXT:   pipeline.launch @make <B stage 1 mb 0>

// A new weight that comes home is received where the old one was; of the copies only the first home's is saved.
// CHECK-LABEL: pipeline.program @home
pipeline.program @home ranks 2 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["a", -1]] homes <[0, 1]> owner <[0]>
  %w = pipeline.input <weight stage 0> : !w0
  %c = pipeline.input <weight stage 0> : !w1
  %v = pipeline.task @make <U stage 0> on [0](%w) ties [0] : (!w0) -> !w0
  %f = pipeline.move <weight stage 0> %v : !w0 -> <!w1>
  %d = pipeline.wait %f : <!w1> -> !w1
  pipeline.output <weight stage 0> %v : !w0
  pipeline.output <weight stage 0> %d : !w1
}
// CHECK:      pipeline.rank 0 {
// CHECK-NEXT:   pipeline.slot weight "weight(0)" binding <weight @s0 save>
// CHECK:      pipeline.rank 1 {
// CHECK-NEXT:   %[[C:.*]] = pipeline.slot weight "weight(0)" binding <weight @s0>
// CHECK-NEXT:   %[[R:.*]] = pipeline.post receive <weight stage 0> %[[C]] with [0] channel 1
// CHECK-NEXT:   pipeline.complete %[[R]]
// CHECK-NEXT: }

// The sum of a group is one post on each member, in place, on a channel beyond those of pairs; the trainer reads it.
!n0 = !pipeline.val<stat, tuple<tensor<1xf64>>, [0]>
!n1 = !pipeline.val<stat, tuple<tensor<1xf64>>, [1]>
!part = !pipeline.val<stat, tuple<tensor<1xf64>>, [0, 1] partial>
!all = !pipeline.val<stat, tuple<tensor<1xf64>>, [0, 1]>
// CHECK-LABEL: pipeline.program @sum
pipeline.program @sum ranks 2 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.piece @s1 <stage 1> parts [["s1", 0]]
  pipeline.piece @s0 <stage 0> parts [["a", -1]] at <[0]>
  %a = pipeline.task @make <U stage 0> on [0]() ties [-1] : () -> !n0
  %b = pipeline.task @make <U stage 1> on [1]() ties [-1] : () -> !n1
  %j = pipeline.join %a, %b : !n0, !n1 -> !part
  %f = pipeline.move <stat part "norm"> %j : !part -> <!all>
  %s = pipeline.wait %f : <!all> -> !all
  %x = pipeline.split %s : !all -> !n0
  pipeline.output <stat part "norm"> %x : !n0
  pipeline.task @make <U stage 0> on [0](%x) ties [] : (!n0) -> ()
}
// CHECK:      pipeline.rank 0 {
// CHECK-NEXT:   %[[N:.*]] = pipeline.slot stat "stat(0)" binding <norm>
// CHECK-NEXT:   pipeline.launch @make <U stage 0>() -> (%[[N]])
// CHECK-NEXT:   %[[P:.*]] = pipeline.post all_reduce <stat part "norm"> %[[N]] with [0, 1] channel 4
// CHECK-NEXT:   pipeline.complete %[[P]]
// CHECK-NEXT:   pipeline.launch @make <U stage 0>(%[[N]]) -> ()
// CHECK-NEXT: }
// CHECK-NEXT: pipeline.rank 1 {
// CHECK:        pipeline.post all_reduce <stat part "norm"> %{{.*}} with [0, 1] channel 4

// Sends of one `together` are completed when the next one begins, even with no launch between.
// CHECK-LABEL: pipeline.program @groups
pipeline.program @groups ranks 2 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["a", -1]] at <[0]>
  %w = pipeline.input <weight stage 0> : !w0
  %v = pipeline.input <weight stage 0> : !w0
  %f = pipeline.move <weight stage 0> %w group 0 : !w0 -> <!w1>
  %g = pipeline.move <weight stage 0> %v group 0 : !w0 -> <!w1>
  %h = pipeline.move <weight stage 0> %w group 1 : !w0 -> <!w1>
}
// CHECK:      pipeline.rank 0 {
// CHECK:        %[[F:.*]] = pipeline.post send {{.*}} group 0
// CHECK-NEXT:   %[[G:.*]] = pipeline.post send {{.*}} group 0
// CHECK-NEXT:   pipeline.complete %[[F]]
// CHECK-NEXT:   pipeline.complete %[[G]]
// CHECK-NEXT:   %[[H:.*]] = pipeline.post send {{.*}} group 1
// CHECK-NEXT:   pipeline.complete %[[H]]
// CHECK-NEXT: }

// What travels of weights and gradients is completed after the backward that an R begins, not after the R.
// CHECK-LABEL: pipeline.program @recompute
pipeline.program @recompute ranks 2 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["a", -1]] at <[0]>
  %w = pipeline.input <weight stage 0> : !w0
  %f = pipeline.move <weight stage 0> %w : !w0 -> <!w1>
  pipeline.task @use <R stage 0 mb 0> on [0](%w) ties [] : (!w0) -> ()
  pipeline.task @use <B stage 0 mb 0> on [0](%w) ties [] : (!w0) -> ()
  %x = pipeline.wait %f : <!w1> -> !w1
  pipeline.task @use <F stage 0 mb 0> on [1](%x) ties [] : (!w1) -> ()
}
// CHECK:      %[[S:.*]] = pipeline.post send <weight stage 0>
// CHECK:      pipeline.launch @use <R stage 0 mb 0>
// CHECK-NOT:  pipeline.complete
// CHECK:      pipeline.launch @use <B stage 0 mb 0>
// CHECK-NEXT: pipeline.complete %[[S]]
