// What cannot be derived, and where the model or the program says so.
// RUN: pp-opt %s --pp-derive-tasks --split-input-file --verify-diagnostics

func.func private @a(%x: tensor<1x8x16xf32>) -> tensor<1x8x16xf32> {
  %y = nn.gelu %x : (tensor<1x8x16xf32>) -> tensor<1x8x16xf32>
  return %y : tensor<1x8x16xf32>
}
pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}} {
  // expected-error@+1 {{the model has no part `b`, of which `s0` is made}}
  pipeline.piece @s0 <stage 0> parts [["a", 0], ["b", 0]]
}

// -----

func.func private @a(%x: tensor<1x8x16xf32>) -> tensor<1x8x16xf32> {
  return %x : tensor<1x8x16xf32>
}
// expected-error@+1 {{this program has slices, but its `train` has no `sequence` to cut}}
pipeline.program @p ranks 1 microbatches 1 slices 4 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]]
}

// -----

func.func private @a(%x: tensor<1x8x16xf32>) -> tensor<1x8x16xf32> {
  return %x : tensor<1x8x16xf32>
}
// expected-error@+1 {{slice 8 of 9 is empty; a sequence has 8 tokens}}
pipeline.program @q ranks 1 microbatches 1 slices 9 attributes {train = {sequence = 8 : i64}} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]]
}

// -----

// Lengths that somebody gave.
func.func private @a(%x: tensor<1x8x16xf32>) -> tensor<1x8x16xf32> {
  return %x : tensor<1x8x16xf32>
}
// expected-error@+1 {{the slices hold 9 tokens; a sequence has 8}}
pipeline.program @p ranks 1 microbatches 1 slices 2 attributes {slice_lengths = array<i64: 4, 5>, train = {sequence = 8 : i64}} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]]
}

// -----

func.func private @attn(%x: tensor<1x8x16xf32>) -> tensor<1x8x16xf32> {
  %k = nn.gelu %x : (tensor<1x8x16xf32>) -> tensor<1x8x16xf32>
  %v = nn.gelu %x : (tensor<1x8x16xf32>) -> tensor<1x8x16xf32>
  // expected-error@+1 {{an `attention` that is not causal needs the keys of later slices; such a model cannot run in slices}}
  %o, %lse = nn.attention %x, %k, %v {heads = 4 : i64} : (tensor<1x8x16xf32>, tensor<1x8x16xf32>, tensor<1x8x16xf32>) -> (tensor<1x8x16xf32>, tensor<1x4x8xf32>)
  return %o : tensor<1x8x16xf32>
}
pipeline.program @p ranks 1 microbatches 1 slices 2 attributes {train = {sequence = 8 : i64}} {
  pipeline.piece @s0 <stage 0> parts [["attn", 0]]
}

// -----

func.func private @attn(%x: tensor<1x8x16xf32>) -> tensor<1x8x16xf32> {
  // expected-error@+1 {{on slices, `attention` alone may read its keys and values: their gradients are summed over slices}}
  %k = nn.gelu %x : (tensor<1x8x16xf32>) -> tensor<1x8x16xf32>
  %v = nn.gelu %x : (tensor<1x8x16xf32>) -> tensor<1x8x16xf32>
  %o, %lse = nn.attention %x, %k, %v {heads = 4 : i64, causal = true} : (tensor<1x8x16xf32>, tensor<1x8x16xf32>, tensor<1x8x16xf32>) -> (tensor<1x8x16xf32>, tensor<1x4x8xf32>)
  %y = nn.add %o, %k : (tensor<1x8x16xf32>, tensor<1x8x16xf32>) -> tensor<1x8x16xf32>
  return %y : tensor<1x8x16xf32>
}
pipeline.program @p ranks 1 microbatches 1 slices 2 attributes {train = {sequence = 8 : i64}} {
  pipeline.piece @s0 <stage 0> parts [["attn", 0]]
  pipeline.unit <B stage 0 mb 0 slice 1> on [0]
}

// -----

func.func private @wide(%x: tensor<1x8x16xf32>) -> tensor<1x8x16xf32> {
  return %x : tensor<1x8x16xf32>
}
// expected-error@+1 {{part `narrow` reads 'tensor<1x8x8xf32>' as argument 0, got 'tensor<1x8x16xf32>'}}
func.func private @narrow(%x: tensor<1x8x8xf32>) -> tensor<1x8x8xf32> {
  return %x : tensor<1x8x8xf32>
}
pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["wide", 0], ["narrow", 0]]
  pipeline.unit <B stage 0 mb 0> on [0]
}

// -----

func.func private @a(%x: tensor<1x8x16xf32>, %w: tensor<16x8xf32> {nn.weight = #nn.weight<"w">}) -> tensor<1x8x16xf32> {
  // expected-error@+1 {{`transpose` may stand only where `linear` reads its weight}}
  %t = nn.transpose %w : (tensor<16x8xf32>) -> tensor<8x16xf32>
  %u = nn.gelu %t : (tensor<8x16xf32>) -> tensor<8x16xf32>
  return %x : tensor<1x8x16xf32>
}
pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]]
}

// -----

func.func private @a(%x: tensor<1x8xi32>, %y: tensor<1x8x16xf32>, %w: tensor<4x16xf32> {nn.weight = #nn.weight<"w">}) -> tensor<1x8x16xf32> {
  %e = nn.embedding %x, %w : (tensor<1x8xi32>, tensor<4x16xf32>) -> tensor<1x8x16xf32>
  return %e : tensor<1x8x16xf32>
}
pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}} {
  // expected-error@+1 {{nothing that `s0` receives leads to anything that it returns}}
  pipeline.piece @s0 <stage 0> parts [["a", 0]]
  pipeline.unit <B stage 0 mb 0> on [0]
}

// -----

func.func private @a(%x: tensor<1x8x16xf32>, %w: tensor<16xf32> {nn.weight = #nn.weight<"g" shared>}) -> tensor<1x8x16xf32> {
  %n, %r = nn.rmsnorm %x, %w : (tensor<1x8x16xf32>, tensor<16xf32>) -> (tensor<1x8x16xf32>, tensor<1x8xf32>)
  return %n : tensor<1x8x16xf32>
}
func.func private @b(%x: tensor<1x8x16xf32>, %w: tensor<16xf32> {nn.weight = #nn.weight<"h" shared>}) -> tensor<1x8x16xf32> {
  %n, %r = nn.rmsnorm %x, %w : (tensor<1x8x16xf32>, tensor<16xf32>) -> (tensor<1x8x16xf32>, tensor<1x8xf32>)
  return %n : tensor<1x8x16xf32>
}
pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]]
  pipeline.piece @s1 <stage 1> parts [["b", 1]]
  // expected-error@+1 {{`s2` shares weights with two pieces, `s0` and `s1`; it may share with one piece only}}
  pipeline.piece @s2 <stage 2> parts [["a", 2], ["b", 2]]
}
