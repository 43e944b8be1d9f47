// Arenas within their limits: that of the option, else that of the cluster, else none.
// RUN: pp-opt %s --pp-prove-memory=limit=320 | FileCheck %s --check-prefix=OPTION
// RUN: pp-opt %s --pp-prove-memory | FileCheck %s --check-prefix=CLUSTER
// RUN: sed 's/cluster = [^}]*}, //' %s | pp-opt --pp-prove-memory | FileCheck %s --check-prefix=NONE
// RUN: not pp-opt %s --pp-prove-memory=limit=319 2>&1 | FileCheck %s --check-prefix=LESS
// Each rank has a device of its own kind; one limit that is given is that of all.
// RUN: sed 's/memory = 4.0e2 : f64/memory = array<i64: 64, 320>/' %s > %t.mlir && pp-opt %t.mlir --pp-prove-memory | FileCheck %s --check-prefix=KINDS
// RUN: sed 's/memory = 4.0e2 : f64/memory = array<i64: 320, 64>/' %s | pp-opt --pp-prove-memory=limit=320 | FileCheck %s --check-prefix=OPTION
// KINDS:   proof = {memory = {largest = 320 : i64, limit = "of each rank's devices"}}
// OPTION:  proof = {memory = {largest = 320 : i64, limit = 320 : i64}}
// CLUSTER: proof = {memory = {largest = 320 : i64, limit = 400 : i64}}
// NONE:    proof = {memory = {largest = 320 : i64}}
// LESS:    error: rank 1 needs 320 bytes (320 B), more than its limit of 319 bytes (319 B)

!s = !pipeline.slot<tuple<tensor<16xf32>>>

pipeline.program @p ranks 2 microbatches 1 slices 0 attributes {cluster = {memory = 4.0e2 : f64}, train = {}} {
  pipeline.piece @s0 <stage 0> parts [["s0", 0]]
  pipeline.rank 0 arena 64 {
    %a = pipeline.slot act "act(0, 0)" offset 0 : !s
    pipeline.launch @s0.F <F stage 0 mb 0>() -> (%a) : () -> (!s)
  }
  pipeline.rank 1 arena 320 {
    %a = pipeline.slot act "act(0, 0)" offset 256 : !s
    pipeline.launch @s0.F <F stage 0 mb 0>() -> (%a) : () -> (!s)
  }
}
