// Operations of the `nn` dialect that change weights: AdamW, SGD with momentum, and the steps of Muon.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_DIALECT_OPTIMIZEROPS_TD
#define PP_DIALECT_OPTIMIZEROPS_TD

def AdamwOp : Nn_KernelOp<"adamw", ["params", "flags", "elementType", "pointers", "varying", "moved"],
                          [AttrSizedOperandSegments, DeclareOpInterfaceMethods<Nn_InPlace, ["getRequiredTies"]>]> {
  let summary = "one AdamW update in place; for 16 bits the weight is the rounded `master`";
  let description = [{
    `norm` is the squared norm of all gradients, for clipping, and for f16 to see whether they overflowed; the other
    scalars are the rank's. The weight's group multiplies the rate by `rate`, and the weight decay by `shrink`.
    `flat`: of several weights, one behind the other, each device along `data` updates a shard and has its state; three
    numbers: where this weight begins among them, the elements of a shard, and how many devices there are. A fourth
    one, the elements of the weight: a device has no more than its shard of the gradients, too.
  }];
  let arguments = (ins Nn_Tensor:$grad, Optional<Nn_Tensor>:$norm, Nn_Tensor:$w, Nn_Tensor:$m, Nn_Tensor:$v,
                       Optional<Nn_Tensor>:$master, Nn_Flag:$decay, Nn_One:$rate, Nn_One:$shrink,
                       OptionalAttr<DenseI64ArrayAttr>:$flat);
  let results = (outs Nn_Tensor:$newW, Nn_Tensor:$newM, Nn_Tensor:$newV, Optional<Nn_Tensor>:$newMaster);
  let assemblyFormat = [{
    $grad (`norm` $norm^)? `into` $w `,` $m `,` $v (`,` $master^)? attr-dict `:` functional-type(operands, results)
  }];
}

def SgdOp : Nn_KernelOp<"sgd", ["params", "flags", "elementType", "pointers", "varying", "moved"],
                        [AttrSizedOperandSegments, DeclareOpInterfaceMethods<Nn_InPlace, ["getRequiredTies"]>]> {
  let summary = "one update by gradient and momentum in place; scalars, group, `master` and `flat` as for `adamw`";
  let arguments = (ins Nn_Tensor:$grad, Optional<Nn_Tensor>:$norm, Nn_Tensor:$w, Nn_Tensor:$u,
                       Optional<Nn_Tensor>:$master, Nn_Flag:$decay, Nn_Flag:$nesterov, Nn_One:$rate,
                       Nn_One:$shrink, OptionalAttr<DenseI64ArrayAttr>:$flat);
  let results = (outs Nn_Tensor:$newW, Nn_Tensor:$newU, Optional<Nn_Tensor>:$newMaster);
  let assemblyFormat = [{
    $grad (`norm` $norm^)? `into` $w `,` $u (`,` $master^)? attr-dict `:` functional-type(operands, results)
  }];
}

def SteerOp : Nn_KernelOp<"steer", ["params", "elementType", "pointers"],
                          [AttrSizedOperandSegments, DeclareOpInterfaceMethods<Nn_InPlace, ["getRequiredTies"]>]> {
  let summary = "each element a `rate` against the sign of its gradient, in place; `norm` and `master` as for `adamw`";
  let arguments = (ins Nn_Tensor:$grad, Optional<Nn_Tensor>:$norm, Nn_Tensor:$w, Optional<Nn_Tensor>:$master,
                       F64Attr:$rate);
  let results = (outs Nn_Tensor:$newW, Optional<Nn_Tensor>:$newMaster);
  let assemblyFormat = [{
    $grad (`norm` $norm^)? `into` $w (`,` $master^)? attr-dict `:` functional-type(operands, results)
  }];
}

def MuonMomentumOp : Nn_KernelOp<"muon_momentum", ["pointers"],
                                 [DeclareOpInterfaceMethods<Nn_InPlace, ["getRequiredTies"]>]> {
  let summary = "a matrix's momentum in place, and the way that Muon goes from there before it is made orthogonal";
  let arguments = (ins Nn_Tensor:$grad, Optional<Nn_Tensor>:$norm, Nn_Tensor:$u);
  let results = (outs Nn_Tensor:$newU, Nn_Tensor:$way);
  let assemblyFormat = "$grad (`norm` $norm^)? `into` $u attr-dict `:` functional-type(operands, results)";
}

def UnitNormOp : Nn_KernelOp<"unit_norm", [], [Nn_InPlace]> {
  let summary = "x divided by the root of `sum`, its squares, which is at least 1e-7";
  let arguments = (ins Nn_Tensor:$x, Nn_Tensor:$sum);
  let results = (outs Nn_Tensor:$y);
  let assemblyFormat = "$x `by` $sum attr-dict `:` functional-type(operands, results)";
  let extraClassDeclaration = Nn_Overwrites<"{{0, 0}}">.declaration;
}

def NewtonSchulzOp : Nn_KernelOp<"newton_schulz", [], [Nn_InPlace]> {
  let summary = "a I + b G + c G G of a symmetric G, which a step of the Newton-Schulz iteration multiplies by";
  let description = [{ (a, b, c) = (3.4445, -4.7750, 2.0315): Jordan et al. 2024, Muon. }];
  let arguments = (ins Nn_Tensor:$g, Nn_Tensor:$gg);
  let results = (outs Nn_Tensor:$p);
  let assemblyFormat = "$g `,` $gg attr-dict `:` functional-type(operands, results)";
  let extraClassDeclaration = Nn_Overwrites<"{{0, 1}}">.declaration;
}

def MuonOp : Nn_KernelOp<"muon", ["flags", "params", "elementType", "pointers"],
                         [AttrSizedOperandSegments, DeclareOpInterfaceMethods<Nn_InPlace, ["getRequiredTies"]>]> {
  let summary = "one step of a matrix against an orthogonal one, `factor` times the rate long, in place";
  let arguments = (ins Nn_Tensor:$way, Optional<Nn_Tensor>:$norm, Nn_Tensor:$w, Optional<Nn_Tensor>:$master,
                       Nn_Flag:$decay, F64Attr:$factor, Nn_One:$rate, Nn_One:$shrink);
  let results = (outs Nn_Tensor:$newW, Optional<Nn_Tensor>:$newMaster);
  let assemblyFormat = [{
    $way (`norm` $norm^)? `into` $w (`,` $master^)? attr-dict `:` functional-type(operands, results)
  }];
}

#endif // PP_DIALECT_OPTIMIZEROPS_TD
