// Bodies with an exchange too few or too many, or a weight that is cut in another way: one defect each.
// RUN: pp-opt %s --pp-verify-layouts --split-input-file --verify-diagnostics

// `spread` is left out: the gradient of x would be a share of what it is.
!x = tensor<1x4x8xf32>
!h = tensor<1x4x4xf32>
#mesh = #pipeline.mesh<tensor 2, context 1, data 1, pipeline 1>
#a = #pipeline.weight<"a" : tensor<8x4xf32> declared <"a" zero cut <[8, 8] dim 1>>>
func.func private @s0.F(%x: !x, %a: tensor<8x4xf32>) -> !h attributes {
  pipeline.body = #pipeline.body<"s0" F>, pipeline.inputs = #pipeline.groups<act x 1, weight x 1>,
  pipeline.results = #pipeline.groups<act x 1>, pipeline.ties = array<i64: -1>} {
  // expected-error@below {{'nn.linear' op in `s0.F` has no rule for `tensor = 2`: operand 0 is full, operand 1 is shard 1}}
  %y = nn.linear %x, %a : (!x, tensor<8x4xf32>) -> !h
  return %y : !h
}
pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}, mesh = #mesh} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]> bodies "s0" {weights = [#a]}
}

// -----

// `all_reduce` is left out: a term of the sum is added to the residual stream.
!x = tensor<1x4x8xf32>
!h = tensor<1x4x4xf32>
#mesh = #pipeline.mesh<tensor 2, context 1, data 1, pipeline 1>
#a = #pipeline.weight<"a" : tensor<8x4xf32> declared <"a" zero cut <[8, 8] dim 1>>>
#b = #pipeline.weight<"b" : tensor<4x8xf32> declared <"b" zero cut <[8, 8] dim 0>>>
func.func private @s0.F(%x: !x, %a: tensor<8x4xf32>, %b: tensor<4x8xf32>) -> !x attributes {
  pipeline.body = #pipeline.body<"s0" F>, pipeline.inputs = #pipeline.groups<act x 1, weight x 2>,
  pipeline.results = #pipeline.groups<act x 1>, pipeline.ties = array<i64: -1>} {
  %c = nn.spread %x over <tensor> : (!x) -> !x
  %y = nn.linear %c, %a : (!x, tensor<8x4xf32>) -> !h
  %z = nn.linear %y, %b : (!h, tensor<4x8xf32>) -> !x
  // expected-error@below {{'nn.add' op in `s0.F` has no rule for `tensor = 2`: operand 0 is full, operand 1 is partial}}
  %r = nn.add %x, %z : (!x, !x) -> !x
  return %r : !x
}
pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}, mesh = #mesh} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]> bodies "s0" {weights = [#a, #b]}
}

// -----

// `all_reduce` stands twice: the value is counted once for each device.
!x = tensor<1x4x8xf32>
!h = tensor<1x4x4xf32>
#mesh = #pipeline.mesh<tensor 2, context 1, data 1, pipeline 1>
#a = #pipeline.weight<"a" : tensor<8x4xf32> declared <"a" zero cut <[8, 8] dim 1>>>
#b = #pipeline.weight<"b" : tensor<4x8xf32> declared <"b" zero cut <[8, 8] dim 0>>>
func.func private @s0.F(%x: !x, %a: tensor<8x4xf32>, %b: tensor<4x8xf32>) -> !x attributes {
  pipeline.body = #pipeline.body<"s0" F>, pipeline.inputs = #pipeline.groups<act x 1, weight x 2>,
  pipeline.results = #pipeline.groups<act x 1>, pipeline.ties = array<i64: -1>} {
  %c = nn.spread %x over <tensor> : (!x) -> !x
  %y = nn.linear %c, %a : (!x, tensor<8x4xf32>) -> !h
  %z = nn.linear %y, %b : (!h, tensor<4x8xf32>) -> !x
  %s = nn.all_reduce %z over <tensor> : (!x) -> !x
  // expected-error@below {{'nn.all_reduce' op in `s0.F` has no rule for `tensor = 2`: operand 0 is full}}
  %r = nn.all_reduce %s over <tensor> : (!x) -> !x
  return %r : !x
}
pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}, mesh = #mesh} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]> bodies "s0" {weights = [#a, #b]}
}

// -----

// The bias of a product that is cut by rows is added on every device, before the sum.
!x = tensor<1x4x8xf32>
!h = tensor<1x4x4xf32>
#mesh = #pipeline.mesh<tensor 2, context 1, data 1, pipeline 1>
#a = #pipeline.weight<"a" : tensor<8x4xf32> declared <"a" zero cut <[8, 8] dim 1>>>
#b = #pipeline.weight<"b" : tensor<4x8xf32> declared <"b" zero cut <[8, 8] dim 0>>>
#bias = #pipeline.weight<"bias" : tensor<8xf32> declared <"bias" zero>>
func.func private @s0.F(%x: !x, %a: tensor<8x4xf32>, %b: tensor<4x8xf32>, %bias: tensor<8xf32>) -> !x attributes {
  pipeline.body = #pipeline.body<"s0" F>, pipeline.inputs = #pipeline.groups<act x 1, weight x 3>,
  pipeline.results = #pipeline.groups<act x 1>, pipeline.ties = array<i64: -1>} {
  %c = nn.spread %x over <tensor> : (!x) -> !x
  %y = nn.linear %c, %a : (!x, tensor<8x4xf32>) -> !h
  // expected-error@below {{'nn.linear' op in `s0.F` has no rule for `tensor = 2`: operand 0 is shard 2, operand 1 is shard 0, then full}}
  %z = nn.linear %y, %b bias %bias : (!h, tensor<4x8xf32>, tensor<8xf32>) -> !x
  %r = nn.all_reduce %z over <tensor> : (!x) -> !x
  return %r : !x
}
pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}, mesh = #mesh} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]> bodies "s0" {weights = [#a, #b, #bias]}
}

// -----

// q|k|v is cut as one run: the first device has q and half of k.
!x = tensor<1x4x8xf32>
!h = tensor<1x4x12xf32>
!q = tensor<1x4x4xf32>
#mesh = #pipeline.mesh<tensor 2, context 1, data 1, pipeline 1>
#a = #pipeline.weight<"a" : tensor<8x12xf32> declared <"a" zero cut <[8, 24] dim 1>>>
func.func private @s0.F(%x: !x, %a: tensor<8x12xf32>) -> !q attributes {
  pipeline.body = #pipeline.body<"s0" F>, pipeline.inputs = #pipeline.groups<act x 1, weight x 1>,
  pipeline.results = #pipeline.groups<act x 1>, pipeline.ties = array<i64: -1>} {
  %c = nn.spread %x over <tensor> : (!x) -> !x
  %y = nn.linear %c, %a : (!x, tensor<8x12xf32>) -> !h
  // expected-error@below {{'nn.slice_columns' op in `s0.F` has no rule for `tensor = 2`: operand 0 is shard 2}}
  %q = nn.slice_columns %y {start = 0, width = 4} : (!h) -> !q
  return %q : !q
}
pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}, mesh = #mesh} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]> bodies "s0" {weights = [#a]}
}

// -----

// Two devices have one head of keys, and nothing says that their gradients of its weight are shares.
!x = tensor<1x4x8xf32>
!k = tensor<1x4x4xf32>
#mesh = #pipeline.mesh<tensor 2, context 1, data 1, pipeline 1>
#a = #pipeline.weight<"a" : tensor<8x4xf32> declared <"a" zero cut <[8, 4] dim 1 copies 2>>>
func.func private @s0.F(%x: !x, %a: tensor<8x4xf32>) -> !k attributes {
  pipeline.body = #pipeline.body<"s0" F>, pipeline.inputs = #pipeline.groups<act x 1, weight x 1>,
  pipeline.results = #pipeline.groups<act x 1>, pipeline.ties = array<i64: -1>} {
  %c = nn.spread %x over <tensor> : (!x) -> !x
  // expected-error@below {{operand 0 is copy, operand 1 is shard 1, 2 copies (full)}}
  %y = nn.linear %c, %a : (!x, tensor<8x4xf32>) -> !k
  return %y : !k
}
pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}, mesh = #mesh} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]> bodies "s0" {weights = [#a]}
}

// -----

