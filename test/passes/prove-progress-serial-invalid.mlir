// Where posts block all behind them, those of one `together` go as one only if nothing stands between them.
// RUN: pp-opt %s --split-input-file --pp-prove-progress=channels=serial --verify-diagnostics
// RUN: pp-opt %s --split-input-file --pp-prove-progress=channels=rank | FileCheck %s
// RUN: sed '/B stage/d' %s | pp-opt --split-input-file --pp-prove-progress=all | FileCheck %s --check-prefix=ALL
// CHECK: proof = {progress = {channels = "rank", lanes = 2 : i64, messages = 2 : i64}}
// ALL:   proof = {progress = {channels = "edge, pair, direction, rank, serial", lanes = 2 : i64, messages = 2 : i64}}

!s = !pipeline.slot<tuple<tensor<16xf32>>>

// Each rank stands in its send, and the other one posts the receive behind a unit.
pipeline.program @exchange ranks 2 microbatches 2 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["s0", 0]]
  pipeline.piece @s1 <stage 1> parts [["s1", 0]]
  pipeline.rank 0 {
    %w = pipeline.slot weight "w" : !s
    %v = pipeline.slot weight "v" : !s
    %d = pipeline.slot dact "d" : !s
    pipeline.launch @s0.F <F stage 0 mb 0>() -> (%d) : () -> (!s)
    // expected-error@+1 {{the ranks wait for each other, if posts block: rank 0 sends `weight(0)` to rank 1 and waits after `F(0, 0)`, because rank 1 has not posted the receive}}
    %0 = pipeline.post send <weight stage 0> %w with [1] channel 1 group 7 : !s
    pipeline.launch @s0.B <B stage 0 mb 0>(%d) -> () : (!s) -> ()
    %1 = pipeline.post receive <weight stage 1> %v with [1] channel 2 group 7 : !s
    pipeline.complete %0
    pipeline.complete %1
  }
  pipeline.rank 1 {
    %w = pipeline.slot weight "w" : !s
    %v = pipeline.slot weight "v" : !s
    %d = pipeline.slot dact "d" : !s
    pipeline.launch @s1.F <F stage 1 mb 0>() -> (%d) : () -> (!s)
    // expected-note@+1 {{rank 1 sends `weight(1)` to rank 0 and waits after `F(1, 0)`, because rank 0 has not posted the receive}}
    %1 = pipeline.post send <weight stage 1> %v with [0] channel 2 group 7 : !s
    pipeline.launch @s1.B <B stage 1 mb 0>(%d) -> () : (!s) -> ()
    // expected-note@+1 {{posted on rank 1 before `weight(1)`, this receive would let every rank go on}}
    %0 = pipeline.post receive <weight stage 0> %w with [0] channel 1 group 7 : !s
    pipeline.complete %0
    pipeline.complete %1
  }
}
