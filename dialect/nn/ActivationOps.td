// Activations and their gradients: gelu, units in which one tensor gates another, dropout; and what products do beside.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_DIALECT_NNACTIVATIONOPS_TD
#define PP_DIALECT_NNACTIVATIONOPS_TD

def AddBiasOp : Nn_ForwardOp<"add_bias", ["flags", "elementType"], [
  Nn_InPlace,
  Nn_Factors<Nn_BiasFactors>]> {
  let summary = "x plus a bias in each row: of a linear that is cut by rows, behind the sum, or of a router's logits";
  let description = "x is of the type of the bias, or of that of its sums.";
  let arguments = (ins Nn_Tensor:$x, Nn_Tensor:$bias);
  let results = (outs Nn_Tensor:$y);
  let assemblyFormat = "$x `,` $bias attr-dict `:` functional-type(operands, results)";
  let extraClassDeclaration = Nn_Overwrites<"{{0, 0}}">.declaration;
}

def GeluOp : Nn_KernelOp<"gelu", ["flags"], [
  DeclareOpInterfaceMethods<Nn_Differentiable>, Nn_Cheap,
  Nn_Factors<Nn_GeluFactors>]> {
  let summary = "gelu in the tanh form; `exact` is the erf form, which is another function";
  let signature = "gelu(x, exact = false)";
  let formula = "y = x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))); exact: y = x/2 (1 + erf(x / sqrt(2)))";
  let note = "the tanh form, or the exact one: two functions";
  let arguments = (ins Nn_Tensor:$x, Nn_Flag:$exact);
  let results = (outs Nn_Tensor:$y);
  let assemblyFormat = "$x attr-dict `:` functional-type(operands, results)";
}

/// What a gated unit reads: p and q, or with `packed` one tensor, the columns of p before those of q.
def Nn_Gates { string format = "$p (`,` $q^)? attr-dict `:` functional-type(operands, results)"; }

def SwigluOp : Nn_KernelOp<"swiglu", ["flags", "pointers"], [
  DeclareOpInterfaceMethods<Nn_Differentiable>, Nn_Cheap,
  Nn_Factors<Nn_GatesFactors, [
    Nn_When<"getPacked()", Nn_PackedGatesFactors>]>]> {
  let summary = "p sigmoid(p) q";
  let signature = "swiglu(p, q)";
  let formula = "y = p q / (1 + e^-p)";
  let note = "p is the gate";
  let arguments = (ins Nn_Tensor:$p, Optional<Nn_Tensor>:$q, Nn_Flag:$packed);
  let results = (outs Nn_Tensor:$y);
  let assemblyFormat = Nn_Gates.format;
}

def GluOp : Nn_KernelOp<"glu", ["params", "flags", "pointers"], [
  DeclareOpInterfaceMethods<Nn_Differentiable>, Nn_Cheap,
  Nn_Factors<Nn_GatesFactors, [
    Nn_When<"getPacked()", Nn_PackedGatesFactors>]>]> {
  let summary = "a gated unit: an activation of p, times q, each within limits";
  let signature = "glu(p, q, activation = \"silu\", limit = 0.0, alpha = 1.0, plus = 0.0)";
  let formula = "y = act(min(p, limit)) (clamp(q, -limit, limit) + plus)";
  let note = "p is the gate; `activation` is \"silu\", x / (1 + e^(-alpha x)), or \"gelu\" or \"gelu_tanh\", the exact "
             "and the tanh form of gelu; a limit of 0 is none; with all defaults it is `swiglu(p, q)`";
  let arguments = (ins Nn_Tensor:$p, Optional<Nn_Tensor>:$q, DefaultValuedStrAttr<StrAttr, "silu">:$activation,
                       Nn_Number:$limit, Nn_One:$alpha, Nn_Number:$plus, Nn_Flag:$packed);
  let results = (outs Nn_Tensor:$y);
  let assemblyFormat = Nn_Gates.format;
}