// The backward of `spread` is left out: dx is a share. What F returned says what comes in.
!x = tensor<1x4x8xf32>
!h = tensor<1x4x4xf32>
#mesh = #pipeline.mesh<tensor 2, context 1, data 1, pipeline 1>
#a = #pipeline.weight<"a" : tensor<8x4xf32> declared <"a" zero cut <[8, 8] dim 1>>>
func.func private @s0.F(%x: !x, %a: tensor<8x4xf32>) -> !h attributes {
  pipeline.body = #pipeline.body<"s0" F>, pipeline.inputs = #pipeline.groups<act x 1, weight x 1>,
  pipeline.results = #pipeline.groups<act x 1>, pipeline.ties = array<i64: -1>} {
  %c = nn.spread %x over <tensor> : (!x) -> !x
  %y = nn.linear %c, %a : (!x, tensor<8x4xf32>) -> !h
  return %y : !h
}
// expected-error@below {{'func.func' op returns tensor 0 of `dact` as partial over `tensor = 2`; expected full}}
func.func private @s0.B.first(%x: !x, %a: tensor<8x4xf32>, %dy: !h) -> (!x, tensor<8x4xf32>) attributes {
  pipeline.body = #pipeline.body<"s0" B first>, pipeline.inputs = #pipeline.groups<act x 1, weight x 1, dact x 1>,
  pipeline.results = #pipeline.groups<dact x 1, grad x 1>, pipeline.ties = array<i64: -1, -1>} {
  %c = nn.spread %x over <tensor> : (!x) -> !x
  %dw = nn.linear_dw %c, %dy : (!x, !h) -> tensor<8x4xf32>
  %dx = nn.linear_dx %dy, %a : (!h, tensor<8x4xf32>) -> !x
  return %dx, %dw : !x, tensor<8x4xf32>
}
pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}, mesh = #mesh} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]> bodies "s0" {weights = [#a]}
}

// -----

// A rank hands out the statistics of one device's columns; other ranks would take them for those of all its columns.
!x = tensor<1x4x8xf32>
!t = tensor<1x4xi32>
!s = tensor<1x4x3xf32>
#mesh = #pipeline.mesh<tensor 2, context 1, data 1, pipeline 1>
#w = #pipeline.weight<"w" : tensor<8x5xf32> declared <"w" zero cut <[8, 10] dim 1>>>
// expected-error@below {{returns tensor 0 of `stats` as shard 0 over `tensor = 2`; expected full}}
func.func private @head0.F(%x: !x, %t: !t, %w: tensor<8x5xf32>) -> !s attributes {
  pipeline.body = #pipeline.body<"head0" F>, pipeline.inputs = #pipeline.groups<act x 1, targets x 1, weight x 1>,
  pipeline.results = #pipeline.groups<stats x 1>, pipeline.ties = array<i64: -1>} {
  %c = nn.spread %x over <tensor> : (!x) -> !x
  %z = nn.linear %c, %w : (!x, tensor<8x5xf32>) -> tensor<1x4x5xf32>
  %s = nn.cross_entropy_stats %z, %t {first_by = #nn.axes<tensor>, vocab = 10} : (tensor<1x4x5xf32>, !t) -> !s
  return %s : !s
}
pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}, mesh = #mesh} {
  pipeline.piece @head0 <stage 0> parts [["head", -1]] at <[0]> bodies "head0" {weights = [#w]}
}

// -----

// A gain that works on the device's rows is not spread: its gradient would be that of these rows alone.
!x = tensor<2x4x8xf32>
!r = tensor<1x4x8xf32>
#mesh = #pipeline.mesh<tensor 2, context 1, data 1, pipeline 1, sequence>
#w = #pipeline.weight<"g" : tensor<8xf32> declared <"g" one>>
func.func private @s0.F(%x: !x, %g: tensor<8xf32>) -> !r attributes {
  pipeline.body = #pipeline.body<"s0" F>, pipeline.inputs = #pipeline.groups<act x 1, weight x 1>,
  pipeline.results = #pipeline.groups<act x 1>, pipeline.ties = array<i64: -1>} {
  %r = nn.take_rows %x over <tensor> {members = 2} : (!x) -> !r
  // expected-error@below {{'nn.rmsnorm' op in `s0.F` has no rule for `tensor = 2`: operand 0 is rows, operand 1 is full}}
  %y, %s = nn.rmsnorm %r, %g : (!r, tensor<8xf32>) -> (!r, tensor<1x4xf32>)
  return %y : !r
}
pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}, mesh = #mesh} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]> bodies "s0" {weights = [#w]}
}

// -----

// A bias's gradient is summed in a microbatch, and would be once more at the end of the step.
!x = tensor<2x4x8xf32>
!r = tensor<1x4x8xf32>
#mesh = #pipeline.mesh<tensor 2, context 1, data 1, pipeline 1, sequence>
#w = #pipeline.weight<"g" : tensor<8xf32> declared <"g" zero terms>>
func.func private @s0.F(%x: !x, %g: tensor<8xf32>) -> !r attributes {
  pipeline.body = #pipeline.body<"s0" F>, pipeline.inputs = #pipeline.groups<act x 1, weight x 1>,
  pipeline.results = #pipeline.groups<act x 1>, pipeline.ties = array<i64: -1>} {
  %r = nn.take_rows %x over <tensor> {members = 2} : (!x) -> !r
  %y = nn.add_bias %r, %g : (!r, tensor<8xf32>) -> !r
  return %y : !r
}
// expected-error@below {{returns tensor 0 of `grad` as full over `tensor = 2`; expected partial}}
func.func private @s0.B.first(%dy: !r) -> tensor<8xf32> attributes {
  pipeline.body = #pipeline.body<"s0" B first>, pipeline.inputs = #pipeline.groups<dact x 1>,
  pipeline.results = #pipeline.groups<grad x 1>, pipeline.ties = array<i64: -1>} {
  %d = nn.bias_dw %dy : (!r) -> tensor<8xf32>
  %s = nn.all_reduce %d over <tensor> : (tensor<8xf32>) -> tensor<8xf32>
  return %s : tensor<8xf32>
}
pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}, mesh = #mesh} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]> bodies "s0" {weights = [#w]}
}

// -----

// A gain of terms works on whole values: each device would make all of its gradient, and their sum twice as much.
!x = tensor<2x4x8xf32>
#mesh = #pipeline.mesh<tensor 2, context 1, data 1, pipeline 1, sequence>
#w = #pipeline.weight<"g" : tensor<8xf32> declared <"g" one terms>>
func.func private @s0.F(%x: !x, %g: tensor<8xf32>) -> !x attributes {
  pipeline.body = #pipeline.body<"s0" F>, pipeline.inputs = #pipeline.groups<act x 1, weight x 1>,
  pipeline.results = #pipeline.groups<act x 1>, pipeline.ties = array<i64: -1>} {
  // expected-error@below {{'nn.rmsnorm' op in `s0.F` has no rule for `tensor = 2`: operand 0 is full, operand 1 is copy}}
  %y, %s = nn.rmsnorm %x, %g : (!x, tensor<8xf32>) -> (!x, tensor<2x4xf32>)
  return %y : !x
}
pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}, mesh = #mesh} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]> bodies "s0" {weights = [#w]}
}

// -----

// Rows that are gathered as a whole go into a product of columns: each device would get all of their gradient.
!x = tensor<2x4x8xf32>
!r = tensor<1x4x8xf32>
#mesh = #pipeline.mesh<tensor 2, context 1, data 1, pipeline 1, sequence>
#w = #pipeline.weight<"a" : tensor<8x4xf32> declared <"a" zero cut <[8, 8] dim 1>>>
func.func private @s0.F(%x: !x, %a: tensor<8x4xf32>) -> tensor<2x4x4xf32> attributes {
  pipeline.body = #pipeline.body<"s0" F>, pipeline.inputs = #pipeline.groups<act x 1, weight x 1>,
  pipeline.results = #pipeline.groups<act x 1>, pipeline.ties = array<i64: -1>} {
  %r = nn.take_rows %x over <tensor> {members = 2} : (!x) -> !r
  %y = nn.gather_rows %r over <tensor> {batch = 2, members = 2, whole} : (!r) -> !x
  // expected-error@below {{'nn.linear' op in `s0.F` has no rule for `tensor = 2`: operand 0 is full, operand 1 is shard 1}}
  %z = nn.linear %y, %a : (!x, tensor<8x4xf32>) -> tensor<2x4x4xf32>
  return %z : tensor<2x4x4xf32>
}
pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}, mesh = #mesh} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]> bodies "s0" {weights = [#w]}
}

// -----

