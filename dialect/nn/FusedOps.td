// Two kernels in one call: what a library's product does to its result or an operand on the way (epilogues).
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_DIALECT_NNFUSEDOPS_TD
#define PP_DIALECT_NNFUSEDOPS_TD

def LinearGeluOp : Nn_KernelOp<"linear_gelu", ["flags", "pointers"]> {
  let summary = "a `linear` and the `gelu` of it, the tanh form; both are results";
  let arguments = (ins Nn_Tensor:$x, Nn_Tensor:$w, Optional<Nn_Tensor>:$bias, Nn_Flag:$transposed);
  let results = (outs Nn_Tensor:$u, Nn_Tensor:$y);
  let assemblyFormat = "$x `,` $w (`bias` $bias^)? attr-dict `:` functional-type(operands, results)";
}

def LinearDxGeluOp : Nn_KernelOp<"linear_dx_gelu", ["flags"]> {
  let summary = "the `gelu_bwd` at u of a `linear_dx`; the result of the `linear_dx` itself is not kept";
  let arguments = (ins Nn_Tensor:$dy, Nn_Tensor:$w, Nn_Tensor:$u, Nn_Flag:$transposed);
  let results = (outs Nn_Tensor:$du);
  let assemblyFormat = "$dy `,` $w `,` $u attr-dict `:` functional-type(operands, results)";
}

def LinearDwBiasOp : Nn_KernelOp<"linear_dw_bias", ["flags"],
                                 [DeclareOpInterfaceMethods<Nn_InPlace, ["getRequiredTies"]>, Nn_WeightGradient]> {
  let summary = "`linear_dw` and `bias_dw` of one dy; `acc`, both sums so far or none";
  let arguments = (ins Nn_Tensor:$x, Nn_Tensor:$dy, Variadic<Nn_Tensor>:$acc, Nn_Flag:$transposed);
  let results = (outs Nn_Tensor:$dw, Nn_Tensor:$db);
  let assemblyFormat = "$x `,` $dy (`into` $acc^)? attr-dict `:` functional-type(operands, results)";
}

#endif // PP_DIALECT_NNFUSEDOPS_TD
