// One object for each rank and one for their table; what the program says about itself; the same bytes every time.
// RUN: rm -rf %t && pp-compile %s --emit=obj -o %t/a && pp-compile %s --emit=obj -o %t/b
// RUN: diff -r %t/a %t/b
// RUN: pp-compile %s --emit=obj --rank=1 -o %t/one.o && cmp %t/one.o %t/a/rank1.o
// RUN: nm %t/a/rank0.o | FileCheck %s --check-prefix=RANK
// RUN: nm %t/a/table.o | FileCheck %s --check-prefix=TABLE
// RUN: strings -n 20 %t/a/table.o | FileCheck %s --check-prefix=JSON
// RUN: not pp-compile %s --emit=obj --rank=2 2>&1 | FileCheck %s --check-prefix=NONE

// Of a rank only its step and its text are seen from outside.
// RANK-DAG: R pp_json_0
// RANK-DAG: T pp_step_0
// RANK-DAG: U pp_gelu
// RANK-DAG: t s0.F

// TABLE-DAG: U pp_json_0
// TABLE-DAG: U pp_json_1
// TABLE-DAG: R pp_program_json
// TABLE-DAG: R pp_rank_count
// TABLE-DAG: {{[DR]}} pp_rank_table
// TABLE-DAG: U pp_step_0
// TABLE-DAG: U pp_step_1

// Two F and one R of 1000 flops each: recomputation is no useful work. A tied weight is counted where it is owned.
// JSON: {"name":"two","model":"toy","schedule":"hand","ranks":2,"microbatches":3,"batch":2,"sequence":4,"vocab":16,
// JSON-SAME: "precision":"f32","parameters":32,"flops_per_step":2000.0,"tokens_per_step":24,
// JSON-SAME: "optimizer":{"clip":1.0,"lr":0.001,"warmup":10}}

// NONE: rank 2 does not exist; this program has 2 ranks, 0 to 1

!x = tensor<2x4x8xf32>
!s = !pipeline.slot<tuple<!x>>

func.func private @s0.F(%x: !x) -> !x attributes {
    pipeline.inputs = [["act", 1]], pipeline.results = [["act", 1]], pipeline.ties = array<i64: -1>,
    pipeline.flops = 1000.0 : f64} {
  %a = nn.gelu %x : (!x) -> !x
  return %a : !x
}

pipeline.program @two ranks 2 microbatches 3 slices 0 attributes {train = {
    model = "toy", schedule = "hand", batch = 2, sequence = 4, vocab = 16, precision = "f32",
    optimizer = {lr = 1.0e-3 : f64, clip = 1.0 : f64, warmup = 10}}} {
  pipeline.piece @s0 <stage 0> parts [["pre", 0]] {weights = [
    #pipeline.weight<name = "a", type = tensor<4x8xf32>, transposed = false, init = "zero", deviation = 0.0 : f64, tied = false>]}
  pipeline.piece @s1 <stage 1> parts [["pre", 1]] {weights = [
    #pipeline.weight<name = "a", type = tensor<4x8xf32>, transposed = false, init = "zero", deviation = 0.0 : f64, tied = true>]}
  pipeline.rank 0 arena 512 {
    %x = pipeline.slot act "x" offset 0 : !s
    %y = pipeline.slot act "y" offset 256 : !s
    pipeline.launch @s0.F <F stage 0 mb 0>(%x) -> (%y) : (!s) -> (!s)
    pipeline.launch @s0.F <R stage 0 mb 0>(%x) -> (%y) : (!s) -> (!s)
  }
  pipeline.rank 1 arena 512 {
    %x = pipeline.slot act "x" offset 0 : !s
    %y = pipeline.slot act "y" offset 256 : !s
    pipeline.launch @s0.F <F stage 1 mb 0>(%x) -> (%y) : (!s) -> (!s)
  }
}