// `take_rows` stands where `scatter_rows` belongs: a device would go on with its own term of the sum.
!x = tensor<2x4x8xf32>
!r = tensor<1x4x8xf32>
!h = tensor<2x4x4xf32>
#mesh = #pipeline.mesh<tensor 2, context 1, data 1, pipeline 1, sequence>
#a = #pipeline.weight<"a" : tensor<8x4xf32> declared <"a" zero cut <[8, 8] dim 1>>>
#b = #pipeline.weight<"b" : tensor<4x8xf32> declared <"b" zero cut <[8, 8] dim 0>>>
func.func private @s0.F(%x: !x, %a: tensor<8x4xf32>, %b: tensor<4x8xf32>) -> !r attributes {
  pipeline.body = #pipeline.body<"s0" F>, pipeline.inputs = #pipeline.groups<act x 1, weight x 2>,
  pipeline.results = #pipeline.groups<act x 1>, pipeline.ties = array<i64: -1>} {
  %c = nn.spread %x over <tensor> : (!x) -> !x
  %y = nn.linear %c, %a : (!x, tensor<8x4xf32>) -> !h
  %z = nn.linear %y, %b : (!h, tensor<4x8xf32>) -> !x
  // expected-error@below {{'nn.take_rows' op in `s0.F` has no rule for `tensor = 2`: operand 0 is partial}}
  %r = nn.take_rows %z over <tensor> {members = 2} : (!x) -> !r
  return %r : !r
}
pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}, mesh = #mesh} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]> bodies "s0" {weights = [#a, #b]}
}

// -----

// A term of a sum is added to rows.
!x = tensor<1x8x8xf32>
!h = tensor<1x8x4xf32>
#mesh = #pipeline.mesh<tensor 2, context 1, data 1, pipeline 1, sequence>
#a = #pipeline.weight<"a" : tensor<8x4xf32> declared <"a" zero cut <[8, 8] dim 1>>>
#b = #pipeline.weight<"b" : tensor<4x8xf32> declared <"b" zero cut <[8, 8] dim 0>>>
func.func private @s0.F(%t: tensor<1x16x8xf32>, %x: !x, %a: tensor<8x4xf32>, %b: tensor<4x8xf32>) -> !x attributes {
  pipeline.body = #pipeline.body<"s0" F>, pipeline.inputs = #pipeline.groups<act x 2, weight x 2>,
  pipeline.results = #pipeline.groups<act x 1>, pipeline.ties = array<i64: -1>} {
  %r = nn.take_rows %t over <tensor> {members = 2} : (tensor<1x16x8xf32>) -> !x
  %c = nn.spread %x over <tensor> : (!x) -> !x
  %y = nn.linear %c, %a : (!x, tensor<8x4xf32>) -> !h
  %z = nn.linear %y, %b : (!h, tensor<4x8xf32>) -> !x
  // expected-error@below {{'nn.add' op in `s0.F` has no rule for `tensor = 2`: operand 0 is rows, operand 1 is partial}}
  %s = nn.add %r, %z : (!x, !x) -> !x
  return %s : !x
}
pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}, mesh = #mesh} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]> bodies "s0" {weights = [#a, #b]}
}

// -----

// Dropout counts the heads of this device alone: all devices would drop the same.
!x = tensor<1x8x8xf32>
#mesh = #pipeline.mesh<tensor 2, context 1, data 1, pipeline 1>
#w = #pipeline.weight<"a" : tensor<8x8xf32> declared <"a" zero cut <[8, 16] dim 1>>>
func.func private @s0.F(%x: !x, %rows: tensor<1x8xi32>, %w: tensor<8x8xf32>) -> !x attributes {
  pipeline.body = #pipeline.body<"s0" F>, pipeline.inputs = #pipeline.groups<act x 1, rows x 1, weight x 1>,
  pipeline.results = #pipeline.groups<act x 1>, pipeline.ties = array<i64: -1>} {
  %c = nn.spread %x over <tensor> : (!x) -> !x
  %q = nn.linear %c, %w : (!x, tensor<8x8xf32>) -> !x
  %o, %l = nn.attention %q, %q, %q, %rows {heads = 2, causal = true, dropout = #nn.dropout<0.5 site 1 in 8 heads over <tensor>>}
      : (!x, !x, !x, tensor<1x8xi32>) -> (!x, tensor<1x2x8xf32>)
  // expected-error@below {{'nn.attention' op in `s0.F` has no rule for `tensor = 2`: operand 0 is shard 2, operand 1 is shard 2}}
  %p, %m = nn.attention %o, %q, %q, %rows {heads = 2, causal = true, dropout = #nn.dropout<0.5 site 1 in 8>}
      : (!x, !x, !x, tensor<1x8xi32>) -> (!x, tensor<1x2x8xf32>)
  return %p : !x
}
pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}, mesh = #mesh} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]> bodies "s0" {weights = [#w]}
}

// -----

// Over `context`, keys are not gathered: a device's queries would see its own alone.
!x = tensor<1x4x8xf32>
#mesh = #pipeline.mesh<tensor 1, context 2, data 1, pipeline 1>
func.func private @s0.F(%x: !x) -> !x attributes {
  pipeline.body = #pipeline.body<"s0" F>, pipeline.inputs = #pipeline.groups<act x 1>,
  pipeline.results = #pipeline.groups<act x 1>, pipeline.ties = array<i64: -1>} {
  %r = nn.rope %x {heads = 2, zigzag = 2} : (!x) -> !x
  // expected-error@below {{'nn.attention' op in `s0.F` has no rule for `context = 2`: operand 0 is rows, operand 1 is rows, then rows}}
  %o, %l = nn.attention %r, %r, %r {heads = 2, causal = true, zigzag = 2} : (!x, !x, !x) -> (!x, tensor<1x2x4xf32>)
  return %o : !x
}
pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}, mesh = #mesh} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]> bodies "s0" {}
}

// -----

// `rope` does not know of the two runs: all devices would turn by the positions of the first.
!x = tensor<1x4x8xf32>
#mesh = #pipeline.mesh<tensor 1, context 2, data 1, pipeline 1>
func.func private @s0.F(%x: !x) -> !x attributes {
  pipeline.body = #pipeline.body<"s0" F>, pipeline.inputs = #pipeline.groups<act x 1>,
  pipeline.results = #pipeline.groups<act x 1>, pipeline.ties = array<i64: -1>} {
  // expected-error@below {{'nn.rope' op in `s0.F` has no rule for `context = 2`: operand 0 is rows}}
  %r = nn.rope %x {heads = 2} : (!x) -> !x
  return %r : !x
}
pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}, mesh = #mesh} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]> bodies "s0" {}
}

// -----

// Keys are scattered as if they were terms: the sum over devices of what each made of other rows.
!x = tensor<1x4x8xf32>
#mesh = #pipeline.mesh<tensor 1, context 2, data 1, pipeline 1>
func.func private @s0.F(%x: !x) -> tensor<1x2x8xf32> attributes {
  pipeline.body = #pipeline.body<"s0" F>, pipeline.inputs = #pipeline.groups<act x 1>,
  pipeline.results = #pipeline.groups<act x 1>, pipeline.ties = array<i64: -1>} {
  // expected-error@below {{'nn.scatter_runs' op in `s0.F` has no rule for `context = 2`: operand 0 is rows}}
  %r = nn.scatter_runs %x over <context> {members = 2} : (!x) -> tensor<1x2x8xf32>
  return %r : tensor<1x2x8xf32>
}
pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}, mesh = #mesh} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]> bodies "s0" {}
}

// -----

// Attention of the own heads without the way there: each device would attend its own rows alone.
!x = tensor<1x4x8xf32>
#mesh = #pipeline.mesh<tensor 1, context 2, data 1, pipeline 1, attention heads>
func.func private @s0.F(%x: !x) -> !x attributes {
  pipeline.body = #pipeline.body<"s0" F>, pipeline.inputs = #pipeline.groups<act x 1>,
  pipeline.results = #pipeline.groups<act x 1>, pipeline.ties = array<i64: -1>} {
  // expected-error@below {{'nn.attention' op in `s0.F` has no rule for `context = 2`: operand 0 is rows, operand 1 is rows, then rows}}
  %o, %l = nn.attention %x, %x, %x {heads = 2, causal = true} : (!x, !x, !x) -> (!x, tensor<1x2x4xf32>)
  return %o : !x
}
pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}, mesh = #mesh} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]> bodies "s0" {}
}

// -----

