// plan-bodies: bodies that no memory plan can run.
// RUN: pp-opt %s --pp-plan-bodies --split-input-file --verify-diagnostics

!x = tensor<2x4x8xf32>
!w = tensor<8x8xf32>

// The sum is made in place of %a, which is read once more afterwards.
func.func private @read_later(%x: !x, %w: !w, %g: !w) -> (!w, !w) attributes {
    pipeline.inputs = #pipeline.groups<act x 1, weight x 1, grad x 1>, pipeline.results = #pipeline.groups<grad x 1, stash x 1>,
    pipeline.ties = array<i64: 2, -1>} {
  // expected-error@below {{'nn.linear_dw' op writes over its operand 2, which is read afterwards}}
  %a = nn.linear_dw %x, %x into %g : (!x, !x, !w) -> !w
  // expected-note@below {{read here}}
  %b = nn.accumulate %w into %g : (!w, !w) -> !w
  return %b, %a : !w, !w
}

// -----

!w = tensor<8x8xf32>

// An op would read as another operand what it writes over.
func.func private @twice(%g: !w) -> !w attributes {
    pipeline.inputs = #pipeline.groups<grad x 1>, pipeline.results = #pipeline.groups<grad x 1>,
    pipeline.ties = array<i64: 0>} {
  // expected-error@below {{'nn.accumulate' op writes over its operand 1, which it reads as operand 0, too}}
  %a = nn.accumulate %g into %g : (!w, !w) -> !w
  return %a : !w
}

// -----

!w = tensor<8x8xf32>

// The result goes to the slot of %w, which the op after it still reads.
func.func private @overwritten(%w: !w, %v: !w) -> (!w, !w) attributes {
    pipeline.inputs = #pipeline.groups<weight x 1, act x 1>, pipeline.results = #pipeline.groups<weight x 1, act x 1>,
    pipeline.ties = array<i64: 0, -1>} {
  // expected-error@below {{'nn.copy' op writes the slot of an argument that is still read}}
  %a = nn.copy %v : (!w) -> !w
  // expected-note@below {{read here}}
  %b = nn.copy %w : (!w) -> !w
  return %a, %b : !w, !w
}

// -----

!w = tensor<8x8xf32>

// The groups must cover the function's tensors.
// expected-error@below {{'func.func' op has `pipeline.inputs` for 1 of its 2 tensors}}
func.func private @groups(%w: !w, %v: !w) -> !w attributes {
    pipeline.inputs = #pipeline.groups<weight x 1>, pipeline.results = #pipeline.groups<weight x 1>, pipeline.ties = array<i64: -1>} {
  %a = nn.copy %v : (!w) -> !w
  return %a : !w
}

// -----

!w = tensor<8x8xf32>

// A tie names an input group of the same tensors.
// expected-error@below {{'func.func' op ties group `grad` to input group 1 of 1}}
func.func private @ties(%w: !w) -> !w attributes {
    pipeline.inputs = #pipeline.groups<weight x 1>, pipeline.results = #pipeline.groups<grad x 1>, pipeline.ties = array<i64: 1>} {
  %a = nn.copy %w : (!w) -> !w
  return %a : !w
}

// -----

!w = tensor<8x8xf32>

// Nobody expects the slot of an input to change if no result is tied to it.
func.func private @lost(%w: !w, %g: !w) -> !w attributes {
    pipeline.inputs = #pipeline.groups<weight x 1, grad x 1>, pipeline.results = #pipeline.groups<act x 1>, pipeline.ties = array<i64: -1>} {
  // expected-error@below {{'nn.accumulate' op writes over an argument of group `grad`, whose slot no result takes over}}
  %a = nn.accumulate %w into %g : (!w, !w) -> !w
  %b = nn.copy %w : (!w) -> !w
  return %b : !w
}
