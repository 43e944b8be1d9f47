// The JSON text of a rank: what its step refers to by number, and what the trainer finds where (runtime/Program.h).
// RUN: pp-unproved %s --emit=llvm | sed 's/\\22/"/g; s/],"/],\n"/g' | FileCheck %s

!x = tensor<2x4x8xf32>
!w = tensor<8x8xbf16>
!m = tensor<8x8xf32>
!v = tensor<5xbf16>
!n = tensor<5xf32>

func.func private @s0.F(%x: !x) -> !x attributes {
    pipeline.inputs = #pipeline.groups<act x 1>, pipeline.results = #pipeline.groups<act x 1>, pipeline.ties = array<i64: -1>,
    pipeline.flops = 1024.0 : f64} {
  %a = nn.rope %x {heads = 2 : i64, style = "pair", offset = 3 : i64} : (!x) -> !x
  return %a : !x
}

pipeline.program @one ranks 2 microbatches 4 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["pre", 0]] {weights = [
    #pipeline.weight<"a.w" : !w declared <"a.w" normal 2.0e-2 transposed>>,
    #pipeline.weight<"a.t" : !w tied declared <"a.t">>,
    #pipeline.weight<"a.v" : !v declared <"a.v" one>>]}
  // Beside the arena: cos and sin of 4 positions and 2 pairs in f32, and the norms of two ranks, 64 bytes for each.
  // CHECK: {"rank":0,"arena_bytes":65536,"peak":{"act":256,"live":4096},"kernel_bytes":64,"message_bytes":128,"ops":
  pipeline.rank 0 arena 65536 attributes {peak = {act = 256, live = 4096}} {
    // Kernels as runtime/Pp.h lists them; two equal calls share an entry.
    // CHECK-SAME: [{"kernel":"rope","type":"f32","dims":[2,4,2,4,3],
    // CHECK-NEXT: "params":[10000.0],
    // CHECK-NEXT: "flags":["pair"]}],
    // Units carry their bodies' flops, and the line on which they stand, as messages do.
    // CHECK-NEXT: "units":[{"name":"0F3","phase":"F","task":"s0.F","microbatch":3,"flops":1024.0,
    // CHECK-SAME: "line":"describe.mlir:[[# @LINE + 3]]:5"}],
    %x = pipeline.slot act "x" offset 8192 : !pipeline.slot<tuple<!x>>
    %y = pipeline.slot act "y" offset 8448 : !pipeline.slot<tuple<!x>>
    pipeline.launch @s0.F <F stage 0 mb 3>(%x) -> (%y) : (!pipeline.slot<tuple<!x>>) -> (!pipeline.slot<tuple<!x>>)
    // CHECK-NEXT: "messages":[{"kind":"send","peer":1,"channel":1,"bytes":256,"label":"act(0, 3)","offset":8448,
    // CHECK-SAME: "line":"describe.mlir:[[# @LINE + 4]]:10"},
    // CHECK-SAME: {"kind":"receive","peer":1,"channel":2,"bytes":256,"label":"dact(0, 3)","offset":8192,"line":
    // CHECK-SAME: {"kind":"all_reduce","root":-1,"group":[0,1],
    // CHECK-NEXT: "channel":4,"count":1,"type":"f64","label":"stat(norm)","line":"describe.mlir:{{[0-9]+}}:{{[0-9]+}}"}],
    %p = pipeline.post send <act stage 0 mb 3> %y with [1] channel 1 : !pipeline.slot<tuple<!x>>
    pipeline.complete %p
    %q = pipeline.post receive <dact stage 0 mb 3> %x with [1] channel 2 : !pipeline.slot<tuple<!x>>
    pipeline.complete %q
    %n = pipeline.slot stat "norm" offset 9024 binding <norm> : !pipeline.slot<tuple<tensor<1xf64>>>
    %r = pipeline.post all_reduce <stat part "norm"> %n with [0, 1] channel 4 : !pipeline.slot<tuple<tensor<1xf64>>>
    pipeline.complete %r
    // A slot of a payload gives one entry for each tensor, at its offset; a tied copy is never the one that is saved.
    // CHECK-NEXT: "weights":[{"name":"a.w","shape":[8,8],
    // CHECK-NEXT: "type":"bf16","offset":0,"stored":"transposed","init":{"kind":"normal","deviation":0.02},"save":true,"tied":false},
    // CHECK-SAME: {"name":"a.t","shape":[8,8],
    // CHECK-NEXT: "type":"bf16","offset":128,"stored":"plain","init":{"kind":"normal","deviation":0.0},"save":false,"tied":true},
    // CHECK-SAME: {"name":"a.v","shape":[5],
    // CHECK-NEXT: "type":"bf16","offset":256,{{.*}}"save":true,"tied":false}],
    %w = pipeline.slot weight "w" offset 0 binding <weight @s0 save>
        : !pipeline.slot<tuple<!w, !w, !v>>
    // State and gradients lie with the owner: none for the tied tensor, though its gradient's place is in the payload.
    // CHECK-NEXT: "state":[{"name":"a.w","shape":[8,8],
    // CHECK-NEXT: "type":"f32","offset":1024,"kind":"m"},{{.*}}
    // CHECK-NEXT: "type":"f32","offset":1280,"kind":"v"},{{.*}}
    // CHECK-NEXT: "type":"f32","offset":1536,"kind":"master"},{"name":"a.v","shape":[5],
    // CHECK-NEXT: "type":"f32","offset":1792,"kind":"m"},{{.*}}
    // CHECK-NEXT: "type":"f32","offset":1856,"kind":"v"},{{.*}}
    // CHECK-NEXT: "type":"f32","offset":1920,"kind":"master"}],
    %o = pipeline.slot opt "o" offset 1024 binding <opt @s0> : !pipeline.slot<tuple<!m, !m, !m, !n, !n, !n>>
    // CHECK-NEXT: "grads":[{"name":"a.w","shape":[8,8],
    // CHECK-NEXT: "type":"f32","offset":2048,"stored":"transposed"},{"name":"a.v","shape":[5],
    // CHECK-NEXT: "type":"f32","offset":2560,"stored":"plain"}],
    %g = pipeline.slot grad "g" offset 2048 binding <grad @s0> : !pipeline.slot<tuple<!m, !m, !n>>
    // CHECK-NEXT: "inputs":[{"kind":"tokens","microbatch":3,"offset":8704},{"kind":"targets","microbatch":3,"offset":8768}],
    %i = pipeline.slot data "i" offset 8704 binding <tokens mb 3> : !pipeline.slot<tuple<tensor<2x4xi32>>>
    %t = pipeline.slot data "t" offset 8768 binding <targets mb 3> : !pipeline.slot<tuple<tensor<2x4xi32>>>
    // CHECK-NEXT: "losses":[{"microbatch":3,"offset":8832,"type":"f32"}],
    // CHECK-NEXT: "norm":{"offset":9024}}\00"
    %l = pipeline.slot stat "l" offset 8832 binding <loss mb 3> : !pipeline.slot<tuple<tensor<1xf32>>>
  }
}