// Exchanged rows stand in natural order: an attention of two runs would give them positions of others.
!x = tensor<1x4x8xf32>
!h = tensor<1x8x4xf32>
#mesh = #pipeline.mesh<tensor 1, context 2, data 1, pipeline 1, attention heads>
func.func private @s0.F(%x: !x) -> !x attributes {
  pipeline.body = #pipeline.body<"s0" F>, pipeline.inputs = #pipeline.groups<act x 1>,
  pipeline.results = #pipeline.groups<act x 1>, pipeline.ties = array<i64: -1>} {
  %h = nn.runs_to_heads %x over <context> {members = 2} : (!x) -> !h
  // expected-error@below {{'nn.attention' op in `s0.F` has no rule for `context = 2`: operand 0 is shard 2, operand 1 is shard 2, then shard 2}}
  %o, %l = nn.attention %h, %h, %h {heads = 1, causal = true, zigzag = 2} : (!h, !h, !h) -> (!h, tensor<1x1x8xf32>)
  %y = nn.heads_to_runs %o over <context> {members = 2} : (!h) -> !x
  return %y : !x
}
pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}, mesh = #mesh} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]> bodies "s0" {}
}

// -----

// And a `rope` of them, as if they still were two runs.
!x = tensor<1x4x8xf32>
!h = tensor<1x8x4xf32>
#mesh = #pipeline.mesh<tensor 1, context 2, data 1, pipeline 1, attention heads>
func.func private @s0.F(%x: !x) -> !h attributes {
  pipeline.body = #pipeline.body<"s0" F>, pipeline.inputs = #pipeline.groups<act x 1>,
  pipeline.results = #pipeline.groups<act x 1>, pipeline.ties = array<i64: -1>} {
  %h = nn.runs_to_heads %x over <context> {members = 2} : (!x) -> !h
  // expected-error@below {{'nn.rope' op in `s0.F` has no rule for `context = 2`: operand 0 is shard 2}}
  %r = nn.rope %h {heads = 1, zigzag = 2} : (!h) -> !h
  return %r : !h
}
pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}, mesh = #mesh} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]> bodies "s0" {}
}

// -----

// The way back is left out: what follows would read heads as rows.
!x = tensor<1x4x8xf32>
!h = tensor<1x8x4xf32>
#mesh = #pipeline.mesh<tensor 1, context 2, data 1, pipeline 1, attention heads>
#w = #pipeline.weight<"w" : tensor<4x4xf32> declared <"w" zero>>
func.func private @s0.F(%x: !x, %w: tensor<4x4xf32>) -> !h attributes {
  pipeline.body = #pipeline.body<"s0" F>, pipeline.inputs = #pipeline.groups<act x 1, weight x 1>,
  pipeline.results = #pipeline.groups<act x 1>, pipeline.ties = array<i64: -1>} {
  %h = nn.runs_to_heads %x over <context> {members = 2} : (!x) -> !h
  %o, %l = nn.attention %h, %h, %h {heads = 1, causal = true} : (!h, !h, !h) -> (!h, tensor<1x1x8xf32>)
  // expected-error@below {{'nn.linear' op in `s0.F` has no rule for `context = 2`: operand 0 is shard 2, operand 1 is copy}}
  %y = nn.linear %o, %w : (!h, tensor<4x4xf32>) -> !h
  return %y : !h
}
pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}, mesh = #mesh} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]> bodies "s0" {weights = [#w]}
}

// -----

// The exchange of the other dimension: rows of all heads are no heads.
!x = tensor<1x4x8xf32>
#mesh = #pipeline.mesh<tensor 1, context 2, data 1, pipeline 1, attention heads>
func.func private @s0.F(%x: !x) -> tensor<1x2x16xf32> attributes {
  pipeline.body = #pipeline.body<"s0" F>, pipeline.inputs = #pipeline.groups<act x 1>,
  pipeline.results = #pipeline.groups<act x 1>, pipeline.ties = array<i64: -1>} {
  // expected-error@below {{'nn.heads_to_runs' op in `s0.F` has no rule for `context = 2`: operand 0 is rows}}
  %h = nn.heads_to_runs %x over <context> {members = 2} : (!x) -> tensor<1x2x16xf32>
  return %h : tensor<1x2x16xf32>
}
pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}, mesh = #mesh} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]> bodies "s0" {}
}

// -----

// Dropout of the own heads' weights counts them from 0 on every device: all would have the masks of the first.
!x = tensor<1x4x8xf32>
!h = tensor<1x8x4xf32>
#mesh = #pipeline.mesh<tensor 1, context 2, data 1, pipeline 1, attention heads>
func.func private @s0.F(%x: !x, %rows: tensor<1x4xi32>) -> !x attributes {
  pipeline.body = #pipeline.body<"s0" F>, pipeline.inputs = #pipeline.groups<act x 1, rows x 1>,
  pipeline.results = #pipeline.groups<act x 1>, pipeline.ties = array<i64: -1>} {
  %h = nn.runs_to_heads %x over <context> {members = 2} : (!x) -> !h
  %n = nn.gather_runs %rows over <context> {members = 2} : (tensor<1x4xi32>) -> tensor<1x8xi32>
  // expected-error@below {{'nn.attention' op in `s0.F` has no rule for `context = 2`: operand 0 is shard 2, operand 1 is shard 2, then shard 2, then none}}
  %o, %l = nn.attention %h, %h, %h, %n {heads = 1, causal = true, dropout = #nn.dropout<1.0e-01 site 1 in 8>} : (!h, !h, !h, tensor<1x8xi32>) -> (!h, tensor<1x1x8xf32>)
  %y = nn.heads_to_runs %o over <context> {members = 2} : (!h) -> !x
  return %y : !x
}
pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}, mesh = #mesh} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]> bodies "s0" {}
}

// -----

// Columns are taken of a term of a sum that is not added up.
!x = tensor<2x4x8xf32>
!h = tensor<2x4x4xf32>
#mesh = #pipeline.mesh<tensor 2, context 1, data 1, pipeline 1>
#a = #pipeline.weight<"a" : tensor<8x4xf32> declared <"a" zero cut <[8, 8] dim 1>>>
#b = #pipeline.weight<"b" : tensor<4x8xf32> declared <"b" zero cut <[8, 8] dim 0>>>
func.func private @s0.F(%x: !x, %a: tensor<8x4xf32>, %b: tensor<4x8xf32>) -> !h attributes {
  pipeline.body = #pipeline.body<"s0" F>, pipeline.inputs = #pipeline.groups<act x 1, weight x 2>,
  pipeline.results = #pipeline.groups<act x 1>, pipeline.ties = array<i64: -1>} {
  %c = nn.spread %x over <tensor> : (!x) -> !x
  %y = nn.linear %c, %a : (!x, tensor<8x4xf32>) -> !h
  %z = nn.linear %y, %b : (!h, tensor<4x8xf32>) -> !x
  // expected-error@below {{'nn.take_columns' op in `s0.F` has no rule for `tensor = 2`: operand 0 is partial}}
  %r = nn.take_columns %z over <tensor> {members = 2} : (!x) -> !h
  return %r : !h
}
pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}, mesh = #mesh} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]> bodies "s0" {weights = [#a, #b]}
}

// -----

// Columns are gathered along the dimension of rows.
!x = tensor<2x4x8xf32>
!h = tensor<2x4x4xf32>
#mesh = #pipeline.mesh<tensor 2, context 1, data 1, pipeline 1>
#a = #pipeline.weight<"a" : tensor<8x4xf32> declared <"a" zero cut <[8, 8] dim 1>>>
func.func private @s0.F(%x: !x, %a: tensor<8x4xf32>) -> tensor<2x8x4xf32> attributes {
  pipeline.body = #pipeline.body<"s0" F>, pipeline.inputs = #pipeline.groups<act x 1, weight x 1>,
  pipeline.results = #pipeline.groups<act x 1>, pipeline.ties = array<i64: -1>} {
  %c = nn.spread %x over <tensor> : (!x) -> !x
  %y = nn.linear %c, %a : (!x, tensor<8x4xf32>) -> !h
  // expected-error@below {{'nn.all_gather' op in `s0.F` has no rule for `tensor = 2`: operand 0 is shard 2}}
  %z = nn.all_gather %y over <tensor> {dim = 1, members = 2} : (!h) -> tensor<2x8x4xf32>
  return %z : tensor<2x8x4xf32>
}
pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}, mesh = #mesh} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]> bodies "s0" {weights = [#a]}
}

// -----

