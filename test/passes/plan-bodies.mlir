// plan-bodies: where each value inside a task body lies.
// RUN: pp-opt %s --pp-plan-bodies | FileCheck %s

!x = tensor<2x4x8xf32>
!w = tensor<8x8xf32>

// What is returned is written into its result slot at once (pointers 2 and 3: act, stash), at its offset in the payload;
// what is not lies in the scratch memory. The sum overwrites the operand that dies, in the result slot.
// CHECK-LABEL: func.func private @results
// CHECK-SAME: pipeline.scratch_bytes = 256
func.func private @results(%x: !x, %w: !w) -> (!x, !x, !x) attributes {pipeline.inputs = #pipeline.groups<act x 1, weight x 1>,
    pipeline.results = #pipeline.groups<act x 1, stash x 2>, pipeline.ties = array<i64: -1, -1>} {
  // CHECK: nn.linear {{.*}} {pipeline.buffers = array<i64: 3, 0>}
  %a = nn.linear %x, %w : (!x, !w) -> !x
  // CHECK: nn.gelu {{.*}} {pipeline.buffers = array<i64: -1, 0>}
  %g = nn.gelu %a : (!x) -> !x
  // CHECK: nn.linear {{.*}} {pipeline.buffers = array<i64: 3, 256>}
  %b = nn.linear %g, %w : (!x, !w) -> !x
  // CHECK: nn.linear {{.*}} {pipeline.buffers = array<i64: 2, 0>}
  %c = nn.linear %b, %w : (!x, !w) -> !x
  // CHECK: nn.add {{.*}} {pipeline.buffers = array<i64: 2, 0>}
  %d = nn.add %c, %x : (!x, !x) -> !x
  return %d, %a, %b : !x, !x, !x
}

// Dead memory is used again: three values, two alive at a time.
// CHECK-LABEL: func.func private @reuse
// CHECK-SAME: pipeline.scratch_bytes = 512
func.func private @reuse(%x: !x, %w: !w) -> !x attributes {pipeline.inputs = #pipeline.groups<act x 1, weight x 1>,
    pipeline.results = #pipeline.groups<act x 1>, pipeline.ties = array<i64: -1>} {
  // CHECK: nn.linear {{.*}} {pipeline.buffers = array<i64: -1, 0>}
  %a = nn.linear %x, %w : (!x, !w) -> !x
  // CHECK: nn.gelu {{.*}} {pipeline.buffers = array<i64: -1, 256>}
  %b = nn.gelu %a : (!x) -> !x
  // CHECK: nn.linear {{.*}} {pipeline.buffers = array<i64: -1, 0>}
  %c = nn.linear %b, %w : (!x, !w) -> !x
  // CHECK: nn.gelu {{.*}} {pipeline.buffers = array<i64: 2, 0>}
  %d = nn.gelu %c : (!x) -> !x
  return %d : !x
}

// An operand that dies hands its buffer to the result where the kernel allows it, an argument never does.
// CHECK-LABEL: func.func private @in_place
// CHECK-SAME: pipeline.scratch_bytes = 256
func.func private @in_place(%x: !x, %w: !w) -> !x attributes {pipeline.inputs = #pipeline.groups<act x 1, weight x 1>,
    pipeline.results = #pipeline.groups<act x 1>, pipeline.ties = array<i64: -1>} {
  // CHECK: nn.add {{.*}} {pipeline.buffers = array<i64: -1, 0>}
  %a = nn.add %x, %x : (!x, !x) -> !x
  // CHECK: nn.add {{.*}} {pipeline.buffers = array<i64: -1, 0>}
  %b = nn.add %a, %x : (!x, !x) -> !x
  // CHECK: nn.linear {{.*}} {pipeline.buffers = array<i64: 2, 0>}
  %c = nn.linear %b, %w : (!x, !w) -> !x
  return %c : !x
}

