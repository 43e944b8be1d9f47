// Programs that end where every directed edge has a lane, and hang where messages share lanes.
// RUN: pp-opt %s --split-input-file --pp-prove-progress=channels=rank --verify-diagnostics
// RUN: pp-opt %s --split-input-file --pp-prove-progress=channels=edge > %t

!s = !pipeline.slot<tuple<tensor<16xf32>>>

// 1F1B with two microbatches, receives posted just before they are needed. Rank 0 has act(0, 1) before dact(1, 0), rank
// 1 the other way round: with one lane for each rank neither can go. No rank is at fault alone; the lanes are.
pipeline.program @just_in_time ranks 2 microbatches 2 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["s0", 0]]
  pipeline.piece @s1 <stage 1> parts [["s1", 0]]
  pipeline.rank 0 {
    %a0 = pipeline.slot act "a0" : !s
    %a1 = pipeline.slot act "a1" : !s
    %d0 = pipeline.slot dact "d0" : !s
    pipeline.launch @s0.F <F stage 0 mb 0>() -> (%a0) : () -> (!s)
    %0 = pipeline.post send <act stage 0 mb 0> %a0 with [1] channel 1 : !s
    pipeline.launch @s0.F <F stage 0 mb 1>() -> (%a1) : () -> (!s)
    %1 = pipeline.post send <act stage 0 mb 1> %a1 with [1] channel 1 : !s
    // expected-note@+1 {{`dact(1, 0)` from rank 1 to rank 0 cannot go, because it stands behind `act(0, 1)` from rank 0 to rank 1 in the lane of rank 0; rank 0 waits for it after `F(0, 1)`}}
    %2 = pipeline.post receive <dact stage 1 mb 0> %d0 with [1] channel 2 : !s
    pipeline.complete %2
    pipeline.launch @s0.B <B stage 0 mb 0>(%d0) -> () : (!s) -> ()
    pipeline.complete %0
    pipeline.complete %1
  }
  pipeline.rank 1 {
    %a0 = pipeline.slot act "a0" : !s
    %a1 = pipeline.slot act "a1" : !s
    %d0 = pipeline.slot dact "d0" : !s
    %0 = pipeline.post receive <act stage 0 mb 0> %a0 with [0] channel 1 : !s
    pipeline.complete %0
    pipeline.launch @s1.F <F stage 1 mb 0>(%a0) -> () : (!s) -> ()
    pipeline.launch @s1.B <B stage 1 mb 0>() -> (%d0) : () -> (!s)
    %2 = pipeline.post send <dact stage 1 mb 0> %d0 with [0] channel 2 : !s
    // expected-error@+2 {{the ranks wait for each other: `act(0, 1)` from rank 0 to rank 1 cannot go, because it stands behind `dact(1, 0)` from rank 1 to rank 0 in the lane of rank 1; rank 1 waits for it after `B(1, 0)`}}
    // expected-note@+1 {{posted on rank 1 before `dact(1, 0)`, this receive would let every rank go on}}
    %1 = pipeline.post receive <act stage 0 mb 1> %a1 with [0] channel 1 : !s
    pipeline.complete %1
    pipeline.launch @s1.F <F stage 1 mb 1>(%a1) -> () : (!s) -> ()
    pipeline.complete %2
  }
}

// -----

!s = !pipeline.slot<tuple<tensor<16xf32>>>

// A group goes through a lane as one: act(0, 1) stands behind all of it on rank 0 and before it on rank 1.
pipeline.program @groups ranks 2 microbatches 2 slices 0 attributes {train = {}} {
  pipeline.rank 0 {
    %w = pipeline.slot weight "w" : !s
    %v = pipeline.slot weight "v" : !s
    %a = pipeline.slot act "a" : !s
    %0 = pipeline.post send <weight stage 0> %w with [1] channel 1 group 7 : !s
    %1 = pipeline.post receive <weight stage 1> %v with [1] channel 2 group 7 : !s
    // expected-note@+2 {{`act(0, 1)` from rank 0 to rank 1 cannot go, because it stands behind `weight(0)` from rank 0 to rank 1 in the lane of rank 0; rank 1 waits for it}}
    // expected-note@+1 {{posted on rank 0 before `weight(0)`, this send would let every rank go on}}
    %2 = pipeline.post send <act stage 0 mb 1> %a with [1] channel 3 : !s
    pipeline.complete %0
    pipeline.complete %1
    pipeline.complete %2
  }
  pipeline.rank 1 {
    %w = pipeline.slot weight "w" : !s
    %v = pipeline.slot weight "v" : !s
    %a = pipeline.slot act "a" : !s
    %2 = pipeline.post receive <act stage 0 mb 1> %a with [0] channel 3 : !s
    %1 = pipeline.post send <weight stage 1> %v with [0] channel 2 group 7 : !s
    // expected-error@+1 {{the ranks wait for each other: `weight(0)` from rank 0 to rank 1 cannot go, because it stands behind `act(0, 1)` from rank 0 to rank 1 in the lane of rank 1; rank 0 waits for it}}
    %0 = pipeline.post receive <weight stage 0> %w with [0] channel 1 group 7 : !s
    pipeline.complete %2
    pipeline.complete %0
    pipeline.complete %1
  }
}