// Heads of keys are repeated as one: 0 1 0 1 in place of 0 0 1 1, and the second device has the other's.
!x = tensor<1x2x8xf32>
!r = tensor<1x2x16xf32>
!h = tensor<1x8x4xf32>
#mesh = #pipeline.mesh<tensor 1, context 4, data 1, pipeline 1, attention heads>
func.func private @s0.F(%q: !r, %x: !x) -> !r attributes {
  pipeline.body = #pipeline.body<"s0" F>, pipeline.inputs = #pipeline.groups<act x 2>,
  pipeline.results = #pipeline.groups<act x 1>, pipeline.ties = array<i64: -1>} {
  %h = nn.runs_to_heads %q over <context> {members = 4} : (!r) -> !h
  %r = nn.repeat_heads %x {heads = 1, times = 2} : (!x) -> !r
  // expected-error@below {{'nn.runs_to_heads' op in `s0.F` has no rule for `context = 4`: operand 0 is rows, 2 copies (copy)}}
  %k = nn.runs_to_heads %r over <context> {members = 4} : (!r) -> !h
  %o, %l = nn.attention %h, %k, %k {heads = 1, causal = true} : (!h, !h, !h) -> (!h, tensor<1x1x8xf32>)
  %y = nn.heads_to_runs %o over <context> {members = 4} : (!h) -> !r
  return %y : !r
}
pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}, mesh = #mesh} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]> bodies "s0" {}
}

// -----

// They are repeated behind the exchange, by a device that has no whole head of them.
!x = tensor<1x2x8xf32>
!r = tensor<1x2x16xf32>
!h = tensor<1x8x4xf32>
#mesh = #pipeline.mesh<tensor 1, context 4, data 1, pipeline 1, attention heads>
func.func private @s0.F(%q: !r, %x: !x) -> !r attributes {
  pipeline.body = #pipeline.body<"s0" F>, pipeline.inputs = #pipeline.groups<act x 2>,
  pipeline.results = #pipeline.groups<act x 1>, pipeline.ties = array<i64: -1>} {
  %h = nn.runs_to_heads %q over <context> {members = 4} : (!r) -> !h
  %k = nn.runs_to_heads %x over <context> {members = 4} : (!x) -> tensor<1x8x2xf32>
  // expected-error@below {{'nn.repeat_heads' op in `s0.F` has no rule for `context = 4`: operand 0 is shard 2}}
  %r = nn.repeat_heads %k {heads = 1, times = 2} : (tensor<1x8x2xf32>) -> !h
  %o, %l = nn.attention %h, %r, %r {heads = 1, causal = true} : (!h, !h, !h) -> (!h, tensor<1x1x8xf32>)
  %y = nn.heads_to_runs %o over <context> {members = 4} : (!h) -> !r
  return %y : !r
}
pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}, mesh = #mesh} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]> bodies "s0" {}
}

// -----

// The gradients of the copies are not added up: a product would take them for those of as many heads.
!x = tensor<1x2x8xf32>
!r = tensor<1x2x16xf32>
!h = tensor<1x8x4xf32>
#mesh = #pipeline.mesh<tensor 1, context 4, data 1, pipeline 1, attention heads>
#w = #pipeline.weight<"w" : tensor<16x16xf32> declared <"w" zero>>
func.func private @s0.B(%q: !r, %x: !x, %w: tensor<16x16xf32>) -> !r attributes {
  pipeline.body = #pipeline.body<"s0" B>, pipeline.inputs = #pipeline.groups<act x 2, weight x 1>,
  pipeline.results = #pipeline.groups<dact x 1>, pipeline.ties = array<i64: -1>} {
  %h = nn.runs_to_heads %q over <context> {members = 4} : (!r) -> !h
  %r = nn.repeat_heads %x {heads = 2, times = 2} : (!x) -> !r
  %k = nn.runs_to_heads %r over <context> {members = 4} : (!r) -> !h
  %o, %lse = nn.attention %h, %k, %k {heads = 1, causal = true} : (!h, !h, !h) -> (!h, tensor<1x1x8xf32>)
  %d = nn.attention_delta %o, %o {heads = 1} : (!h, !h) -> tensor<1x1x8xf32>
  %dq, %dk, %dv = nn.attention_bwd %o, %h, %lse, %d, %k, %k {heads = 1, causal = true}
      : (!h, !h, tensor<1x1x8xf32>, tensor<1x1x8xf32>, !h, !h) -> (!h, !h, !h)
  %b = nn.heads_to_runs %dk over <context> {members = 4} : (!h) -> !r
  // expected-error@below {{'nn.linear_dx' op in `s0.B` has no rule for `context = 4`: operand 0 is rows, 2 runs, 2 copies (partial), operand 1 is copy}}
  %y = nn.linear_dx %b, %w : (!r, tensor<16x16xf32>) -> !r
  return %y : !r
}
pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}, mesh = #mesh} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]> bodies "s0" {weights = [#w]}
}

// -----

// Columns of the tensor axis are gathered behind the exchange of heads: a device has heads 0 and 2, or 1 and 3, and
// takes them for 0 and 1, or 2 and 3.
!x = tensor<1x4x16xf32>
!c = tensor<1x4x8xf32>
!h = tensor<1x8x4xf32>
!a = tensor<1x8x8xf32>
#mesh = #pipeline.mesh<tensor 2, context 2, data 1, pipeline 1, attention heads>
func.func private @s0.F(%x: !x) -> !x attributes {
  pipeline.body = #pipeline.body<"s0" F>, pipeline.inputs = #pipeline.groups<act x 1>,
  pipeline.results = #pipeline.groups<act x 1>, pipeline.ties = array<i64: -1>} {
  %c = nn.take_columns %x over <tensor> {members = 2} : (!x) -> !c
  %h = nn.runs_to_heads %c over <context> {members = 2} : (!c) -> !h
  // expected-error@below {{'nn.all_gather' op in `s0.F` has no rule for `context = 2`: operand 0 is shard 2}}
  %a = nn.all_gather %h over <tensor> {dim = 2, members = 2} : (!h) -> !a
  %o, %l = nn.attention %a, %a, %a {heads = 2, causal = true} : (!a, !a, !a) -> (!a, tensor<1x2x8xf32>)
  %y = nn.heads_to_runs %o over <context> {members = 2} : (!a) -> !x
  return %y : !x
}
pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}, mesh = #mesh} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]> bodies "s0" {}
}

// -----

// Each expert's columns read rows that every device counts as its own.
!x = tensor<1x4x8xf32>
!r = tensor<1x8x8xf32>
!h = tensor<1x8x4xf32>
!k = tensor<1x4x2xf32>
!i = tensor<1x4x2xi32>
!l = tensor<1x4x6xf32>
#mesh = #pipeline.mesh<tensor 2, context 1, data 1, pipeline 1>
#wr = #pipeline.weight<"wr" : tensor<8x6xf32> declared <"wr" zero>>
#a = #pipeline.weight<"a" : tensor<6x8x4xf32> declared <"a" zero cut <[6, 8, 8] dim 2>>>
func.func private @s0.F(%x: !x, %wr: tensor<8x6xf32>, %a: tensor<6x8x4xf32>) -> !h attributes {
  pipeline.body = #pipeline.body<"s0" F>, pipeline.inputs = #pipeline.groups<act x 1, weight x 2>,
  pipeline.results = #pipeline.groups<act x 1>, pipeline.ties = array<i64: -1>} {
  %l = nn.router %x, %wr : (!x, tensor<8x6xf32>) -> !l
  %w, %sel, %p, %lse, %places, %counts = nn.route %l {top = 2} : (!l) -> (!k, !i, !l, tensor<1x4xf32>, !i, tensor<6xi32>)
  %rows = nn.dispatch %x, %places : (!x, !i) -> !r
  // expected-error@below {{'nn.expert_linear' op in `s0.F` has no rule for `tensor = 2`: operand 0 is full, operand 1 is shard 2}}
  %y = nn.expert_linear %rows, %a, %counts : (!r, tensor<6x8x4xf32>, tensor<6xi32>) -> !h
  return %y : !h
}
pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}, mesh = #mesh} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]> bodies "s0" {weights = [#wr, #a]}
}

// -----