// What a product is added to is read behind the product, where two kernels run them: no sum lies in its place, also not
// where nothing reads it afterwards, nor where the product's own operand lies.
// CHECK-LABEL: func.func private @residual
// CHECK-SAME: pipeline.scratch_bytes = 768
func.func private @residual(%x: !x, %w: !w) -> !x attributes {pipeline.inputs = #pipeline.groups<act x 1, weight x 1>,
    pipeline.results = #pipeline.groups<act x 1>, pipeline.ties = array<i64: -1>} {
  // CHECK: nn.gelu {{.*}} {pipeline.buffers = array<i64: -1, 0>}
  %r = nn.gelu %x : (!x) -> !x
  // CHECK: nn.linear {{.*}} {pipeline.buffers = array<i64: -1, 256>}
  %h = nn.linear %r, %w : (!x, !w) -> !x
  // CHECK: nn.linear_add {{.*}} {pipeline.buffers = array<i64: -1, 512>}
  %y = nn.linear_add %h, %w to %r : (!x, !w, !x) -> !x
  // CHECK: nn.linear {{.*}} {pipeline.buffers = array<i64: 2, 0>}
  %c = nn.linear %y, %w : (!x, !w) -> !x
  return %c : !x
}

// Gradients are summed in the input's slot (pointer 2), through every op that adds; nothing is needed beside it.
// CHECK-LABEL: func.func private @tied
// CHECK-SAME: pipeline.scratch_bytes = 0
func.func private @tied(%x: !x, %dy: !x, %g: !w) -> !w attributes {pipeline.inputs = #pipeline.groups<act x 1, dact x 1, grad x 1>,
    pipeline.results = #pipeline.groups<grad x 1>, pipeline.ties = array<i64: 2>} {
  // CHECK: nn.linear_dw {{.*}} {pipeline.buffers = array<i64: 2, 0>}
  %a = nn.linear_dw %x, %dy into %g : (!x, !x, !w) -> !w
  // CHECK: nn.linear_dw {{.*}} {pipeline.buffers = array<i64: 2, 0>}
  %b = nn.linear_dw %dy, %x into %a : (!x, !x, !w) -> !w
  return %b : !w
}

// Without an input to add to, the chain of sums starts in the result's slot.
// CHECK-LABEL: func.func private @first
// CHECK-SAME: pipeline.scratch_bytes = 0
func.func private @first(%x: !x, %dy: !x) -> !w attributes {pipeline.inputs = #pipeline.groups<act x 1, dact x 1>,
    pipeline.results = #pipeline.groups<grad x 1>, pipeline.ties = array<i64: -1>} {
  // CHECK: nn.linear_dw {{.*}} {pipeline.buffers = array<i64: 2, 0>}
  %a = nn.linear_dw %x, %dy : (!x, !x) -> !w
  // CHECK: nn.linear_dw {{.*}} {pipeline.buffers = array<i64: 2, 0>}
  %b = nn.linear_dw %dy, %x into %a : (!x, !x, !w) -> !w
  return %b : !w
}

// An argument that must appear in another slot, or a value returned twice, is copied there.
// CHECK-LABEL: func.func private @copied
func.func private @copied(%x: !x, %w: !w) -> (!x, !x, !x) attributes {pipeline.inputs = #pipeline.groups<act x 1, weight x 1>,
    pipeline.results = #pipeline.groups<act x 1, stash x 2>, pipeline.ties = array<i64: -1, -1>} {
  // CHECK: %[[Y:.*]] = nn.linear {{.*}} {pipeline.buffers = array<i64: 2, 0>}
  %y = nn.linear %x, %w : (!x, !w) -> !x
  // CHECK: %[[A:.*]] = nn.copy %arg0 {pipeline.buffers = array<i64: 3, 0>}
  // CHECK: %[[B:.*]] = nn.copy %[[Y]] {pipeline.buffers = array<i64: 3, 256>}
  // CHECK: return %[[Y]], %[[A]], %[[B]]
  return %y, %x, %y : !x, !x, !x
}

