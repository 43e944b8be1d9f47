// What devices of one rank hand each other inside a task body, and views that only say who computes what.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_DIALECT_NNEXCHANGEOPS_TD
#define PP_DIALECT_NNEXCHANGEOPS_TD

/// `cut`: how it cuts what it exchanges, if not in one piece for each member.
class Nn_ExchangeOp<string mnemonic, string kind, list<string> also = [], string cut = "", list<Trait> traits = []>
    : Nn_Op<mnemonic, !listconcat([Nn_Exchange, DeclareOpInterfaceMethods<Nn_Differentiable, also>], traits)> {
  let results = (outs Nn_Tensor:$y);
  let assemblyFormat = "$x `over` $axes attr-dict `:` functional-type(operands, results)";
  string own = "::pp::nn::ExchangeKind getKind() { return ::pp::nn::ExchangeKind::" # kind # "; }\n"
               "::llvm::StringRef getCut() { return \"" # cut # "\"; }\n";
  let extraClassDeclaration = own;
}

def SpreadOp : Nn_Op<"spread", [DeclareOpInterfaceMethods<Nn_Differentiable>, Nn_Cheap,
                             DeclareOpInterfaceMethods<Nn_View>]> {
  let summary = "x for devices along the axes that each compute a share of what follows; its gradient is a share";
  let description = [{
    Every device has all of x already: nothing moves. `neighbours`: each so many devices have the same piece of a
    weight.
  }];
  let arguments = (ins Nn_Tensor:$x, Nn_AxesAttr:$axes, OptionalAttr<I64Attr>:$neighbours);
  let results = (outs Nn_Tensor:$y);
  let assemblyFormat = "$x `over` $axes attr-dict `:` functional-type(operands, results)";
}

def AllReduceOp : Nn_ExchangeOp<"all_reduce", "all_reduce", [], "", [Nn_InPlace]> {
  let summary = "each device along the axes gets the sum over these devices";
  let description = [{
    Terms are added in the order of the devices, so all devices have the same bits. `neighbours`: so many devices that
    lie beside each other form a group, and each group has a sum of its own.
  }];
  let arguments = (ins Nn_Tensor:$x, Nn_AxesAttr:$axes, OptionalAttr<I64Attr>:$neighbours);
  let extraClassDeclaration = own # Nn_Overwrites<"{{0, 0}}">.declaration # [{
    int64_t countNeighbours() { return static_cast<int64_t>(getNeighbours().value_or(0)); }
  }];
}

def AllGatherOp : Nn_ExchangeOp<"all_gather", "all_gather"> {
  let summary = "each device along the axes gets the tensors of all, one behind the other along dimension `dim`";
  let description = [{
    `members` is the number of devices; the result is so many times as long. It gathers statistics of a loss, which
    makes their gradients itself, and columns for a computation that is the same on every device. The gradient of these
    columns is `take_columns`. Rows of activations have `gather_rows`.
  }];
  let arguments = (ins Nn_Tensor:$x, Nn_AxesAttr:$axes, I64Attr:$dim, I64Attr:$members);
}

def GatherRowsOp : Nn_ExchangeOp<"gather_rows", "all_gather", ["isCheap"]> {
  let summary = "the rows of all devices along the axes, one behind the other, for each of them";
  let description = [{
    Of the rows of a [batch, length, width] tensor, one sequence behind the other, each of `members` devices has an
    equal run: x is [1, batch * length / members, width]. `whole`: what follows is computed alike on every device, and
    so is its gradient; else each computes its share of it, and the gradient is the sum of what they get. `kept`: who
    reads the result later keeps it; else x is kept, and gathered again (Korthikanti et al. 2022, 4.2.2).
  }];
  let arguments = (ins Nn_Tensor:$x, Nn_AxesAttr:$axes, I64Attr:$batch, I64Attr:$members, UnitAttr:$whole,
                       UnitAttr:$kept);
}

def ScatterRowsOp : Nn_ExchangeOp<"scatter_rows", "reduce_scatter"> {
  let summary = "each device along the axes gets its run of the rows of the sum over these devices";
  let description = [{
    Runs are those of `gather_rows`; terms are added in the order of the devices. `kept` is that of the gradient, which
    is gathered.
  }];
  let arguments = (ins Nn_Tensor:$x, Nn_AxesAttr:$axes, I64Attr:$members, UnitAttr:$kept);
}

def TakeRowsOp : Nn_ForwardOp<"take_rows", ["kernelName", "moved", "moves"]> {
  let summary = "the device's own run of rows that every device has, as in `gather_rows`; nothing moves";
  let arguments = (ins Nn_Tensor:$x, Nn_AxesAttr:$axes, I64Attr:$members, UnitAttr:$kept);
  let results = (outs Nn_Tensor:$y);
  let assemblyFormat = "$x `over` $axes attr-dict `:` functional-type(operands, results)";
}

def TakeColumnsOp : Nn_ForwardOp<"take_columns", ["kernelName", "moved", "moves"]> {
  let summary = "the device's own of `members` equal runs of the last dimension, which every device has; nothing moves";
  let description = [{
    The way into a part that is cut, out of one that every device computes alike. Its derivative, `all_gather`, is the
    way back.
  }];
  let arguments = (ins Nn_Tensor:$x, Nn_AxesAttr:$axes, I64Attr:$members);
  let results = (outs Nn_Tensor:$y);
  let assemblyFormat = "$x `over` $axes attr-dict `:` functional-type(operands, results)";
}

