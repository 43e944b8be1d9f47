// The moves of a group go through a lane side by side: an exchange ends with one lane for each rank, and not without the group.
// RUN: pp-opt %s --pp-prove-progress=channels=rank | FileCheck %s
// RUN: sed 's/ group 7//' %s | not pp-opt --pp-prove-progress=channels=rank 2>&1 | FileCheck %s --check-prefix=ALONE
// RUN: sed 's/ group 7//' %s | pp-opt --pp-prove-progress=channels=edge | FileCheck %s --check-prefix=EDGE
// CHECK: proof = {progress = {channels = "rank", lanes = 2 : i64, messages = 2 : i64}}
// EDGE:  proof = {progress = {channels = "edge", lanes = 2 : i64, messages = 2 : i64}}
// ALONE: error: the ranks wait for each other: `weight(0)` from rank 0 to rank 1 cannot go
// ALONE: note: `weight(1)` from rank 1 to rank 0 cannot go

!s = !pipeline.slot<tuple<tensor<16xf32>>>

pipeline.program @exchange ranks 2 microbatches 2 slices 0 attributes {train = {}} {
  pipeline.rank 0 {
    %w = pipeline.slot weight "w" : !s
    %v = pipeline.slot weight "v" : !s
    %0 = pipeline.post send <weight stage 0> %w with [1] channel 1 group 7 : !s
    %1 = pipeline.post receive <weight stage 1> %v with [1] channel 2 group 7 : !s
    pipeline.complete %0
    pipeline.complete %1
  }
  pipeline.rank 1 {
    %w = pipeline.slot weight "w" : !s
    %v = pipeline.slot weight "v" : !s
    %1 = pipeline.post send <weight stage 1> %v with [0] channel 2 group 7 : !s
    %0 = pipeline.post receive <weight stage 0> %w with [0] channel 1 group 7 : !s
    pipeline.complete %0
    pipeline.complete %1
  }
}