// Several results, of which nobody reads one: it still needs a place while its op runs. Statistics round up to 64 bytes.
// CHECK-LABEL: func.func private @unread
// CHECK-SAME: pipeline.scratch_bytes = 128
func.func private @unread(%x: !x, %g: tensor<8xf32>, %b: tensor<8xf32>) -> !x attributes {
    pipeline.inputs = #pipeline.groups<act x 1, weight x 2>, pipeline.results = #pipeline.groups<act x 1>, pipeline.ties = array<i64: -1>} {
  // CHECK: nn.layernorm {{.*}} {pipeline.buffers = array<i64: 2, 0, -1, 0, -1, 64>}
  %y, %mean, %rstd = nn.layernorm %x, %g, %b
      : (!x, tensor<8xf32>, tensor<8xf32>) -> (!x, tensor<2x4xf32>, tensor<2x4xf32>)
  return %y : !x
}

// A function that is no task body is left alone.
// CHECK-LABEL: func.func private @part
// CHECK-NOT: pipeline.buffers
func.func private @part(%x: !x, %w: !w) -> !x {
  %a = nn.linear %x, %w : (!x, !w) -> !x
  return %a : !x
}

// I ends the stash. %o waits for W where it is; %k, made when %u is read no more, takes the place of %u; %g is made before
// that and gets a place of its own. Pointers: 0 stash, 4 pending.
// CHECK-LABEL: func.func private @hands
// CHECK-SAME: pipeline.handed = array<i64: 0, 1, 4, 0, 0, 0, 4, 2>
func.func private @hands(%u: !x, %o: !x, %w: !w, %dy: !x) -> (!x, !x, !x, !x) attributes {
    pipeline.inputs = #pipeline.groups<stash x 2, weight x 1, dact x 1>, pipeline.results = #pipeline.groups<dact x 1, pending x 3>,
    pipeline.ties = array<i64: -1, -1>} {
  // CHECK-NOT: nn.copy
  // CHECK: nn.gelu {{.*}} {pipeline.buffers = array<i64: 4, 256>}
  %g = nn.gelu %u : (!x) -> !x
  %h = nn.add %u, %dy : (!x, !x) -> !x
  // CHECK: nn.linear {{.*}} {pipeline.buffers = array<i64: 4, 512>}
  %k = nn.linear %h, %w : (!x, !w) -> !x
  %e = nn.linear %k, %w : (!x, !w) -> !x
  // CHECK: return %{{.*}}, %arg1, %{{.*}}, %{{.*}} :
  return %e, %o, %g, %k : !x, !x, !x, !x
}

// A sum may be written over its first operand, so it may take that one's place although it reads it.
// CHECK-LABEL: func.func private @hands_in_place
// CHECK-SAME: pipeline.handed = array<i64: 0, 0, 3, 0>
func.func private @hands_in_place(%u: !x, %dy: !x, %w: !w) -> (!x, !x) attributes {
    pipeline.inputs = #pipeline.groups<stash x 1, dact x 1, weight x 1>, pipeline.results = #pipeline.groups<pending x 1, dact x 1>,
    pipeline.ties = array<i64: -1, -1>} {
  %h = nn.add %u, %dy : (!x, !x) -> !x
  %e = nn.linear %dy, %w : (!x, !w) -> !x
  return %h, %e : !x, !x
}

// A linear may not: it reads all of its input for every column that it writes.
// CHECK-LABEL: func.func private @hands_nothing
// CHECK-NOT: pipeline.handed
// CHECK: return
func.func private @hands_nothing(%u: !x, %dy: !x, %w: !w) -> (!x, !x) attributes {
    pipeline.inputs = #pipeline.groups<stash x 1, dact x 1, weight x 1>, pipeline.results = #pipeline.groups<pending x 1, dact x 1>,
    pipeline.ties = array<i64: -1, -1>} {
  %h = nn.linear %u, %w : (!x, !w) -> !x
  %e = nn.linear %dy, %w : (!x, !w) -> !x
  return %h, %e : !x, !x
}