// The weights of choices multiply columns: their gradients are terms, which nothing adds up.
!x = tensor<1x4x8xf32>
!r = tensor<1x8x8xf32>
!h = tensor<1x8x4xf32>
!k = tensor<1x4x2xf32>
!i = tensor<1x4x2xi32>
!l = tensor<1x4x6xf32>
#mesh = #pipeline.mesh<tensor 2, context 1, data 1, pipeline 1>
#wr = #pipeline.weight<"wr" : tensor<8x6xf32> declared <"wr" zero>>
#a = #pipeline.weight<"a" : tensor<6x8x4xf32> declared <"a" zero cut <[6, 8, 8] dim 2>>>
func.func private @s0.F(%x: !x, %wr: tensor<8x6xf32>, %a: tensor<6x8x4xf32>) -> !h attributes {
  pipeline.body = #pipeline.body<"s0" F>, pipeline.inputs = #pipeline.groups<act x 1, weight x 2>,
  pipeline.results = #pipeline.groups<act x 1>, pipeline.ties = array<i64: -1>} {
  %l = nn.router %x, %wr : (!x, tensor<8x6xf32>) -> !l
  %w, %sel, %p, %lse, %places, %counts = nn.route %l {top = 2} : (!l) -> (!k, !i, !l, tensor<1x4xf32>, !i, tensor<6xi32>)
  %c = nn.spread %x over <tensor> : (!x) -> !x
  %rows = nn.dispatch %c, %places : (!x, !i) -> !r
  %g = nn.expert_linear %rows, %a, %counts : (!r, tensor<6x8x4xf32>, tensor<6xi32>) -> !h
  // expected-error@below {{'nn.scale_rows' op in `s0.F` has no rule for `tensor = 2`: operand 0 is shard 2, operand 1 is full}}
  %y = nn.scale_rows %g, %w, %places : (!h, !k, !i) -> !h
  return %y : !h
}
pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}, mesh = #mesh} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]> bodies "s0" {weights = [#wr, #a]}
}

// -----

// The balance counts the choices of one device alone.
!x = tensor<1x4x8xf32>
!k = tensor<1x4x2xf32>
!i = tensor<1x4x2xi32>
!l = tensor<1x4x6xf32>
#mesh = #pipeline.mesh<tensor 1, context 2, data 1, pipeline 1>
#wr = #pipeline.weight<"wr" : tensor<8x6xf32> declared <"wr" zero>>
func.func private @s0.F(%x: !x, %wr: tensor<8x6xf32>) -> !l attributes {
  pipeline.body = #pipeline.body<"s0" F>, pipeline.inputs = #pipeline.groups<act x 1, weight x 1>,
  pipeline.results = #pipeline.groups<act x 1>, pipeline.ties = array<i64: -1>} {
  %l = nn.router %x, %wr : (!x, tensor<8x6xf32>) -> !l
  %w, %sel, %p, %lse, %places, %counts = nn.route %l {top = 2} : (!l) -> (!k, !i, !l, tensor<1x4xf32>, !i, tensor<6xi32>)
  %often = nn.choice_counts %sel {group = 4, experts = 6, sum = f32} : (!i) -> tensor<1x6xf32>
  // expected-error@below {{'nn.route_bwd' op in `s0.F` has no rule for `context = 2`}}
  %y = nn.route_bwd %w, %w, %sel, %p often %often {group = 4, balance = 1.0} : (!k, !k, !i, !l, tensor<1x6xf32>) -> !l
  return %y : !l
}
pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}, mesh = #mesh} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]> bodies "s0" {weights = [#wr]}
}

// -----

// Of p and q in one tensor no layout says which columns a device has.
!x = tensor<1x8x8xf32>
!y = tensor<1x8x24xf32>
#mesh = #pipeline.mesh<tensor 2, context 1, data 1, pipeline 1>
#w = #pipeline.weight<"a" : tensor<8x24xf32> declared <"a" zero cut <[8, 48] dim 1>>>
func.func private @s0.F(%x: !x, %w: tensor<8x24xf32>) -> tensor<1x8x12xf32> attributes {
  pipeline.body = #pipeline.body<"s0" F>, pipeline.inputs = #pipeline.groups<act x 1, weight x 1>,
  pipeline.results = #pipeline.groups<act x 1>, pipeline.ties = array<i64: -1>} {
  %c = nn.spread %x over <tensor> : (!x) -> !x
  %h = nn.linear %c, %w : (!x, tensor<8x24xf32>) -> !y
  // expected-error@below {{'nn.swiglu' op in `s0.F` has no rule for `tensor = 2`: operand 0 is shard 2}}
  %g = nn.swiglu %h {packed = true} : (!y) -> tensor<1x8x12xf32>
  return %g : tensor<1x8x12xf32>
}
pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}, mesh = #mesh} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]> bodies "s0" {weights = [#w]}
}

// -----

// Of q, k and v in one tensor `rope` would turn other heads on each device.
!y = tensor<1x8x24xf32>
#mesh = #pipeline.mesh<tensor 2, context 1, data 1, pipeline 1>
#w = #pipeline.weight<"a" : tensor<8x24xf32> declared <"a" zero cut <[8, 48] dim 1>>>
func.func private @s0.F(%x: tensor<1x8x8xf32>, %w: tensor<8x24xf32>) -> !y attributes {
  pipeline.body = #pipeline.body<"s0" F>, pipeline.inputs = #pipeline.groups<act x 1, weight x 1>,
  pipeline.results = #pipeline.groups<act x 1>, pipeline.ties = array<i64: -1>} {
  %c = nn.spread %x over <tensor> : (tensor<1x8x8xf32>) -> tensor<1x8x8xf32>
  %q = nn.linear %c, %w : (tensor<1x8x8xf32>, tensor<8x24xf32>) -> !y
  // expected-error@below {{'nn.rope' op in `s0.F` has no rule for `tensor = 2`: operand 0 is shard 2}}
  %r = nn.rope %q {heads = 6, passing = 2} : (!y) -> !y
  return %r : !y
}
pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}, mesh = #mesh} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]> bodies "s0" {weights = [#w]}
}

// -----

// No layout says which columns of q, k and v a device has of a tensor that holds all three.
!x = tensor<1x8x8xf32>
!y = tensor<1x8x24xf32>
#mesh = #pipeline.mesh<tensor 2, context 1, data 1, pipeline 1>
#w = #pipeline.weight<"a" : tensor<8x24xf32> declared <"a" zero cut <[8, 48] dim 1>>>
func.func private @s0.F(%x: !x, %w: tensor<8x24xf32>) -> !x attributes {
  pipeline.body = #pipeline.body<"s0" F>, pipeline.inputs = #pipeline.groups<act x 1, weight x 1>,
  pipeline.results = #pipeline.groups<act x 1>, pipeline.ties = array<i64: -1>} {
  %c = nn.spread %x over <tensor> : (!x) -> !x
  %q = nn.linear %c, %w : (!x, tensor<8x24xf32>) -> !y
  // expected-error@below {{'nn.attention' op in `s0.F` has no rule for `tensor = 2`: operand 0 is shard 2, operand 1 is shard 2}}
  %o, %l = nn.attention %q, %q, %q {heads = 2, causal = true, packed = true} : (!y, !y, !y) -> (!x, tensor<1x2x8xf32>)
  return %o : !x
}
pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}, mesh = #mesh} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]> bodies "s0" {weights = [#w]}
}

// -----

// A device has rows of the table, and nothing says which: each would look for tokens in the first device's.
!x = tensor<1x4x8xf32>
!t = tensor<1x4xi32>
!w = tensor<5x8xf32>
#mesh = #pipeline.mesh<tensor 2, context 1, data 1, pipeline 1>
#w = #pipeline.weight<"w" : !w declared <"w" zero cut <[10, 8] dim 0>>>
func.func private @s0.F(%t: !t, %w: !w) -> !x attributes {
  pipeline.body = #pipeline.body<"s0" F>, pipeline.inputs = #pipeline.groups<tokens x 1, weight x 1>,
  pipeline.results = #pipeline.groups<act x 1>, pipeline.ties = array<i64: -1>} {
  // expected-error@below {{operand 0 is none, operand 1 is shard 0; its `first_by` does not name `tensor`}}
  %x = nn.embedding %t, %w {first = 0, whole = 10} : (!t, !w) -> !x
  %y = nn.all_reduce %x over <tensor> : (!x) -> !x
  return %y : !x
}
pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}, mesh = #mesh} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]> bodies "s0" {weights = [#w]}
}

// -----