def GeluBwdOp : Nn_KernelOp<"gelu_bwd", ["flags"], [
  Nn_InPlace,
  Nn_Factors<Nn_GeluFactors # " | d(y) x -> d(x)">]> {
  let summary = "gradient of a gelu's input";
  let arguments = (ins Nn_Tensor:$dy, Nn_Tensor:$x, Nn_Flag:$exact);
  let results = (outs Nn_Tensor:$dx);
  let assemblyFormat = "$dy `,` $x attr-dict `:` functional-type(operands, results)";
  let extraClassDeclaration = Nn_Overwrites<"{{0, 0}}">.declaration;
}

/// The gradients of p and q over them, or of their one tensor over it.
def Nn_GateOverwrites { string declaration = [{
    ::llvm::SmallVector<::pp::nn::Tie> getAllowedTies() {
      return getPacked() ? ::llvm::SmallVector<::pp::nn::Tie>{{0, 1}}
                         : ::llvm::SmallVector<::pp::nn::Tie>{{0, 1}, {1, 2}};
    }
  }]; }

def SwigluBwdOp : Nn_KernelOp<"swiglu_bwd", ["flags", "pointers"], [
  Nn_InPlace,
  Nn_Factors<Nn_GatesFactors # " | d(y) p q -> d(p) d(q)", [
    Nn_When<"getPacked()", Nn_PackedGatesFactors # " | d(y) p -> d(p)">]>]> {
  let summary = "gradients of a swiglu's inputs";
  let arguments = (ins Nn_Tensor:$dy, Nn_Tensor:$p, Optional<Nn_Tensor>:$q, Nn_Flag:$packed);
  let results = (outs Nn_Tensor:$dp, Optional<Nn_Tensor>:$dq);
  let assemblyFormat = !strconcat("$dy `,` ", Nn_Gates.format);
  let extraClassDeclaration = Nn_GateOverwrites.declaration;
}

def GluBwdOp : Nn_KernelOp<"glu_bwd", ["params", "flags", "pointers"], [
  Nn_InPlace,
  Nn_Factors<Nn_GatesFactors # " | d(y) p q -> d(p) d(q)", [
    Nn_When<"getPacked()", Nn_PackedGatesFactors # " | d(y) p -> d(p)">]>]> {
  let summary = "gradients of a glu's inputs; where a limit holds an input, its gradient is 0";
  let arguments = (ins Nn_Tensor:$dy, Nn_Tensor:$p, Optional<Nn_Tensor>:$q,
                       DefaultValuedStrAttr<StrAttr, "silu">:$activation, Nn_Number:$limit, Nn_One:$alpha,
                       Nn_Number:$plus, Nn_Flag:$packed);
  let results = (outs Nn_Tensor:$dp, Optional<Nn_Tensor>:$dq);
  let assemblyFormat = !strconcat("$dy `,` ", Nn_Gates.format);
  let extraClassDeclaration = Nn_GateOverwrites.declaration;
}

//===-- Dropout -------------------------------------------------------------------------------------------------===//

