// prove-bodies: bodies that verify and plan, and compute something else than what the parts derive.
// RUN: pp-opt %s --pp-prove-bodies --split-input-file --verify-diagnostics

// The same operand twice: the types fit.
!x = tensor<1x4x8xf32>
!w = tensor<8x8xf32>
#w = #pipeline.weight<"post.0.w" : tensor<8x8xf32> declared <"w" normal 0.0>>
func.func private @post(%x: !x, %w: !w {nn.weight = #nn.weight<"w" normal 0.0>}) -> !x {
  %u = nn.scale %x {factor = 0.5} : (!x) -> !x
  // expected-note@+1 {{derived from what stands here}}
  %y = nn.linear %u, %w : (!x, !w) -> !x
  %z = nn.add %y, %x : (!x, !x) -> !x
  return %z : !x
}
pipeline.program @p ranks 1 microbatches 2 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["post", 0]] bodies "s0" {weights = [#w]}
  pipeline.rank 0 {
    pipeline.launch @b <B stage 0 mb 0>() -> () : () -> ()
  }
}
func.func private @b(%u: !x, %w: !w, %dz: !x) -> (!x, !w) attributes {pipeline.body = #pipeline.body<"s0" B first>,
    pipeline.flops = 1088.0 : f64, pipeline.inputs = #pipeline.groups<stash x 1, weight x 1, dact x 1>,
    pipeline.results = #pipeline.groups<dact x 1, grad x 1>, pipeline.ties = array<i64: -1, -1>} {
  // expected-error@+1 {{`@b` is not what the parts of `s0` derive: operand 0 of `nn.linear_dw` is another value}}
  %dw = nn.linear_dw %dz, %dz : (!x, !x) -> !w
  %du = nn.linear_dx %dz, %w : (!x, !w) -> !x
  %dx = nn.scale %du {factor = 0.5} : (!x) -> !x
  %sum = nn.add %dz, %dx : (!x, !x) -> !x
  return %sum, %dw : !x, !w
}

// -----

// Another number.
!x = tensor<1x4x8xf32>
!w = tensor<8x8xf32>
#w = #pipeline.weight<"post.0.w" : tensor<8x8xf32> declared <"w" normal 0.0>>
func.func private @post(%x: !x, %w: !w {nn.weight = #nn.weight<"w" normal 0.0>}) -> !x {
  // expected-note@+1 {{derived from what stands here}}
  %u = nn.scale %x {factor = 0.5} : (!x) -> !x
  %y = nn.linear %u, %w : (!x, !w) -> !x
  %z = nn.add %y, %x : (!x, !x) -> !x
  return %z : !x
}
pipeline.program @p ranks 1 microbatches 2 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["post", 0]] bodies "s0" {weights = [#w]}
  pipeline.rank 0 {
    pipeline.launch @b <B stage 0 mb 0>() -> () : () -> ()
  }
}
func.func private @b(%u: !x, %w: !w, %dz: !x) -> (!x, !w) attributes {pipeline.body = #pipeline.body<"s0" B first>,
    pipeline.flops = 1088.0 : f64, pipeline.inputs = #pipeline.groups<stash x 1, weight x 1, dact x 1>,
    pipeline.results = #pipeline.groups<dact x 1, grad x 1>, pipeline.ties = array<i64: -1, -1>} {
  %dw = nn.linear_dw %u, %dz : (!x, !x) -> !w
  %du = nn.linear_dx %dz, %w : (!x, !w) -> !x
  // expected-error@+1 {{`@b` is not what the parts of `s0` derive: expected {factor = 5.000000e-01 : f64}, got {factor = 2.500000e-01 : f64}}}
  %dx = nn.scale %du {factor = 0.25} : (!x) -> !x
  %sum = nn.add %dz, %dx : (!x, !x) -> !x
  return %sum, %dw : !x, !w
}

// -----

// The residual's gradient is lost.
!x = tensor<1x4x8xf32>
!w = tensor<8x8xf32>
#w = #pipeline.weight<"post.0.w" : tensor<8x8xf32> declared <"w" normal 0.0>>
func.func private @post(%x: !x, %w: !w {nn.weight = #nn.weight<"w" normal 0.0>}) -> !x {
  %u = nn.scale %x {factor = 0.5} : (!x) -> !x
  %y = nn.linear %u, %w : (!x, !w) -> !x
  %z = nn.add %y, %x : (!x, !x) -> !x
  return %z : !x
}
pipeline.program @p ranks 1 microbatches 2 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["post", 0]] bodies "s0" {weights = [#w]}
  pipeline.rank 0 {
    pipeline.launch @b <B stage 0 mb 0>() -> () : () -> ()
  }
}
func.func private @b(%u: !x, %w: !w, %dz: !x) -> (!x, !w) attributes {pipeline.body = #pipeline.body<"s0" B first>,
    pipeline.flops = 1088.0 : f64, pipeline.inputs = #pipeline.groups<stash x 1, weight x 1, dact x 1>,
    pipeline.results = #pipeline.groups<dact x 1, grad x 1>, pipeline.ties = array<i64: -1, -1>} {
  %dw = nn.linear_dw %u, %dz : (!x, !x) -> !w
  %du = nn.linear_dx %dz, %w : (!x, !w) -> !x
  %dx = nn.scale %du {factor = 0.5} : (!x) -> !x
  %sum = nn.add %dz, %dx : (!x, !x) -> !x
  // expected-error@+1 {{`@b` is not what the parts of `s0` derive: tensor 0 that it returns is another value}}
  return %dx, %dw : !x, !w
}

// -----

// What is called the weight is the gradient of what goes on.
!x = tensor<1x4x8xf32>
!w = tensor<8x8xf32>
#w = #pipeline.weight<"post.0.w" : tensor<8x8xf32> declared <"w" normal 0.0>>
func.func private @post(%x: !x, %w: !w {nn.weight = #nn.weight<"w" normal 0.0>}) -> !x {
  %u = nn.scale %x {factor = 0.5} : (!x) -> !x
  %y = nn.linear %u, %w : (!x, !w) -> !x
  %z = nn.add %y, %x : (!x, !x) -> !x
  return %z : !x
}
pipeline.program @p ranks 1 microbatches 2 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["post", 0]] bodies "s0" {weights = [#w]}
  pipeline.rank 0 {
    pipeline.launch @b <B stage 0 mb 0>() -> () : () -> ()
  }
}
// expected-error@+1 {{`@b` is not what the parts of `s0` derive: expected `pipeline.inputs = #pipeline.groups<stash x 1, weight x 1, dact x 1>`}}
func.func private @b(%u: !x, %w: !w, %dz: !x) -> (!x, !w) attributes {pipeline.body = #pipeline.body<"s0" B first>,
    pipeline.flops = 1088.0 : f64, pipeline.inputs = #pipeline.groups<stash x 1, grad x 1, dact x 1>,
    pipeline.results = #pipeline.groups<dact x 1, grad x 1>, pipeline.ties = array<i64: -1, -1>} {
  %dw = nn.linear_dw %u, %dz : (!x, !x) -> !w
  %du = nn.linear_dx %dz, %w : (!x, !w) -> !x
  %dx = nn.scale %du {factor = 0.5} : (!x) -> !x
  %sum = nn.add %dz, %dx : (!x, !x) -> !x
  return %sum, %dw : !x, !w
}

// -----

// A body of a phase that the program does not run, and a piece that says it has.
!x = tensor<1x4x8xf32>
!w = tensor<8x8xf32>
#w = #pipeline.weight<"post.0.w" : tensor<8x8xf32> declared <"w" normal 0.0>>
func.func private @post(%x: !x, %w: !w {nn.weight = #nn.weight<"w" normal 0.0>}) -> !x {
  %u = nn.scale %x {factor = 0.5} : (!x) -> !x
  %y = nn.linear %u, %w : (!x, !w) -> !x
  %z = nn.add %y, %x : (!x, !x) -> !x
  return %z : !x
}
pipeline.program @p ranks 1 microbatches 2 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["post", 0]] bodies "s0" {weights = [#w]}
  pipeline.rank 0 {
    pipeline.launch @b <B stage 0 mb 0>() -> () : () -> ()
  }
}
// expected-error@+1 {{`@b` is `s0.W.first`, which the parts of `s0` do not derive}}
func.func private @b(%u: !x, %w: !w, %dz: !x) -> (!x, !w) attributes {pipeline.body = #pipeline.body<"s0" W first>,
    pipeline.flops = 1088.0 : f64, pipeline.inputs = #pipeline.groups<stash x 1, weight x 1, dact x 1>,
    pipeline.results = #pipeline.groups<dact x 1, grad x 1>, pipeline.ties = array<i64: -1, -1>} {
  %dw = nn.linear_dw %u, %dz : (!x, !x) -> !w
  %du = nn.linear_dx %dz, %w : (!x, !w) -> !x
  %dx = nn.scale %du {factor = 0.5} : (!x) -> !x
  %sum = nn.add %dz, %dx : (!x, !x) -> !x
  return %sum, %dw : !x, !w
}

// -----

// The piece has other weights than its part.
!x = tensor<1x4x8xf32>
!w = tensor<8x8xf32>
#w = #pipeline.weight<"post.0.w" : tensor<8x8xf32> declared <"w" normal 0.0>>
func.func private @post(%x: !x, %w: !w {nn.weight = #nn.weight<"w" normal 0.0>}) -> !x {
  %u = nn.scale %x {factor = 0.5} : (!x) -> !x
  %y = nn.linear %u, %w : (!x, !w) -> !x
  %z = nn.add %y, %x : (!x, !x) -> !x
  return %z : !x
}
pipeline.program @p ranks 1 microbatches 2 slices 0 attributes {train = {}} {
  // expected-error@+1 {{`s0` has other weights, or shares its bodies with other pieces, than its parts derive}}
  pipeline.piece @s0 <stage 0> parts [["post", 0]] bodies "s0" {weights = [#w, #w]}
  pipeline.rank 0 {
    pipeline.launch @b <B stage 0 mb 0>() -> () : () -> ()
  }
}
func.func private @b(%u: !x, %w: !w, %dz: !x) -> (!x, !w) attributes {pipeline.body = #pipeline.body<"s0" B first>,
    pipeline.flops = 1088.0 : f64, pipeline.inputs = #pipeline.groups<stash x 1, weight x 1, dact x 1>,
    pipeline.results = #pipeline.groups<dact x 1, grad x 1>, pipeline.ties = array<i64: -1, -1>} {
  %dw = nn.linear_dw %u, %dz : (!x, !x) -> !w
  %du = nn.linear_dx %dz, %w : (!x, !w) -> !x
  %dx = nn.scale %du {factor = 0.5} : (!x) -> !x
  %sum = nn.add %dz, %dx : (!x, !x) -> !x
  return %sum, %dw : !x, !w
}

// -----

// The part does not exist.
!x = tensor<1x4x8xf32>
!w = tensor<8x8xf32>
#w = #pipeline.weight<"post.0.w" : tensor<8x8xf32> declared <"w" normal 0.0>>
func.func private @post(%x: !x, %w: !w {nn.weight = #nn.weight<"w" normal 0.0>}) -> !x {
  %u = nn.scale %x {factor = 0.5} : (!x) -> !x
  %y = nn.linear %u, %w : (!x, !w) -> !x
  %z = nn.add %y, %x : (!x, !x) -> !x
  return %z : !x
}
pipeline.program @p ranks 1 microbatches 2 slices 0 attributes {train = {}} {
  // expected-error@+1 {{the model has no part `pre`, of which `s0` is made}}
  pipeline.piece @s0 <stage 0> parts [["pre", 0]] bodies "s0" {weights = [#w]}
  pipeline.rank 0 {
    pipeline.launch @b <B stage 0 mb 0>() -> () : () -> ()
  }
}
func.func private @b(%u: !x, %w: !w, %dz: !x) -> (!x, !w) attributes {pipeline.body = #pipeline.body<"s0" B first>,
    pipeline.flops = 1088.0 : f64, pipeline.inputs = #pipeline.groups<stash x 1, weight x 1, dact x 1>,
    pipeline.results = #pipeline.groups<dact x 1, grad x 1>, pipeline.ties = array<i64: -1, -1>} {
  %dw = nn.linear_dw %u, %dz : (!x, !x) -> !w
  %du = nn.linear_dx %dz, %w : (!x, !w) -> !x
  %dx = nn.scale %du {factor = 0.5} : (!x) -> !x
  %sum = nn.add %dz, %dx : (!x, !x) -> !x
  return %sum, %dw : !x, !w
}

// -----

// Others attend slices that the unit does not.
!x = tensor<1x4x8xf32>
!w = tensor<8x8xf32>
#w = #pipeline.weight<"post.0.w" : tensor<8x8xf32> declared <"w" normal 0.0>>
func.func private @post(%x: !x, %w: !w {nn.weight = #nn.weight<"w" normal 0.0>}) -> !x {
  %u = nn.scale %x {factor = 0.5} : (!x) -> !x
  %y = nn.linear %u, %w : (!x, !w) -> !x
  %z = nn.add %y, %x : (!x, !x) -> !x
  return %z : !x
}
pipeline.program @p ranks 1 microbatches 2 slices 2 attributes {train = {sequence = 4 : i64}} {
  pipeline.piece @s0 <stage 0> parts [["post", 0]] bodies "s0" {weights = [#w]}
  pipeline.rank 0 {
    // expected-error@+1 {{`B(0, 0, 0)` cannot be cut as `@b` says: others attend each of the slices up to its own at most once}}
    pipeline.launch @b <B stage 0 mb 0 slice 0>() -> () : () -> ()
  }
}
func.func private @b(%u: !x, %w: !w, %dz: !x) -> (!x, !w) attributes {pipeline.body = #pipeline.body<"s0" B first slice 0 step 0 of 1 keys [0, 1]>,
    pipeline.flops = 1088.0 : f64, pipeline.inputs = #pipeline.groups<stash x 1, weight x 1, dact x 1>,
    pipeline.results = #pipeline.groups<dact x 1, grad x 1>, pipeline.ties = array<i64: -1, -1>} {
  %dw = nn.linear_dw %u, %dz : (!x, !x) -> !w
  %du = nn.linear_dx %dz, %w : (!x, !w) -> !x
  %dx = nn.scale %du {factor = 0.5} : (!x) -> !x
  %sum = nn.add %dz, %dx : (!x, !x) -> !x
  return %sum, %dw : !x, !w
}

// -----

// Another formula: the derivative of x * x has two terms.
!x = tensor<1x4x8xf32>
!w = tensor<8x8xf32>
#w = #pipeline.weight<"post.0.w" : tensor<8x8xf32> declared <"w" normal 0.0>>
func.func private @post(%x: !x, %w: !w {nn.weight = #nn.weight<"w" normal 0.0>}) -> !x {
  // expected-note@+1 {{derived from what stands here}}
  %u = nn.map reads(%x: "thd") makes("thd") heads 1 {
  ^bb0(%a: f32):
    %0 = arith.mulf %a, %a : f32
    nn.give %0 : f32
  } : (!x) -> !x
  %y = nn.linear %u, %w : (!x, !w) -> !x
  %z = nn.add %y, %x : (!x, !x) -> !x
  return %z : !x
}
pipeline.program @p ranks 1 microbatches 2 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["post", 0]] bodies "s0" {weights = [#w]}
  pipeline.rank 0 {
    pipeline.launch @b <B stage 0 mb 0>() -> () : () -> ()
  }
}
func.func private @b(%x: !x, %w: !w, %dz: !x) -> (!x, !w) attributes {pipeline.body = #pipeline.body<"s0" B first>,
    pipeline.flops = 1152.0 : f64, pipeline.inputs = #pipeline.groups<act x 1, weight x 1, dact x 1>,
    pipeline.results = #pipeline.groups<dact x 1, grad x 1>, pipeline.ties = array<i64: -1, -1>} {
  %u = nn.map reads(%x: "thd") makes("thd") heads 1 {
  ^bb0(%a: f32):
    %0 = arith.mulf %a, %a : f32
    nn.give %0 : f32
  } : (!x) -> !x
  %dw = nn.linear_dw %u, %dz : (!x, !x) -> !w
  %du = nn.linear_dx %dz, %w : (!x, !w) -> !x
  // expected-error@+1 {{`@b` is not what the parts of `s0` derive: expected {formula = }}
  %dx = nn.map reads(%x: "thd", %du: "thd") makes("thd") heads 1 {
  ^bb0(%a: f32, %g: f32):
    %0 = arith.mulf %g, %a : f32
    nn.give %0 : f32
  } : (!x, !x) -> !x
  %sum = nn.add %dz, %dx : (!x, !x) -> !x
  return %sum, %dw : !x, !w
}