def GatherRunsOp : Nn_ExchangeOp<"gather_runs", "all_gather", ["isCheap"], "zigzag"> {
  let summary = "each device along the axes gets whole sequences, from the two runs that each device has";
  let description = [{
    x is [batch, length / members, width]: of every sequence the k-th device has run k and run 2 members - 1 - k of
    2 members equal runs. What follows is each device's share, so the gradient is the sum of what they get:
    `scatter_runs`. `kept` as of `gather_rows`. Data, [batch, length / members] integers, are always gathered again.
  }];
  let arguments = (ins AnyTypeOf<[Nn_Tensor, Nn_Integers]>:$x, Nn_AxesAttr:$axes, I64Attr:$members, UnitAttr:$kept);
  let results = (outs AnyTypeOf<[Nn_Tensor, Nn_Integers]>:$y);
}

def ScatterRunsOp : Nn_ExchangeOp<"scatter_runs", "reduce_scatter", [], "zigzag"> {
  let summary = "each device along the axes gets its two runs of every sequence of the sum over these devices";
  let description = [{
    Runs are those of `gather_runs`, of which it is the derivative; terms are added in the order of the devices.
  }];
  let arguments = (ins Nn_Tensor:$x, Nn_AxesAttr:$axes, I64Attr:$members);
}

def RunsToHeadsOp : Nn_ExchangeOp<"runs_to_heads", "all_to_all", [], "columns"> {
  let summary = "whole sequences of the own heads, from two runs of every sequence with all heads";
  let description = [{
    x is [batch, length / members, width], with the runs of `gather_runs`; y is [batch, length, width / members]. The
    rows of y are in the order of their positions. The columns are cut in equal pieces, and the k-th device has the k-th
    piece (Jacobs et al. 2023, DeepSpeed-Ulysses, 3.2). Nothing is added, so bits stay. The derivative is
    `heads_to_runs`.
  }];
  let arguments = (ins Nn_Tensor:$x, Nn_AxesAttr:$axes, I64Attr:$members);
}

def HeadsToRunsOp : Nn_ExchangeOp<"heads_to_runs", "all_to_all", ["isCheap"], "runs"> {
  let summary = "two runs of every sequence with all heads, from whole sequences of the own heads";
  let description = [{
    The way back of `runs_to_heads`, and its derivative. `kept`: who reads the result later keeps it; else it is made
    again of x, which the gradient of the attention reads as well.
  }];
  let arguments = (ins Nn_Tensor:$x, Nn_AxesAttr:$axes, I64Attr:$members, UnitAttr:$kept);
}

def ExchangeSectionsOp : Nn_ExchangeOp<"exchange_sections", "all_to_all", ["isCheap"], "sections"> {
  let summary = "the k-th of equal sections of x, one behind the other, goes to the k-th device along the axes";
  let description = [{
    y has the sections that came, in the order of the devices they are from; so the derivative is the same exchange.
    x has `members` sections, along its first dimension that is longer than 1: rows of experts, [1, rows, width], or a
    number for each of these, or how many rows of each expert there are. `kept` is of rows: who reads the result later
    keeps it; else x is exchanged again.
  }];
  let arguments = (ins AnyTypeOf<[Nn_Tensor, Nn_Integers]>:$x, Nn_AxesAttr:$axes, I64Attr:$members, UnitAttr:$kept);
  let results = (outs AnyTypeOf<[Nn_Tensor, Nn_Integers]>:$y);
}

def TakePieceOp : Nn_ForwardOp<"take_piece", ["kernelName", "varying", "moves"]> {
  let summary = "the device's own of `members` equal pieces of rows of a weight that every device along the axes has";
  let description = [{
    Pieces are of the first dimension. Nothing moves between devices. The gradient of x is the sum of what they get:
    each has its own piece of it, and zeros elsewhere (`place_piece`).
  }];
  let arguments = (ins Nn_Tensor:$x, Nn_AxesAttr:$axes, I64Attr:$members);
  let results = (outs Nn_Tensor:$y);
  let assemblyFormat = "$x `over` $axes attr-dict `:` functional-type(operands, results)";
}

def PlacePieceOp : Nn_AccOp<"place_piece", ["kernelName", "varying", "moves"], [Nn_WeightGradient]> {
  let summary = "acc with x as the device's own of `members` equal pieces; the derivative of `take_piece`";
  let arguments = (ins Nn_Tensor:$x, Nn_Tensor:$acc, Nn_AxesAttr:$axes, I64Attr:$members);
  let results = (outs Nn_Tensor:$y);
  let assemblyFormat = "$x `into` $acc `over` $axes attr-dict `:` functional-type(operands, results)";
}

def PieceOp : Nn_Op<"piece", [
  DeclareOpInterfaceMethods<Nn_Differentiable>, DeclareOpInterfaceMethods<Nn_View>,
  Nn_Factors<"x: (p! b) s t! -> y: b s t! ; linear ranked">]> {
  let summary = "number `index` of `of` equal runs of the first dimension, where it lies";
  let arguments = (ins Nn_Tensor:$x, I64Attr:$index, I64Attr:$of);
  let results = (outs Nn_Tensor:$y);
  let assemblyFormat = "$x attr-dict `:` functional-type(operands, results)";
}

#endif // PP_DIALECT_NNEXCHANGEOPS_TD