// Every device has the whole table, and the second looks for its tokens behind it.
!x = tensor<1x4x8xf32>
!t = tensor<1x4xi32>
!w = tensor<10x8xf32>
#mesh = #pipeline.mesh<tensor 2, context 1, data 1, pipeline 1>
#w = #pipeline.weight<"w" : !w declared <"w" zero>>
func.func private @s0.F(%t: !t, %w: !w) -> !x attributes {
  pipeline.body = #pipeline.body<"s0" F>, pipeline.inputs = #pipeline.groups<tokens x 1, weight x 1>,
  pipeline.results = #pipeline.groups<act x 1>, pipeline.ties = array<i64: -1>} {
  // expected-error@below {{operand 0 is none, operand 1 is full; its `first_by` names `tensor`}}
  %x = nn.embedding %t, %w {first = 0, whole = 10, first_by = #nn.axes<tensor>} : (!t, !w) -> !x
  return %x : !x
}
pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}, mesh = #mesh} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]> bodies "s0" {weights = [#w]}
}

// -----

// The gradients of a device's heads of keys go on in sums of whole ones.
!x = tensor<1x4x8xf32>
!h = tensor<1x4x4xf32>
!l = tensor<1x2x4xf32>
#mesh = #pipeline.mesh<tensor 2, context 1, data 1, pipeline 1>
func.func private @s0.F(%x: !x, %g: !h) -> !h attributes {
  pipeline.body = #pipeline.body<"s0" F>, pipeline.inputs = #pipeline.groups<act x 2>,
  pipeline.results = #pipeline.groups<act x 1>, pipeline.ties = array<i64: -1>} {
  %h = nn.take_columns %x over <tensor> {members = 2} : (!x) -> !h
  %o, %l = nn.attention %h, %h, %h {heads = 2, causal = true} : (!h, !h, !h) -> (!h, !l)
  %d = nn.attention_delta %o, %o {heads = 2} : (!h, !h) -> !l
  // expected-error@below {{then shard 1, then shard 1, then shard 2, then shard 2, then full, then full}}
  %dq, %dk, %dv = nn.attention_bwd %o, %h, %l, %d, %h, %h into_kv %g, %g {heads = 2, causal = true, sums = true}
      : (!h, !h, !l, !l, !h, !h, !h, !h) -> (!h, !h, !h)
  return %dq : !h
}
pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}, mesh = #mesh} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]> bodies "s0" {}
}

// -----

// The statistics of all heads, or of other ones, in the norm of a device's heads.
!x = tensor<1x4x8xf32>
!h = tensor<1x4x4xf32>
!s = tensor<1x4x2xf32>
#mesh = #pipeline.mesh<tensor 2, context 1, data 1, pipeline 1>
#g = #pipeline.weight<"g" : tensor<2xf32> declared <"g" zero terms>>
func.func private @s0.F(%x: !x, %s: !s, %g: tensor<2xf32>) -> !h attributes {
  pipeline.body = #pipeline.body<"s0" F>, pipeline.inputs = #pipeline.groups<act x 2, weight x 1>,
  pipeline.results = #pipeline.groups<act x 1>, pipeline.ties = array<i64: -1>} {
  %h = nn.take_columns %x over <tensor> {members = 2} : (!x) -> !h
  // expected-error@below {{'nn.rmsnorm_rebuild' op in `s0.F` has no rule for `tensor = 2`: operand 0 is shard 2, operand 1 is copy, then full}}
  %y = nn.rmsnorm_rebuild %h, %g, %s : (!h, tensor<2xf32>, !s) -> !h
  return %y : !h
}
pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}, mesh = #mesh} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]> bodies "s0" {weights = [#g]}
}

// -----

// And in its backward.
!x = tensor<1x4x8xf32>
!h = tensor<1x4x4xf32>
!s = tensor<1x4x2xf32>
#mesh = #pipeline.mesh<tensor 2, context 1, data 1, pipeline 1>
#g = #pipeline.weight<"g" : tensor<2xf32> declared <"g" zero terms>>
func.func private @s0.F(%x: !x, %s: !s, %g: tensor<2xf32>) -> !h attributes {
  pipeline.body = #pipeline.body<"s0" F>, pipeline.inputs = #pipeline.groups<act x 2, weight x 1>,
  pipeline.results = #pipeline.groups<act x 1>, pipeline.ties = array<i64: -1>} {
  %h = nn.take_columns %x over <tensor> {members = 2} : (!x) -> !h
  // expected-error@below {{then copy, then full}}
  %y, %d = nn.rmsnorm_bwd %h, %h, %g, %s : (!h, !h, tensor<2xf32>, !s) -> (!h, tensor<2xf32>)
  return %y : !h
}
pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}, mesh = #mesh} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]> bodies "s0" {weights = [#g]}
}

// -----

// Two devices have one piece of k, and their gradients of it are terms of a sum, which `gelu` does not pass on.
!x = tensor<1x4x8xf32>
!h = tensor<1x4x4xf32>
!w = tensor<8x4xf32>
#mesh = #pipeline.mesh<tensor 2, context 1, data 1, pipeline 1>
#w = #pipeline.weight<"w" : !w declared <"w" zero cut <[8, 4] dim 1 copies 2>>>
func.func private @s0.F(%x: !x, %w: !w) -> !h attributes {
  pipeline.body = #pipeline.body<"s0" F>, pipeline.inputs = #pipeline.groups<act x 1, weight x 1>,
  pipeline.results = #pipeline.groups<act x 1>, pipeline.ties = array<i64: -1>} {
  %c = nn.spread %x over <tensor> : (!x) -> !x
  %s = nn.spread %w over <tensor> {neighbours = 2} : (!w) -> !w
  %y = nn.linear %c, %s : (!x, !w) -> !h
  return %y : !h
}
func.func private @s0.B(%dy: !h) -> !h attributes {
  pipeline.body = #pipeline.body<"s0" B>, pipeline.inputs = #pipeline.groups<dact x 1>,
  pipeline.results = #pipeline.groups<stash x 1>, pipeline.ties = array<i64: -1>} {
  // expected-error@below {{'nn.gelu' op in `s0.B` has no rule for `tensor = 2`: operand 0 is shard 2, 2 copies (partial)}}
  %y = nn.gelu %dy : (!h) -> !h
  return %y : !h
}
pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}, mesh = #mesh} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]> bodies "s0" {weights = [#w]}
}

// -----

// A device has columns of all heads' statistics where those of its own heads belong.
!x = tensor<1x4x8xf32>
!h = tensor<1x4x4xf32>
!l = tensor<1x2x4xf32>
#mesh = #pipeline.mesh<tensor 2, context 1, data 1, pipeline 1>
func.func private @s0.F(%x: !x, %l: tensor<1x2x8xf32>, %s: tensor<2xf32>) -> !h attributes {
  pipeline.body = #pipeline.body<"s0" F>, pipeline.inputs = #pipeline.groups<act x 3>,
  pipeline.results = #pipeline.groups<act x 1>, pipeline.ties = array<i64: -1>} {
  %h = nn.take_columns %x over <tensor> {members = 2} : (!x) -> !h
  %m = nn.take_columns %l over <tensor> {members = 2} : (tensor<1x2x8xf32>) -> !l
  // expected-error@below {{'nn.attention_merge' op in `s0.F` has no rule for `tensor = 2`: operand 0 is shard 2, operand 1 is shard 2}}
  %y, %n = nn.attention_merge %h, %m, %h, %m {heads = 2} : (!h, !l, !h, !l) -> (!h, !l)
  return %y : !h
}
pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}, mesh = #mesh} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]> bodies "s0" {}
}

// -----

// Neighbours have the same two heads of keys, of which the queries of each read one.
!x = tensor<1x4x16xf32>
!h = tensor<1x4x4xf32>
!w = tensor<16x4xf32>
#mesh = #pipeline.mesh<tensor 4, context 1, data 1, pipeline 1>
#q = #pipeline.weight<"q" : !w declared <"q" zero cut <[16, 16] dim 1>>>
#k = #pipeline.weight<"k" : !w declared <"k" zero cut <[16, 8] dim 1 copies 2>>>
func.func private @s0.F(%x: !x, %q: !w, %k: !w) -> !h attributes {
  pipeline.body = #pipeline.body<"s0" F>, pipeline.inputs = #pipeline.groups<act x 1, weight x 2>,
  pipeline.results = #pipeline.groups<act x 1>, pipeline.ties = array<i64: -1>} {
  %c = nn.spread %x over <tensor> : (!x) -> !x
  %a = nn.linear %c, %q : (!x, !w) -> !h
  %s = nn.spread %k over <tensor> {neighbours = 2} : (!w) -> !w
  %b = nn.linear %c, %s : (!x, !w) -> !h
  // expected-error@below {{operand 0 is shard 2, operand 1 is shard 2, 2 copies (copy)}}
  %o, %l = nn.attention %a, %b, %b {heads = 2, causal = true} : (!h, !h, !h) -> (!h, tensor<1x2x4xf32>)
  return %o : !h
}
pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}, mesh = #mesh} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]> bodies "s0" {weights = [#q, #k]}
}

