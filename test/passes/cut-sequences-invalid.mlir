// Heads that devices cannot exchange.
// RUN: pp-opt %s --pp-cut-sequences --split-input-file --verify-diagnostics

// Two heads of keys over three devices: the second device has queries of both.
!x = tensor<2x6x24xf32>
!k = tensor<2x6x8xf32>
func.func private @attn(%q: !x, %k: !k, %v: !k) -> !x {
  // expected-error@below {{`attention = "heads"`: a device has 2 heads of keys; `context = 3` neither divides them nor is a multiple of them}}
  %o, %lse = nn.attention %q, %k, %v {causal = true, heads = 6 : i64, kv_heads = 2 : i64} : (!x, !k, !k) -> (!x, tensor<2x6x6xf32>)
  return %o : !x
}
pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {"batch" = 2, "sequence" = 6},
    mesh = #pipeline.mesh<tensor 1, context 3, data 1, pipeline 1, attention heads>} {
  pipeline.piece @s0 <stage 0> parts [["attn", 0]] at <[0]>
}

// -----

// Four heads of keys over two devices of the tensor axis are two each, which three of context cannot share.
!x = tensor<2x6x48xf32>
!k = tensor<2x6x16xf32>
func.func private @attn(%q: !x, %k: !k, %v: !k) -> !x {
  // expected-error@below {{`attention = "heads"`: a device has 2 heads of keys; `context = 3` neither divides them nor is a multiple of them}}
  %o, %lse = nn.attention %q, %k, %v {causal = true, heads = 12 : i64, kv_heads = 4 : i64} : (!x, !k, !k) -> (!x, tensor<2x12x6xf32>)
  return %o : !x
}
pipeline.program @p ranks 1 microbatches 1 slices 0 attributes {train = {"batch" = 2, "sequence" = 6},
    mesh = #pipeline.mesh<tensor 2, context 3, data 1, pipeline 1, attention heads>} {
  pipeline.piece @s0 <stage 0> parts [["attn", 0]] at <[0]>
}
