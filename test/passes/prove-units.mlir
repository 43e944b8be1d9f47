// Every unit once: split backwards, a part without weights, recomputation as often as it likes.
// RUN: pp-opt %s --pp-prove-units | FileCheck %s

#w = #pipeline.weight<"w" : tensor<4xf32> declared <"w" zero>>

func.func private @s0.norm.first() attributes {pipeline.body = #pipeline.body<"s0" U norm_first>}
func.func private @s0.copy() attributes {pipeline.body = #pipeline.body<"s0" U copy>}

// CHECK: pipeline.program @split
pipeline.program @split ranks 2 microbatches 2 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]> {weights = [#w]}
  pipeline.piece @attn0 <part "attn" 0> parts [["b", 0]] at <[1]>
  pipeline.rank 0 {
    pipeline.launch @s0.F <F stage 0 mb 0>() -> () : () -> ()
    pipeline.launch @s0.F <F stage 0 mb 1>() -> () : () -> ()
    pipeline.launch @s0.R <R stage 0 mb 0>() -> () : () -> ()
    pipeline.launch @s0.R <R stage 0 mb 0>() -> () : () -> ()
    pipeline.launch @s0.B.first <B stage 0 mb 0>() -> () : () -> ()
    pipeline.launch @s0.I <I stage 0 mb 1>() -> () : () -> ()
    pipeline.launch @s0.W <W stage 0 mb 1>() -> () : () -> ()
    pipeline.launch @s0.norm.first <U stage 0>() -> () : () -> ()
    pipeline.launch @s0.U <U stage 0>() -> () : () -> ()
    pipeline.launch @s0.copy <U stage 0>() -> () : () -> ()
  }
  pipeline.rank 1 {
    pipeline.launch @attn0.F <F part "attn" 0 mb 1>() -> () : () -> ()
    pipeline.launch @attn0.F <F part "attn" 0 mb 0>() -> () : () -> ()
    pipeline.launch @attn0.I <I part "attn" 0 mb 0>() -> () : () -> ()
    pipeline.launch @attn0.B <B part "attn" 0 mb 1>() -> () : () -> ()
  }
}

// CHECK: pipeline.program @slices
pipeline.program @slices ranks 1 microbatches 1 slices 2 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]>
  pipeline.rank 0 {
    pipeline.launch @s0.F <F stage 0 mb 0 slice 0>() -> () : () -> ()
    pipeline.launch @s0.F <F stage 0 mb 0 slice 1>() -> () : () -> ()
    pipeline.launch @s0.B <B stage 0 mb 0 slice 1>() -> () : () -> ()
    pipeline.launch @s0.B <B stage 0 mb 0 slice 0>() -> () : () -> ()
  }
}