// -----

// Columns of q go into q|k|v with fewer columns of k and v: no whole number of equal runs.
!x = tensor<1x4x8xf32>
!h = tensor<1x4x4xf32>
!p = tensor<1x4x10xf32>
#mesh = #pipeline.mesh<tensor 2, context 1, data 1, pipeline 1>
func.func private @s0.F(%x: !x) -> !p attributes {
  pipeline.body = #pipeline.body<"s0" F>, pipeline.inputs = #pipeline.groups<act x 1>,
  pipeline.results = #pipeline.groups<act x 1>, pipeline.ties = array<i64: -1>} {
  %h = nn.take_columns %x over <tensor> {members = 2} : (!x) -> !h
  // expected-error@below {{'nn.place_columns' op in `s0.F` has no rule for `tensor = 2`: operand 0 is shard 2}}
  %y = nn.place_columns %h {start = 0, total = 10} : (!h) -> !p
  return %y : !p
}
pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}, mesh = #mesh} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]> bodies "s0" {}
}

// -----

// A run of columns of p|q is read from the middle of p: it has columns of both.
!x = tensor<1x4x8xf32>
!h = tensor<1x4x4xf32>
#mesh = #pipeline.mesh<tensor 2, context 1, data 1, pipeline 1>
#w = #pipeline.weight<"w" : tensor<8x8xf32> declared <"w" zero cut <[8, 16] dim 1 runs 2>>>
func.func private @s0.F(%x: !x, %w: tensor<8x8xf32>) -> !h attributes {
  pipeline.body = #pipeline.body<"s0" F>, pipeline.inputs = #pipeline.groups<act x 1, weight x 1>,
  pipeline.results = #pipeline.groups<act x 1>, pipeline.ties = array<i64: -1>} {
  %c = nn.spread %x over <tensor> : (!x) -> !x
  %p = nn.linear %c, %w : (!x, tensor<8x8xf32>) -> !x
  // expected-error@below {{'nn.slice_columns' op in `s0.F` has no rule for `tensor = 2`: operand 0 is shard 2, 2 runs}}
  %y = nn.slice_columns %p {start = 2, width = 4} : (!x) -> !h
  return %y : !h
}
pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}, mesh = #mesh} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]> bodies "s0" {weights = [#w]}
}

// -----

// Two devices have the same columns of dy and all of their gradient: a sum over all devices would count them twice.
!x = tensor<1x4x8xf32>
!h = tensor<1x4x4xf32>
!w = tensor<8x4xf32>
#mesh = #pipeline.mesh<tensor 2, context 1, data 1, pipeline 1>
#w = #pipeline.weight<"w" : !w declared <"w" zero cut <[8, 4] dim 1 copies 2>>>
func.func private @s0.F(%x: !x, %w: !w) -> !h attributes {
  pipeline.body = #pipeline.body<"s0" F>, pipeline.inputs = #pipeline.groups<act x 1, weight x 1>,
  pipeline.results = #pipeline.groups<act x 1>, pipeline.ties = array<i64: -1>} {
  %c = nn.spread %x over <tensor> : (!x) -> !x
  %s = nn.spread %w over <tensor> {neighbours = 2} : (!w) -> !w
  %y = nn.linear %c, %s : (!x, !w) -> !h
  return %y : !h
}
func.func private @s0.B.first(%dy: !h, %w: !w) -> !x attributes {
  pipeline.body = #pipeline.body<"s0" B first>, pipeline.inputs = #pipeline.groups<dact x 1, weight x 1>,
  pipeline.results = #pipeline.groups<dact x 1>, pipeline.ties = array<i64: -1>} {
  %s = nn.all_reduce %dy over <tensor> {neighbours = 2} : (!h) -> !h
  // expected-error@below {{operand 0 is shard 2, 2 copies (full), operand 1 is shard 1, 2 copies (full)}}
  %d = nn.linear_dx %s, %w : (!h, !w) -> !x
  %r = nn.all_reduce %d over <tensor> : (!x) -> !x
  return %r : !x
}
pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}, mesh = #mesh} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]> bodies "s0" {weights = [#w]}
}

// -----

// The weights of a token's choices are cut as if they were columns.
!k = tensor<1x4x4xf32>
!i = tensor<1x4x2xi32>
!l = tensor<1x4x6xf32>
#mesh = #pipeline.mesh<tensor 2, context 1, data 1, pipeline 1>
func.func private @s0.F(%l: !l, %k: !k) -> tensor<1x16xf32> attributes {
  pipeline.body = #pipeline.body<"s0" F>, pipeline.inputs = #pipeline.groups<act x 2>,
  pipeline.results = #pipeline.groups<act x 1>, pipeline.ties = array<i64: -1>} {
  %w, %sel, %p, %lse, %places, %counts = nn.route %l {top = 2, sections = #nn.sections<2 most 2>}
      : (!l) -> (tensor<1x4x2xf32>, !i, !l, tensor<1x4xf32>, !i, tensor<2x3xi32>)
  %h = nn.take_columns %k over <tensor> {members = 2} : (!k) -> tensor<1x4x2xf32>
  // expected-error@below {{'nn.place_weights' op in `s0.F` has no rule for `tensor = 2`: operand 0 is shard 2}}
  %y = nn.place_weights %h, %places {sections = #nn.sections<2 most 2>} : (tensor<1x4x2xf32>, !i) -> tensor<1x16xf32>
  return %y : tensor<1x16xf32>
}
pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}, mesh = #mesh} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]> bodies "s0" {}
}

// -----

// A table is looked up by the device of the context, of which each has all of it.
!x = tensor<1x4x8xf32>
!t = tensor<1x4xi32>
!w = tensor<10x8xf32>
#mesh = #pipeline.mesh<tensor 1, context 2, data 1, pipeline 1>
#w = #pipeline.weight<"w" : !w declared <"w" zero>>
func.func private @s0.F(%t: !t, %w: !w) -> !x attributes {
  pipeline.body = #pipeline.body<"s0" F>, pipeline.inputs = #pipeline.groups<tokens x 1, weight x 1>,
  pipeline.results = #pipeline.groups<act x 1>, pipeline.ties = array<i64: -1>} {
  // expected-error@below {{has no rule for `context = 2`: operand 0 is none, operand 1 is copy; its `first_by` names `context`}}
  %x = nn.embedding %t, %w {first = 0, whole = 10, first_by = #nn.axes<context>} : (!t, !w) -> !x
  return %x : !x
}
pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}, mesh = #mesh} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]> bodies "s0" {weights = [#w]}
}

// -----

// A term of a sum plus a column: each device would add the column.
!x = tensor<1x4x8xf32>
!h = tensor<1x4x4xf32>
#mesh = #pipeline.mesh<tensor 2, context 1, data 1, pipeline 1>
#b = #pipeline.weight<"b" : tensor<4x8xf32> declared <"b" zero cut <[8, 8] dim 0>>>
#k = #pipeline.weight<"k" : tensor<8x4xf32> declared <"k" zero cut <[8, 8] dim 1>>>
func.func private @s0.F(%x: !x, %c: tensor<1x4xf32>, %b: tensor<4x8xf32>, %k: tensor<8x4xf32>) -> !x attributes {
  pipeline.body = #pipeline.body<"s0" F>, pipeline.inputs = #pipeline.groups<act x 1, column[0] x 1, weight x 2>,
  pipeline.results = #pipeline.groups<act x 1>, pipeline.ties = array<i64: -1>} {
  %s = nn.spread %x over <tensor> : (!x) -> !x
  %y = nn.linear %s, %k : (!x, tensor<8x4xf32>) -> !h
  %z = nn.linear %y, %b : (!h, tensor<4x8xf32>) -> !x
  // expected-error@below {{'nn.map' op in `s0.F` has no rule for `tensor = 2`: operand 0 is partial, operand 1 is data}}
  %r = nn.map reads(%z: "thd", %c: "t") makes("thd") heads 1 {
  ^bb0(%a: f32, %d: f32):
    %m = arith.addf %a, %d : f32
    nn.give %m : f32
  } : (!x, tensor<1x4xf32>) -> !x
  return %r : !x
}
pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}, mesh = #mesh} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]> bodies "s0" {weights = [#b, #k]}
}
