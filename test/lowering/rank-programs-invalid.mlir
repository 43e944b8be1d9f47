// What cannot be lowered is an error at the op that cannot.
// RUN: pp-unproved %s --emit=llvm --split-input-file --verify-diagnostics

!w = tensor<8x8xf32>

// A forward op that has no kernel of its own must have been expanded before.
func.func private @s0.F(%w: !w) -> (!w, !w) attributes {
    pipeline.inputs = #pipeline.groups<act x 1>, pipeline.results = #pipeline.groups<act x 2>, pipeline.ties = array<i64: -1>} {
  // expected-error@below {{'nn.split' op has no kernel: it cannot run in a task body}}
  %a:2 = nn.split %w {parts = 2 : i64} : (!w) -> (tensor<8x4xf32>, tensor<8x4xf32>)
  %b = nn.copy %w : (!w) -> !w
  %c = nn.copy %w : (!w) -> !w
  return %b, %c : !w, !w
}
pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["s0", 0]]
  pipeline.rank 0 {
    %x = pipeline.slot act "x" offset 0 : !pipeline.slot<tuple<!w>>
    %y = pipeline.slot act "y" offset 256 : !pipeline.slot<tuple<!w, !w>>
    %t = pipeline.slot temporary "t" offset 1024 : !pipeline.slot<tuple<tensor<4096xi8>>>
    pipeline.launch @s0.F <F stage 0 mb 0>(%x) -> (%y) scratch %t
        : (!pipeline.slot<tuple<!w>>) -> (!pipeline.slot<tuple<!w, !w>>) scratch !pipeline.slot<tuple<tensor<4096xi8>>>
  }
}

// -----

!w = tensor<8x8xf32>
!s = !pipeline.slot<tuple<!w>>

// Only plan-slots knows where a slot lies.
pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.rank 0 {
    // expected-error@below {{'pipeline.slot' op has no offset; plan-slots gives it one}}
    %x = pipeline.slot act "x" : !s
  }
}

// -----

!w = tensor<8x8xf32>
!s = !pipeline.slot<tuple<!w>>

func.func private @s0.F(%w: !w) -> !w attributes {
    pipeline.inputs = #pipeline.groups<act x 1>, pipeline.results = #pipeline.groups<act x 1>, pipeline.ties = array<i64: -1>} {
  %b = nn.copy %w : (!w) -> !w
  return %b : !w
}
// A launch hands over exactly the groups of its body.
pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["s0", 0]]
  pipeline.rank 0 {
    %x = pipeline.slot act "x" offset 0 : !s
    // expected-error@below {{'pipeline.launch' op hands 1 slots to `@s0.F`, which takes 2}}
    pipeline.launch @s0.F <F stage 0 mb 0>(%x) -> () : (!s) -> ()
  }
}

// -----

!w = tensor<8x8xf32>
!s = !pipeline.slot<tuple<!w>>
!v = !pipeline.slot<tuple<tensor<8x4xf32>>>

func.func private @s0.F(%w: !w) -> !w attributes {
    pipeline.inputs = #pipeline.groups<act x 1>, pipeline.results = #pipeline.groups<act x 1>, pipeline.ties = array<i64: -1>} {
  %b = nn.copy %w : (!w) -> !w
  return %b : !w
}
pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["s0", 0]]
  pipeline.rank 0 {
    %x = pipeline.slot act "x" offset 0 : !s
    %y = pipeline.slot act "y" offset 256 : !v
    // expected-error@below {{'pipeline.launch' op hands '!pipeline.slot<tuple<tensor<8x4xf32>>>' as slot 1 to `@s0.F`, which takes 'tuple<tensor<8x8xf32>>'}}
    pipeline.launch @s0.F <F stage 0 mb 0>(%x) -> (%y) : (!s) -> (!v)
  }
}

// -----

!w = tensor<8x8xf32>
!s = !pipeline.slot<tuple<!w>>

func.func private @s0.F(%w: !w) -> !w attributes {
    pipeline.inputs = #pipeline.groups<act x 1>, pipeline.results = #pipeline.groups<act x 1>, pipeline.ties = array<i64: -1>} {
  %a = nn.copy %w : (!w) -> !w
  %b = nn.gelu %a : (!w) -> !w
  return %b : !w
}
// A body's scratch memory is the launch's to give.
pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["s0", 0]]
  pipeline.rank 0 {
    %x = pipeline.slot act "x" offset 0 : !s
    %y = pipeline.slot act "y" offset 256 : !s
    // expected-error@below {{'pipeline.launch' op has no scratch; `@s0.F` needs 256 bytes}}
    pipeline.launch @s0.F <F stage 0 mb 0>(%x) -> (%y) : (!s) -> (!s)
  }
}

// -----

!w = tensor<8x8xf32>
!s = !pipeline.slot<tuple<!w>>

// A binding and its piece describe the same tensors.
pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["pre", 0]] {weights = [
    #pipeline.weight<"w" : tensor<8x4xf32> declared <"w" zero>>]}
  pipeline.rank 0 {
    // expected-error@below {{'pipeline.slot' op holds 'tensor<8x8xf32>' where `w` has 'tensor<8x4xf32>'}}
    %x = pipeline.slot weight "x" offset 0 binding <weight @s0 save> : !s
  }
}

// -----

!s = !pipeline.slot<tuple<tensor<8x8xf32>>>

pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.piece @s7 <stage 7> parts [["pre", 0]]
  pipeline.rank 0 {
    // expected-error@below {{'pipeline.slot' op is bound to piece `s7`, which has no weights}}
    %x = pipeline.slot weight "x" offset 0 binding <weight @s7 save> : !s
  }
}