// Rows of the argument lie in it, 8 rows of 32 bytes on. What is joined is computed where it belongs, in a result slot or
// in the scratch memory; what is between is there for one run only: u takes 256 bytes, not 512.
!long = tensor<2x8x8xf32>
!run = tensor<1x8x8xf32>
// CHECK-LABEL: func.func private @rows
// CHECK-SAME: pipeline.scratch_bytes = 768
func.func private @rows(%x: !long, %w: !w) -> !long attributes {pipeline.inputs = #pipeline.groups<act x 1, weight x 1>,
    pipeline.results = #pipeline.groups<act x 1>, pipeline.ties = array<i64: -1>} {
  // CHECK: nn.rows {{.*}} {count = 8 : i64, pipeline.buffers = array<i64: 0, 0>, start = 0 : i64}
  %a = nn.rows %x {start = 0 : i64, count = 8 : i64} : (!long) -> !run
  // CHECK: nn.rows {{.*}} {count = 8 : i64, pipeline.buffers = array<i64: 0, 256>, start = 8 : i64}
  %b = nn.rows %x {start = 8 : i64, count = 8 : i64} : (!long) -> !run
  // CHECK: nn.linear {{.*}} {pipeline.buffers = array<i64: -1, 0>}
  %u = nn.linear %a, %w : (!run, !w) -> !run
  // CHECK: nn.gelu {{.*}} {pipeline.buffers = array<i64: -1, 256>}
  %c = nn.gelu %u : (!run) -> !run
  // CHECK: nn.linear {{.*}} {pipeline.buffers = array<i64: -1, 0>}
  %v = nn.linear %b, %w : (!run, !w) -> !run
  // CHECK: nn.gelu {{.*}} {pipeline.buffers = array<i64: -1, 512>}
  %d = nn.gelu %v : (!run) -> !run
  // CHECK: nn.join_rows {{.*}} pipeline.buffers = array<i64: -1, 256>
  %h = nn.join_rows %c, %d {batch = 2 : i64} : (!run, !run) -> !long
  // CHECK: nn.gelu {{.*}} {pipeline.buffers = array<i64: 2, 0>}
  %y = nn.gelu %h : (!long) -> !long
  return %y : !long
}

// A run that is an argument, another run, or wanted twice cannot lie where it is joined: it is copied there.
// CHECK-LABEL: func.func private @copied_rows
// CHECK-SAME: pipeline.scratch_bytes = 0
func.func private @copied_rows(%x: !run, %y: !long) -> (!long, !run) attributes {pipeline.inputs = #pipeline.groups<act x 2>,
    pipeline.results = #pipeline.groups<act x 2>, pipeline.ties = array<i64: -1>} {
  // CHECK: %[[ROWS:.*]] = nn.rows %{{.*}} pipeline.buffers = array<i64: 0, 256>
  %r = nn.rows %y {start = 0 : i64, count = 8 : i64} : (!long) -> !run
  // CHECK: %[[A:.*]] = nn.copy %{{.*}} {pipeline.buffers = array<i64: 1, 0>}
  // CHECK: %[[B:.*]] = nn.copy %[[ROWS]] {pipeline.buffers = array<i64: 1, 256>}
  // CHECK: %[[J:.*]] = nn.join_rows %[[A]], %[[B]]
  %j = nn.join_rows %x, %r {batch = 2 : i64} : (!run, !run) -> !long
  // CHECK: %[[C:.*]] = nn.copy %[[ROWS]] {pipeline.buffers = array<i64: 1, 512>}
  // CHECK: return %[[J]], %[[C]]
  return %j, %r : !long, !run
}