def DropoutOp : Nn_ForwardOp<"dropout", ["params", "flags", "varying"], [
  Nn_InPlace,
  Nn_Factors<"x: b s c!, #rows: b s -> y: b s c! ; counts">]> {
  let summary = "x with some elements made 0 and the others grown by 1 / (1 - rate), in training; its own derivative";
  let signature = "dropout(x, rate = ..)";
  let formula = "y = x m / (1 - rate), m = 1 with probability 1 - rate, else 0";
  let note = "also written `dropout(x, 0.1)`; which elements are 0 depends on the run's seed, the sequence, the place "
             "in it and the place in the model, whatever the schedule; evaluation drops nothing, and a rate of 0 is "
             "no op";
  let description = [{
    Element c of the token at position t of a sequence stays if a word of Philox4x32-10 (Salmon et al. 2011) is at least
    rate 2^32: of the key `seed` of the run and the counter made of `rows`, the number of each token's sequence in the
    run, `site`, the number of the op in the model, and the element's place t * width + c in the sequence. So a mask is
    made again wherever it is needed, and is never kept. Until the layer is known, `sites` is the number of such ops in
    the model's text, and the op of layer l is number (l + 1) * sites + site. The first token stands at `offset`.
  }];
  let arguments = (ins Nn_Tensor:$x, Nn_Integers:$rows, F64Attr:$rate, Nn_Offset:$offset, Nn_Offset:$site,
                       Nn_Offset:$sites, Nn_Zigzag:$zigzag);
  let results = (outs Nn_Tensor:$y);
  let assemblyFormat = "$x `of` $rows attr-dict `:` functional-type(operands, results)";
  let extraClassDeclaration = Nn_Overwrites<"{{0, 0}}">.declaration;
}

//===-- Two kernels in one call: epilogues of a library's products -----------------------------------------------===//

/// What the two are, each by itself.
defvar Nn_Both = DeclareOpInterfaceMethods<Nn_Composed>;

def LinearGeluOp : Nn_KernelOp<"linear_gelu", ["flags", "pointers"], [Nn_Both, Nn_Product]> {
  let summary = "a `linear` and the `gelu` of it, the tanh form; both are results";
  let arguments = (ins Nn_Tensor:$x, Nn_Tensor:$w, Optional<Nn_Tensor>:$bias, Nn_Flag:$transposed);
  let results = (outs Nn_Tensor:$u, Nn_Tensor:$y);
  let assemblyFormat = "$x `,` $w (`bias` $bias^)? attr-dict `:` functional-type(operands, results)";
}

def LinearAddOp : Nn_KernelOp<"linear_add", ["flags", "pointers"], [Nn_Both, Nn_Product]> {
  let summary = "a `linear` plus r, which a residual connection adds; the result of the `linear` itself is not kept";
  let description = [{
    y never takes the memory of r, even if nothing reads r afterwards. If two kernels run the op, y holds the product
    when r is added. So the bits do not depend on the place that the planner chooses.
  }];
  let arguments = (ins Nn_Tensor:$x, Nn_Tensor:$w, Optional<Nn_Tensor>:$bias, Nn_Tensor:$r, Nn_Flag:$transposed);
  let results = (outs Nn_Tensor:$y);
  let assemblyFormat = "$x `,` $w (`bias` $bias^)? `to` $r attr-dict `:` functional-type(operands, results)";
}

def LinearDxGeluOp : Nn_KernelOp<"linear_dx_gelu", ["flags"], [Nn_Both, Nn_Product]> {
  let summary = "the `gelu_bwd` at u of a `linear_dx`; the result of the `linear_dx` itself is not kept";
  let arguments = (ins Nn_Tensor:$dy, Nn_Tensor:$w, Nn_Tensor:$u, Nn_Flag:$transposed);
  let results = (outs Nn_Tensor:$du);
  let assemblyFormat = "$dy `,` $w `,` $u attr-dict `:` functional-type(operands, results)";
}

def LinearDwBiasOp : Nn_KernelOp<"linear_dw_bias", ["flags"],
                                 [DeclareOpInterfaceMethods<Nn_InPlace, ["getRequiredTies"]>, Nn_WeightGradient,
                                  Nn_Both, Nn_Product]> {
  let summary = "`linear_dw` and `bias_dw` of one dy; `acc`, both sums so far or none";
  let arguments = (ins Nn_Tensor:$x, Nn_Tensor:$dy, Variadic<Nn_Tensor>:$acc, Nn_Flag:$transposed);
  let results = (outs Nn_Tensor:$dw, Nn_Tensor:$db);
  let assemblyFormat = "$x `,` $dy (`into` $acc^)? attr-dict `:` functional-type(operands, results)";
}

#endif // PP_DIALECT_NNACTIVATIONOPS_TD
