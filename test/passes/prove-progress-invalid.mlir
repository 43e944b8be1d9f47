// Rank programs that would hang, each with the story of its waits.
// RUN: pp-opt %s --split-input-file --pp-prove-progress --verify-diagnostics

!s = !pipeline.slot<tuple<tensor<16xf32>>>

// Both ranks send first and wait for it; a send without a buffer ends when the other end has posted.
pipeline.program @p ranks 2 microbatches 2 slices 0 attributes {train = {}} {
  pipeline.rank 0 {
    %a = pipeline.slot act "a" : !s
    %b = pipeline.slot act "b" : !s
    // expected-error@+1 {{the ranks wait for each other: rank 0 sends `act(0, 0)` to rank 1 and waits, because rank 1 has not posted the receive}}
    %0 = pipeline.post send <act stage 0 mb 0> %a with [1] channel 1 : !s
    pipeline.complete %0
    %1 = pipeline.post receive <dact stage 1 mb 0> %b with [1] channel 2 : !s
    pipeline.complete %1
  }
  pipeline.rank 1 {
    %a = pipeline.slot act "a" : !s
    %b = pipeline.slot act "b" : !s
    // expected-note@+1 {{rank 1 sends `dact(1, 0)` to rank 0 and waits, because rank 0 has not posted the receive}}
    %0 = pipeline.post send <dact stage 1 mb 0> %b with [0] channel 2 : !s
    pipeline.complete %0
    // expected-note@+1 {{posted on rank 1 before it waits for `dact(1, 0)`, this receive would let every rank go on}}
    %1 = pipeline.post receive <act stage 0 mb 0> %a with [0] channel 1 : !s
    pipeline.complete %1
  }
}

// -----

!s = !pipeline.slot<tuple<tensor<16xf32>>>

// Both wait for the other's message first.
pipeline.program @p ranks 2 microbatches 2 slices 0 attributes {train = {}} {
  pipeline.rank 0 {
    %a = pipeline.slot act "a" : !s
    %b = pipeline.slot act "b" : !s
    // expected-error@+1 {{the ranks wait for each other: rank 0 waits for `dact(1, 0)` from rank 1, which rank 1 has not sent}}
    %1 = pipeline.post receive <dact stage 1 mb 0> %b with [1] channel 2 : !s
    pipeline.complete %1
    %0 = pipeline.post send <act stage 0 mb 0> %a with [1] channel 1 : !s
    pipeline.complete %0
  }
  pipeline.rank 1 {
    %a = pipeline.slot act "a" : !s
    %b = pipeline.slot act "b" : !s
    // expected-note@+1 {{rank 1 waits for `act(0, 0)` from rank 0, which rank 0 has not sent}}
    %1 = pipeline.post receive <act stage 0 mb 0> %a with [0] channel 1 : !s
    pipeline.complete %1
    // expected-note@+1 {{posted on rank 1 before it waits for `act(0, 0)`, this send would let every rank go on}}
    %0 = pipeline.post send <dact stage 1 mb 0> %b with [0] channel 2 : !s
    pipeline.complete %0
  }
}

// -----

!s = !pipeline.slot<tuple<tensor<16xf32>>>

// A ring of three that all send first: the story goes round it once.
pipeline.program @p ranks 3 microbatches 2 slices 0 attributes {train = {}} {
  pipeline.rank 0 {
    %a = pipeline.slot act "a" : !s
    %b = pipeline.slot act "b" : !s
    // expected-error@+1 {{the ranks wait for each other: rank 0 sends `weight(0)` to rank 1 and waits, because rank 1 has not posted the receive}}
    %0 = pipeline.post send <weight stage 0> %a with [1] channel 0 : !s
    pipeline.complete %0
    %1 = pipeline.post receive <weight stage 2> %b with [2] channel 2 : !s
    pipeline.complete %1
  }
  pipeline.rank 1 {
    %a = pipeline.slot act "a" : !s
    %b = pipeline.slot act "b" : !s
    // expected-note@+1 {{rank 1 sends `weight(1)` to rank 2 and waits, because rank 2 has not posted the receive}}
    %0 = pipeline.post send <weight stage 1> %a with [2] channel 1 : !s
    pipeline.complete %0
    // expected-note@+1 {{posted on rank 1 before it waits for `weight(1)`, this receive would let every rank go on}}
    %1 = pipeline.post receive <weight stage 0> %b with [0] channel 0 : !s
    pipeline.complete %1
  }
  pipeline.rank 2 {
    %a = pipeline.slot act "a" : !s
    %b = pipeline.slot act "b" : !s
    // expected-note@+1 {{rank 2 sends `weight(2)` to rank 0 and waits, because rank 0 has not posted the receive}}
    %0 = pipeline.post send <weight stage 2> %a with [0] channel 2 : !s
    pipeline.complete %0
    %1 = pipeline.post receive <weight stage 1> %b with [1] channel 1 : !s
    pipeline.complete %1
  }
}

