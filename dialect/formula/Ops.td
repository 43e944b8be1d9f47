// Formulas of the `nn` dialect: one op for an expression over whole tensors, and the ops that its region is made of.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_DIALECT_FORMULAOPS_TD
#define PP_DIALECT_FORMULAOPS_TD

def MapOp : Nn_Op<"map", [
  Nn_Kernels<["kernelName", "elementType", "lists"]>,
  DeclareOpInterfaceMethods<Nn_InPlace, ["getAllowedTies"]>,
  DeclareOpInterfaceMethods<Nn_Differentiable, ["rebuild"]>, Nn_Cheap,
  DeclareOpInterfaceMethods<Nn_Factored, ["factorText", "factorTextOfDevice", "factorTexts", "operandsAt",
                                         "resultsAt"]>,
  IsolatedFromAbove, SingleBlock]> {
  let summary = "a formula: what the region computes of one element, for all of them";
  let description = [{
    `reads` and `makes` say along which axes a tensor has elements: `t`, rows; `h`, heads, of which a row has `heads`;
    `d`, the columns of a head. A full tensor [batch, length, width] is `thd`, a number for each row [batch, length] is
    `t`, one for each head of each row [batch, length, heads] is `th`. Weights have one dimension: `hd` one for each
    column, `d` one for each column of every head, `h` one for each head, and an empty text is one number.

    The region computes in the type of sums, and `nn.give` says what is made. A made `thd` has the element type of the
    tensors that are read, and is rounded when it is stored. All else is in the type of sums. What is made without `t`
    is the sum over all rows, and over the other axes that it lacks: gradients of weights.
  }];
  let arguments = (ins Variadic<Nn_Tensor>:$tensors, StrArrayAttr:$reads, StrArrayAttr:$makes, Nn_Once:$heads);
  let results = (outs Variadic<Nn_Tensor>:$made);
  let regions = (region SizedRegion<1>:$body);
  let hasCustomAssemblyFormat = 1;
  let hasRegionVerifier = 1;
}

/// An op of a region; its values are of one element.
class Nn_ElementOp<string mnemonic, list<Trait> traits = []>
    : Op<Nn_Dialect, mnemonic, !listconcat([Pure, ParentOneOf<["MapOp"]>], traits)>;
class Nn_FunctionOp<string mnemonic> : Nn_ElementOp<mnemonic, [SameOperandsAndResultType]> {
  let arguments = (ins AnyFloat:$x);
  let results = (outs AnyFloat:$y);
  let assemblyFormat = "$x attr-dict `:` type($x)";
}

def SigmoidOp : Nn_FunctionOp<"sigmoid"> { let summary = "1 / (1 + e^-x) of an element of a formula"; }

def SoftplusOp : Nn_FunctionOp<"softplus"> {
  let summary = "log(1 + e^x) of an element of a formula, as max(x, 0) + log1p(e^-|x|)";
}

def RoundedOp : Nn_FunctionOp<"rounded"> {
  let summary = "an element of a formula, rounded to the element type of the tensors; its derivative is 1";
}

def StopOp : Nn_FunctionOp<"stop"> { let summary = "an element of a formula, with a derivative of 0"; }

def ReduceOp : Nn_ElementOp<"reduce", [SameOperandsAndResultType]> {
  let summary = "`sum`, `mean`, `max`, `min` or `variance` over axes of a formula: `hd`, `d` or `h`";
  let description = [{ A value that lacks such an axis has the same element all along it. }];
  let arguments = (ins AnyFloat:$x, StrAttr:$kind, StrAttr:$over);
  let results = (outs AnyFloat:$y);
  let assemblyFormat = "$kind $over $x attr-dict `:` type($x)";
}

def GiveOp : Nn_ElementOp<"give", [Terminator, ReturnLike]> {
  let summary = "what a formula makes";
  let arguments = (ins Variadic<AnyFloat>:$values);
  let assemblyFormat = "($values^ `:` type($values))? attr-dict";
}

#endif // PP_DIALECT_FORMULAOPS_TD