// -----

!s = !pipeline.slot<tuple<tensor<16xf32>>>

// Nobody waits in turn: rank 1 has ended without the message that rank 0 waits for.
pipeline.program @p ranks 2 microbatches 2 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["s0", 0]]
  pipeline.rank 0 {
    %a = pipeline.slot act "a" : !s
    // expected-error@+1 {{rank 0 waits for `act(0, 0)` from rank 1, which never sends it}}
    %0 = pipeline.post receive <act stage 0 mb 0> %a with [1] channel 1 : !s
    pipeline.launch @s0.F <F stage 0 mb 0>() -> () : () -> ()
    pipeline.complete %0
  }
  pipeline.rank 1 {
  }
}

// -----

!s = !pipeline.slot<tuple<tensor<16xf32>>>

// A sum that one member waits in, while the other waits for a message that comes after it.
pipeline.program @p ranks 2 microbatches 2 slices 0 attributes {train = {}} {
  pipeline.rank 0 {
    %n = pipeline.slot stat "n" : !s
    %a = pipeline.slot act "a" : !s
    // expected-error@+1 {{the ranks wait for each other: rank 0 waits for the sum of `stat(norm)`, which rank 1 has not joined}}
    %0 = pipeline.post all_reduce <stat part "norm"> %n with [0, 1] channel 9 : !s
    pipeline.complete %0
    // expected-note@+1 {{posted on rank 0 before it waits for `stat(norm)`, this send would let every rank go on}}
    %1 = pipeline.post send <act stage 0 mb 0> %a with [1] channel 1 : !s
    pipeline.complete %1
  }
  pipeline.rank 1 {
    %n = pipeline.slot stat "n" : !s
    %a = pipeline.slot act "a" : !s
    // expected-note@+1 {{rank 1 waits for `act(0, 0)` from rank 0, which rank 0 has not sent}}
    %1 = pipeline.post receive <act stage 0 mb 0> %a with [0] channel 1 : !s
    pipeline.complete %1
    %0 = pipeline.post all_reduce <stat part "norm"> %n with [0, 1] channel 9 : !s
    pipeline.complete %0
  }
}

// -----

!s = !pipeline.slot<tuple<tensor<16xf32>>>

// What a send sends is computed after the wait, and the receive's slot is read before it: no post can stand earlier.
// The units say since when they wait.
pipeline.program @p ranks 2 microbatches 2 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["s0", 0]]
  pipeline.piece @s1 <stage 1> parts [["s1", 0]]
  pipeline.rank 0 {
    %a = pipeline.slot act "a" : !s
    %b = pipeline.slot act "b" : !s
    pipeline.launch @s0.F <F stage 0 mb 0>() -> () : () -> ()
    // expected-error@+1 {{the ranks wait for each other: rank 0 waits for `dact(1, 0)` from rank 1 after `F(0, 0)`, which rank 1 has not sent}}
    %1 = pipeline.post receive <dact stage 1 mb 0> %b with [1] channel 2 : !s
    pipeline.complete %1
    pipeline.launch @s0.F <F stage 0 mb 1>() -> (%a) : () -> (!s)
    %0 = pipeline.post send <act stage 0 mb 1> %a with [1] channel 1 : !s
    pipeline.complete %0
  }
  pipeline.rank 1 {
    %a = pipeline.slot act "a" : !s
    %b = pipeline.slot act "b" : !s
    pipeline.launch @s1.F <F stage 1 mb 0>() -> () : () -> ()
    // expected-note@+1 {{rank 1 waits for `act(0, 1)` from rank 0 after `F(1, 0)`, which rank 0 has not sent}}
    %1 = pipeline.post receive <act stage 0 mb 1> %a with [0] channel 1 : !s
    pipeline.complete %1
    pipeline.launch @s1.B <B stage 1 mb 0>(%a) -> (%b) : (!s) -> (!s)
    %0 = pipeline.post send <dact stage 1 mb 0> %b with [0] channel 2 : !s
    pipeline.complete %0
  }
}
