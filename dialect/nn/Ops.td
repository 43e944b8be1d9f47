// Operations of the `nn` dialect: what a task computes, forward, backward and update, one op for one runtime kernel.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_DIALECT_NNOPS_TD
#define PP_DIALECT_NNOPS_TD

include "dialect/nn/Attrs.td"
include "mlir/Interfaces/ControlFlowInterfaces.td"
include "mlir/Interfaces/InferTypeOpInterface.td"
include "mlir/Interfaces/SideEffectInterfaces.td"

//===-- Interfaces ----------------------------------------------------------------------------------------------===//

def Nn_Kernel : OpInterface<"Kernel"> {
  let cppNamespace = "::pp::nn";
  let description = [{ An op that one call of a runtime kernel computes, and the entry of the rank's `ops` for it. }];
  let methods = [
    InterfaceMethod<"the kernel without `pp_`", "::llvm::StringRef", "kernelName", (ins), "",
                    [{ return $_op->getName().stripDialect(); }]>,
    InterfaceMethod<"sizes, in the order of runtime/Pp.h", "::llvm::SmallVector<int64_t>", "dims">,
    InterfaceMethod<"numbers", "::llvm::SmallVector<double>", "params", (ins), "", [{ return {}; }]>,
    InterfaceMethod<"flags that are set", "::llvm::SmallVector<::llvm::StringRef>", "flags", (ins), "",
                    [{ return {}; }]>,
    InterfaceMethod<"`e`: by default that of the first operand of numbers, else of the result", "::mlir::Type",
                    "elementType", (ins), "", [{ return ::pp::nn::firstElementType($_op.getOperation()); }]>,
    InterfaceMethod<"tensors in the order of the kernel's pointers, null where one is absent",
                    "::llvm::SmallVector<::mlir::Value>", "pointers", (ins), "",
                    [{ return ::pp::nn::operandsThenResults($_op.getOperation()); }]>,
    InterfaceMethod<"which of the sizes differ from device to device", "::llvm::SmallVector<::pp::nn::Varying>",
                    "varying", (ins), "", [{ return {}; }]>,
    InterfaceMethod<"which of the params differ from device to device", "::llvm::SmallVector<::pp::nn::Varying>",
                    "variedParams", (ins), "", [{ return {}; }]>,
    InterfaceMethod<"which of the pointers a device moves on, and by how many bytes",
                    "::llvm::SmallVector<::pp::nn::Varying>", "moved", (ins), "", [{ return {}; }]>,
    InterfaceMethod<"runs of those pointers that the kernel takes as one list of addresses each",
                    "::llvm::SmallVector<::pp::nn::Run>", "lists", (ins), "", [{ return {}; }]>,
    InterfaceMethod<"floating-point operations that are executed (causal pairs only)", "double", "flops", (ins), "",
                    [{ return 0; }]>,
  ];
}

def Nn_InPlace : OpInterface<"InPlace"> {
  let cppNamespace = "::pp::nn";
  let description = [{ Which results must, and which may, take over the buffer of an operand. }];
  let methods = [
    InterfaceMethod<"one buffer in any case", "::llvm::SmallVector<::pp::nn::Tie>", "getRequiredTies", (ins), "",
                    [{ return {}; }]>,
    InterfaceMethod<"one buffer if the operand is not read afterwards", "::llvm::SmallVector<::pp::nn::Tie>",
                    "getAllowedTies", (ins), "", [{ return {}; }]>,
  ];
}

def Nn_Differentiable : OpInterface<"Differentiable"> {
  let cppNamespace = "::pp::nn";
  let description = [{ A forward op: how its gradients are made, and whether its output is cheap to make again. }];
  let methods = [
    InterfaceMethod<"from the gradients of the results those of the operands, weights first",
                    "::llvm::LogicalResult", "differentiate", (ins "::pp::nn::Gradients &":$gradients)>,
    InterfaceMethod<"the first result may be rebuilt elementwise", "bool", "isCheap", (ins), "",
                    [{ return ConcreteOp::template hasTrait<::pp::nn::Cheap>(); }]>,
    InterfaceMethod<"the op that makes the first result again from the operands and saved statistics",
                    "::mlir::Operation *", "rebuild", (ins "::mlir::OpBuilder &":$builder), "",
                    [{ return builder.clone(*$_op.getOperation()); }]>,
    InterfaceMethod<"why it cannot run on slices of a sequence; empty: it can", "::llvm::StringRef", "whyNotSliced",
                    (ins), "", [{ return ""; }]>,
  ];
}

def Nn_Factored : OpInterface<"Factored"> {
  let cppNamespace = "::pp::nn";
  let description = [{ An op that states which factors its operands and results share (dialect/Factors.h). }];
  let methods = [
    InterfaceMethod<"the statement of this op", "::llvm::StringRef", "factorText">,
    InterfaceMethod<"another one, if the op is what one of the devices computes; empty: there is none",
                    "::llvm::StringRef", "factorTextOfDevice", (ins), "", [{ return ""; }]>,
    StaticInterfaceMethod<"all statements of such ops", "::llvm::ArrayRef<::llvm::StringLiteral>", "factorTexts">,
    InterfaceMethod<"the first of its operands number k, which may be several, and how many they are",
                    "std::pair<unsigned, unsigned>", "operandsAt", (ins "unsigned":$k), "",
                    [{ return $_op.getODSOperandIndexAndLength(k); }]>,
    InterfaceMethod<"the same of its results", "std::pair<unsigned, unsigned>", "resultsAt", (ins "unsigned":$k), "",
                    [{ return $_op.getODSResultIndexAndLength(k); }]>,
  ];
}

def Nn_Exchange : OpInterface<"Exchange"> {
  let cppNamespace = "::pp::nn";
  let description = [{
    An op that is a message between the devices of a rank along axes of the mesh. It is posted and completed where it
    stands: all of these devices run the same body, so they come to their exchanges in one order.
  }];
  let methods = [
    InterfaceMethod<"what the members make", "::pp::nn::ExchangeKind", "getKind">,
    InterfaceMethod<"along these axes its members lie", "::pp::nn::AxesAttr", "getAxes">,
    InterfaceMethod<"so many neighbours along the axes are the members; 0: all devices", "int64_t", "countNeighbours",
                    (ins), "", [{ return 0; }]>,
    InterfaceMethod<"how it cuts what it exchanges: `zigzag`, in two runs of every sequence; into `columns`, back into "
                    "`runs`, or in `sections`; empty: in one piece for each member", "::llvm::StringRef", "getCut",
                    (ins), "", [{ return ""; }]>,
  ];
}

def Nn_View : OpInterface<"View"> {
  let cppNamespace = "::pp::nn";
  let description = [{
    An op that names memory of its operand, or says that its result is made of its operands: no kernel runs and nothing
    is copied.
  }];
  let methods = [
    InterfaceMethod<"the operand, or the result, in which the others lie", "::mlir::Value", "getWhole">,
    InterfaceMethod<"what lies there, each from which byte on",
                    "::llvm::SmallVector<std::pair<::mlir::Value, int64_t>>", "getParts">,
  ];
}

def Nn_Composed : OpInterface<"Composed"> {
  let cppNamespace = "::pp::nn";
  let description = [{ An op that stands for others: no kernel runs it, or one runs them all in one call. }];
  let methods = [
    InterfaceMethod<"writes these ops, and says what the results are then", "::llvm::SmallVector<::mlir::Value>",
                    "decompose", (ins "::mlir::OpBuilder &":$builder)>,
  ];
}

def Nn_Product : OpInterface<"Product"> {
  let cppNamespace = "::pp::nn";
  let description = [{ An op that takes the time of a product of matrices. }];
  let methods = [
    InterfaceMethod<"the tensor [experts, in, out] that a product of experts reads or makes; null: it is of none",
                    "::mlir::Value", "expertWeights", (ins), "", [{ return {}; }]>,
  ];
}

def Nn_Attends : OpInterface<"Attends"> {
  let cppNamespace = "::pp::nn";
  let description = [{ Queries that see keys: an attention, or the gradients of one. }];
  let methods = [
    InterfaceMethod<"the queries", "::mlir::Value", "getQ">,
    InterfaceMethod<"k and v of each chunk in turn", "::mlir::OperandRange", "getKv">,
    InterfaceMethod<"where each query's document begins, or null", "::mlir::Value", "getStarts">,
    InterfaceMethod<"numbers of the queries' sequences, for dropout, or null", "::mlir::Value", "getRows">,
    InterfaceMethod<"heads of queries", "uint64_t", "getHeads">,
    InterfaceMethod<"heads of keys", "int64_t", "countKeyHeads", (ins), "",
                    [{ return $_op.getKvHeads() ? $_op.getKvHeads() : $_op.getHeads(); }]>,
    InterfaceMethod<"whether a query sees no later key", "bool", "getCausal">,
    InterfaceMethod<"devices that have two runs of each sequence, or 0", "uint64_t", "getZigzag">,
  ];
}

def Nn_Carries : OpInterface<"Carries"> {
  let cppNamespace = "::pp::nn";
  let description = [{ A forward op that hands a state from row to row, and so from slice to slice of a sequence. }];
}

def Nn_Chooses : OpInterface<"Chooses"> {
  let cppNamespace = "::pp::nn";
  let description = [{ A forward op that chooses experts. What it chose once is never chosen again. }];
}

def Nn_Loss : OpInterface<"Loss"> {
  let cppNamespace = "::pp::nn";
  let description = [{ A forward op whose result is a loss; operand 1 are the targets. }];
  let methods = [
    InterfaceMethod<"whether the number of targets divides it, as far as that is known before the step runs", "bool",
                    "isDivided", (ins), "", [{ return !$_op.getCounted(); }]>,
  ];
}

def Nn_ReadsLogits : OpInterface<"ReadsLogits"> {
  let cppNamespace = "::pp::nn";
  let description = [{
    A forward op of rows of logits, operand 0. Where the vocabulary is cut, each piece makes statistics of its columns,
    and from those of whole rows follow the results.
  }];
  let methods = [
    InterfaceMethod<"the statistics of the columns in `operands`, which begin `first` columns further on",
                    "::mlir::Value", "statisticsOf",
                    (ins "::mlir::OpBuilder &":$builder, "::mlir::ValueRange":$operands, "int64_t":$first,
                         "::pp::nn::AxesAttr":$firstBy)>,
    InterfaceMethod<"the results, from the statistics of whole rows", "::llvm::SmallVector<::mlir::Value>",
                    "fromStatistics",
                    (ins "::mlir::OpBuilder &":$builder, "::mlir::Value":$stats, "::mlir::ValueRange":$operands)>,
  ];
}

/// Its first result may be rebuilt elementwise.
def Nn_Cheap : NativeOpTrait<"Cheap"> { let cppNamespace = "::pp::nn"; }

/// Its result is the gradient of a weight and it reads no weight: what W does (docs/derivatives.md R3).
def Nn_WeightGradient : NativeOpTrait<"WeightGradient"> { let cppNamespace = "::pp::nn"; }

/// Where the condition holds, an op has this statement in place of its first one.
class Nn_When<string condition, string statement> {
  string test = "if (" # condition # ") return \"" # statement # "\"; ";
  string text = ", \"" # statement # "\"";
}
class Nn_Statement<string always, list<Nn_When> others> : NativeOpTrait<"Stated", [],
    "::llvm::StringRef factorText() { " # !foldl("", others, all, each, all # each.test)
    # "return \"" # always # "\"; }\n"
    "static ::llvm::ArrayRef<::llvm::StringLiteral> factorTexts() {"
    " static constexpr ::llvm::StringLiteral kTexts[] = {\"" # always # "\""
    # !foldl("", others, all, each, all # each.text) # "}; return kTexts; }\n"> {
  let cppNamespace = "::pp::nn";
}
/// The factors of an op, in the notation of dialect/Factors.h.
class Nn_Factors<string always, list<Nn_When> others = []>
    : TraitList<[Nn_Factored, Nn_Statement<always, others>]>;

/// Those of forward ops by which their backward ops are called.
defvar Nn_EmbeddingFactors = "#tokens: b s, table: v@ h! -> x: b s h!";
defvar Nn_PositionsFactors = "#tokens: b s, table: p! c! -> x: b s c! ; counts";
defvar Nn_LinearFactors = "x: b s k, w: k n -> y: b s n";
defvar Nn_TurnedFactors = "x: b s k, w: n k -> y: b s n";
defvar Nn_BiasFactors = "x: b s c, bias: c -> y: b s c";
defvar Nn_LayernormFactors = "x: b s c!, gain: c!, bias: c! -> y: b s c!, mean: b s, rstd: b s";
defvar Nn_RmsnormFactors = "x: b s (h d!), gain: d! -> y: b s (h d!), rstd: b s h ; heads(h)";
defvar Nn_GeluFactors = "x: .. -> y: .. ; each";
defvar Nn_GatesFactors = "p: .., q: .. -> y: .. ; each";
defvar Nn_PackedGatesFactors = "p: b s (* c) -> y: b s c";
defvar Nn_AttentionFactors =
    "q: b s (g r d!), [k: b S! (g d!), v: b S! (g e!)] -> o: b s (g r e!), lse: b (g r) s "
    "; counts heads(g r) kv_heads(g)";
defvar Nn_DroppedAttentionFactors =
    "q: b s (g@ r@ d!), [k: b S! (g d!), v: b S! (g e!)] -> o: b s (g r e!), lse: b (g r) s "
    "; counts heads(g r) kv_heads(g)";
defvar Nn_PackedAttentionFactors = "q: b s! c!, [k: b s! c!, v: b s! c!] -> o: b s! c!, lse: b H! s! ; counts";
defvar Nn_SinkFactors = "o: b s (h d!), lse: b h s, scores: h -> y: b s (h d!), lse_y: b h s";
defvar Nn_HeadsFactors = "x: b s (h d!) -> y: b s (h n! d!) ; linear heads(h)";
defvar Nn_RouterFactors = "x: b s k!, wr: k! n! -> logits: b s n!";
defvar Nn_ExpertsFactors = "x: o (x s) k, w: x k n, #counts: s x -> y: o (x s) n ; ranked";
defvar Nn_ExpertBiasFactors = "x: o (x s) c, bias: x c, #counts: s x -> y: o (x s) c ; ranked";
defvar Nn_RowsByNumbersFactors = "a: o (x s) c, w: o (x s) -> y: o (x s) c ; ranked";
defvar Nn_RowsByChoicesFactors = "a: o s c, w: b s k!, #places: b s k! -> y: o s c ; ranked";
defvar Nn_LossFactors = "z: b s v!, #targets: b s -> loss: u";
defvar Nn_AttentionCall =
    " | d(o) q lse d(lse) [k v] acc [kacc vacc] -> d(q)=acc [d(k)=kacc d(v)=vacc]";

//===-- Classes -------------------------------------------------------------------------------------------------===//

def Nn_Tensor : StaticShapeTensorOf<[F32, BF16, F16, F64]>;
def Nn_Integers : StaticShapeTensorOf<[I32]>;

class Nn_Op<string mnemonic, list<Trait> traits = []>
    : Op<Nn_Dialect, mnemonic, !listconcat([Pure, InferTypeOpAdaptor], traits)> {
  /// For frontend/OPERATIONS.md: how models write the op, if they may, with `..` for what must be given; what it
  /// computes; what else its user must know, where that is not the summary.
  string signature = "";
  string formula = "";
  string note = "";
}

/// `also` names the interface methods beyond `dims` and `flops` that the op defines itself; and `moves`, if it only
/// moves numbers and has no `flops`.
class Nn_Kernels<list<string> also> : DeclareOpInterfaceMethods<Nn_Kernel,
    !listconcat(!filter(name, also, !ne(name, "moves")),
                !if(!empty(!filter(name, also, !eq(name, "moves"))), ["flops"], []<string>))>;

/// An op with a kernel.
class Nn_KernelOp<string mnemonic, list<string> also = [], list<Trait> traits = []>
    : Nn_Op<mnemonic, !listconcat([Nn_Kernels<also>], traits)>;

/// A forward op with a kernel.
class Nn_ForwardOp<string mnemonic, list<string> also = [], list<Trait> traits = [], list<string> differentiable = []>
    : Nn_KernelOp<mnemonic, also,
                  !listconcat([DeclareOpInterfaceMethods<Nn_Differentiable, differentiable>], traits)>;

/// An op whose last operand `acc`, if there, is added to and becomes the first result.
class Nn_AccOp<string mnemonic, list<string> also = [], list<Trait> traits = []>
    : Nn_KernelOp<mnemonic, also, !listconcat([Nn_InPlace], traits)> {
  let extraClassDeclaration = [{
    ::llvm::SmallVector<::pp::nn::Tie> getRequiredTies() {
      return getAcc() ? ::llvm::SmallVector<::pp::nn::Tie>{{0, (*this)->getNumOperands() - 1}}
                      : ::llvm::SmallVector<::pp::nn::Tie>{};
    }
  }];
}

/// An elementwise op whose results may overwrite operands.
class Nn_Overwrites<string ties> { string declaration = [{
    ::llvm::SmallVector<::pp::nn::Tie> getAllowedTies() { return }] # ties # [{; }
  }]; }

def Nn_Flag : DefaultValuedAttr<BoolAttr, "false">;
def Nn_Offset : DefaultValuedAttr<I64Attr, "0">;
def Nn_Once : DefaultValuedAttr<I64Attr, "1">;
def Nn_Number : DefaultValuedAttr<F64Attr, "0.0">;
def Nn_One : DefaultValuedAttr<F64Attr, "1.0">;
/// Of so many devices along `context` each has two runs of every sequence cut in twice as many, the k-th from its begin
/// and the k-th from its end, so that causal attention is as much work for each (Grattafiori et al. 2024, 3.3.2); 0:
/// whole sequences.
def Nn_Zigzag : DefaultValuedAttr<I64Attr, "0">;
def Nn_Epsilon : DefaultValuedAttr<F64Attr, "1e-5">;

//===-- Forward -------------------------------------------------------------------------------------------------===//

def EmbeddingOp : Nn_ForwardOp<"embedding", ["varying", "moves"], [
  Nn_Factors<Nn_EmbeddingFactors>]> {
  let summary = "rows of a table, one for each token";
  let signature = "embedding(tokens, table, pad = -1)";
  let formula = "x[b, t] = table[tokens[b, t]]";
  let note = "the row of the token `pad` takes no gradient from here; -1: every row takes one";
  let description = [{
    A table that is cut by the vocabulary has the rows from `first` on of `whole` rows. Tokens of other rows give zeros.
    `first_by`: each device along these axes begins behind the rows of the device before it. Rows beyond `whole` belong
    to no token.
  }];
  let arguments = (ins Nn_Integers:$tokens, Nn_Tensor:$table, OptionalAttr<I64Attr>:$first,
                       OptionalAttr<I64Attr>:$whole, DefaultValuedAttr<I64Attr, "-1">:$pad,
                       OptionalAttr<Nn_AxesAttr>:$first_by);
  let results = (outs Nn_Tensor:$x);
  let assemblyFormat = "$tokens `,` $table attr-dict `:` functional-type(operands, results)";
}

def PositionsOp : Nn_ForwardOp<"positions", ["flags", "varying", "moves"], [
  Nn_Factors<Nn_PositionsFactors>]> {
  let summary = "row `offset + t` of a table at position t; the tokens give only the shape";
  let signature = "positions(tokens, table, offset = 0)";
  let formula = "x[b, t] = table[offset + t]";
  let note = "learned positions; the tokens give only the shape";
  let arguments = (ins Nn_Integers:$tokens, Nn_Tensor:$table, Nn_Offset:$offset, Nn_Zigzag:$zigzag);
  let results = (outs Nn_Tensor:$x);
  let assemblyFormat = "$tokens `,` $table attr-dict `:` functional-type(operands, results)";
}

def LinearOp : Nn_ForwardOp<"linear", ["flags", "pointers"], [
  Nn_Product,
  Nn_Factors<Nn_LinearFactors, [
    Nn_When<"getBias() && getTransposed()", "x: b s k!, w: n k!, bias: n -> y: b s n">,
    Nn_When<"getBias()", "x: b s k!, w: k! n, bias: n -> y: b s n">,
    Nn_When<"getTransposed()", Nn_TurnedFactors>]>]> {
  let summary = "x times w [in, out] (transposed: [out, in]), plus a bias";
  let signature = "linear(x, w[, bias])";
  let formula = "y = x w + bias";
  let note = "w is [in, out]; `transpose(w)` for one that is stored as [out, in]";
  let arguments = (ins Nn_Tensor:$x, Nn_Tensor:$w, Optional<Nn_Tensor>:$bias, Nn_Flag:$transposed);
  let results = (outs Nn_Tensor:$y);
  let assemblyFormat = "$x `,` $w (`bias` $bias^)? attr-dict `:` functional-type(operands, results)";
  let hasCanonicalizeMethod = 1;
  let extraClassDeclaration = [{
    /// The weight as the part declares it, seen through a transpose of it.
    ::mlir::Value declaredWeight();
  }];
}

def TransposeOp : Nn_Op<"transpose", [
  Nn_Factors<"w: i j -> result: j i ; linear">]> {
  let summary = "a weight seen the other way round; only a `linear` may read it, which folds it into `transposed`";
  let signature = "transpose(w)";
  let formula = "result[i, j] = w[j, i]";
  let note = "of a weight, as the second operand of a `linear` only";
  let arguments = (ins Nn_Tensor:$w);
  let results = (outs Nn_Tensor:$result);
  let assemblyFormat = "$w attr-dict `:` functional-type(operands, results)";
}

def QuantizeOp : Nn_ForwardOp<"quantize", [], [
  Nn_Factors<"x: b s k! -> y: b s k!", [
    Nn_When<"getX().getType().getRank() == 2", "x: k! n! -> y: k! n! ; copies">]>]> {
  let summary = "x as numbers of 8 bits (e4m3) times a power of two for each block, in the type of x";
  let description = [{
    A block is `rows` rows of `columns` columns; 0 means all, and blocks at the end may be smaller. Its scale s is the
    largest power of two with which its largest number is at most 448, at most 2^126 (f64: 2^1022), or 1 where this
    number is 0, inf or NaN. y = e4m3(s x) / s, rounded to even; what is larger than 448 becomes 448, and NaN stays NaN.
    The derivative is that of y = x, but a `linear` of such operands has one of its own: dx is a product of dy and w,
    each in blocks along the sum of this product, and dw one of x and dy as they were (docs/fp8.md).
  }];
  let arguments = (ins Nn_Tensor:$x, Nn_Offset:$rows, Nn_Offset:$columns);
  let results = (outs Nn_Tensor:$y);
  let assemblyFormat = "$x attr-dict `:` functional-type(operands, results)";
}

def OpaqueOp : Nn_ForwardOp<"opaque", [], [Nn_Product], ["whyNotSliced"]> {
  let summary = "a stand-in for a module that runs elsewhere: what it costs, without what it computes";
  let signature = "opaque(x, w, flops = .., keeps = ..)";
  let formula = "y = what a driver computes of x and w";
  let note = "a forward takes `flops` operations, and so does the gradient of x, and that of w; y is like x, and "
             "`keeps` numbers of the type of sums stay for the backward; no executable can be made of it";
  let arguments = (ins Nn_Tensor:$x, Nn_Tensor:$w, F64Attr:$flops, I64Attr:$keeps);
  let results = (outs Nn_Tensor:$y, Nn_Tensor:$kept);
  let assemblyFormat = "$x `,` $w attr-dict `:` functional-type(operands, results)";
}

def LayernormOp : Nn_KernelOp<"layernorm", ["params"], [
  DeclareOpInterfaceMethods<Nn_Differentiable, ["rebuild"]>, Nn_Cheap,
  Nn_Factors<Nn_LayernormFactors>]> {
  let summary = "mean 0 and variance 1 over the width, times a gain, plus a bias; keeps mean and 1/deviation";
  let signature = "layernorm(x, gain, bias, epsilon = 1e-5)";
  let formula = "y = (x - mean(x)) / sqrt(variance(x) + epsilon) * gain + bias";
  let note = "mean 0 and variance 1 over the width, times a gain, plus a bias";
  let arguments = (ins Nn_Tensor:$x, Nn_Tensor:$gain, Nn_Tensor:$bias, Nn_Epsilon:$epsilon);
  let results = (outs Nn_Tensor:$y, Nn_Tensor:$mean, Nn_Tensor:$rstd);
  let assemblyFormat = "$x `,` $gain `,` $bias attr-dict `:` functional-type(operands, results)";
}

def RmsnormOp : Nn_KernelOp<"rmsnorm", ["params", "flags"], [
  DeclareOpInterfaceMethods<Nn_Differentiable, ["rebuild"]>, Nn_Cheap,
  Nn_Factors<Nn_RmsnormFactors>]> {
  let summary = "mean square 1 over the width, times a gain; keeps 1/root";
  let signature = "rmsnorm(x, gain, epsilon = 1e-5, heads = 1, plus = 0)";
  let formula = "y = x / sqrt(mean(x^2) + epsilon) * (gain + plus)";
  let note = "mean square 1 over the width, times a gain; with `heads`, over the width of each head, and all heads "
             "share one gain of that width; `plus` is 0, or 1 for a gain that is stored less 1";
  let arguments = (ins Nn_Tensor:$x, Nn_Tensor:$gain, Nn_Epsilon:$epsilon, DefaultValuedAttr<I64Attr, "1">:$heads,
                       Nn_Offset:$plus);
  let results = (outs Nn_Tensor:$y, Nn_Tensor:$rstd);
  let assemblyFormat = "$x `,` $gain attr-dict `:` functional-type(operands, results)";
}

def RopeOp : Nn_ForwardOp<"rope", ["params", "flags", "pointers", "varying"], [
  Nn_InPlace,
  Nn_Factors<"x: b s (m d!), #starts: b s -> y: b s (m d!) ; counts linear heads(m)", [
    Nn_When<"getPassing() > 0", "x: b s c!, #starts: b s -> y: b s c! ; counts linear">]>]> {
  let summary = "turns pairs of each head by an angle of the position; `inverse` turns back, the derivative";
  let signature = "rope(x, heads = .., theta = 10000.0, style = \"half\", table = [], growth = [])";
  let formula = "(y_j, y_k) = (x_j cos a - x_k sin a, x_k cos a + x_j sin a), a = t theta^(-2j/d), d = width / heads";
  let note = "each head turned, pair by pair, by angles of the position t; pairs are (j, j + d/2) for \"half\", "
             "(2j, 2j + 1) for \"pair\"; a `table` of rope_llama3(..) or the like replaces the frequencies of theta, "
             "and one with fewer than d/2 of them turns the first columns of each head alone, as if it had no others; "
             "`growth` [b, n, m], beside a table for all pairs, multiplies what is turned by "
             "1 + b log(1 + floor((t + m) / n))";
  let description = [{
    `style` pairs (j, j + d/2) for "half", (2j, 2j + 1) for "pair". `table` holds the factor of cosines and sines and
    then the angle that each pair turns by from one position to the next; without it they are 1 and theta^(-2j/d). A
    table of n angles, n < d/2, turns the first 2n columns of each head, where pairs are (j, j + n) for "half"; the
    others pass. `growth` has b, n and m of the factor 1 + b log(1 + floor((t + m) / n)) of all columns, which then all
    turn: queries whose scores grow behind the n positions of a model's first training.
    `starts` says where in the sequence each token's document begins, and positions count from there. The last `passing`
    heads of each row do not turn: those of v where q, k and v are one tensor.
  }];
  let arguments = (ins Nn_Tensor:$x, Optional<Nn_Integers>:$starts, I64Attr:$heads,
                       DefaultValuedAttr<F64Attr, "10000.0">:$theta,
                       DefaultValuedStrAttr<StrAttr, "half">:$style, Nn_Offset:$offset, Nn_Flag:$inverse,
                       OptionalAttr<DenseF64ArrayAttr>:$table, Nn_Zigzag:$zigzag, Nn_Offset:$passing,
                       OptionalAttr<DenseF64ArrayAttr>:$growth);
  let results = (outs Nn_Tensor:$y);
  let assemblyFormat = "$x (`from` $starts^)? attr-dict `:` functional-type(operands, results)";
  let extraClassDeclaration = Nn_Overwrites<"{{0, 0}}">.declaration;
}

def AddOp : Nn_ForwardOp<"add", [], [
  Nn_InPlace,
  Nn_Factors<"x: .., y: .. -> z: .. ; linear each">]> {
  let summary = "x + y";
  let signature = "x + y";
  let formula = "z = x + y";
  let note = "of two tensors of one shape";
  let arguments = (ins Nn_Tensor:$x, Nn_Tensor:$y);
  let results = (outs Nn_Tensor:$z);
  let assemblyFormat = "$x `,` $y attr-dict `:` functional-type(operands, results)";
  let extraClassDeclaration = Nn_Overwrites<"{{0, 0}, {0, 1}}">.declaration;
}

def ScaleOp : Nn_ForwardOp<"scale", ["params"], [
  Nn_InPlace,
  Nn_Factors<"x: .. -> y: .. ; linear each">]> {
  let summary = "x times a constant";
  let signature = "scale(x, factor = ..)";
  let formula = "y = factor x";
  let note = "times a constant, also written `scale(x, 2)`; a model's constant is rounded to the type of x";
  let arguments = (ins Nn_Tensor:$x, F64Attr:$factor);
  let results = (outs Nn_Tensor:$y);
  let assemblyFormat = "$x attr-dict `:` functional-type(operands, results)";
  let extraClassDeclaration = Nn_Overwrites<"{{0, 0}}">.declaration;
}

def SplitOp : Nn_Op<"split", [
  DeclareOpInterfaceMethods<Nn_Differentiable>, DeclareOpInterfaceMethods<Nn_Composed>,
  Nn_Factors<"x: b s c! -> [y: b s d!] ; linear", [
    Nn_When<"getPeriods() > 1", "x: b s (p a!) -> [y: b s (p d!)] ; linear periods(p)">,
    Nn_When<"areEqualRuns(getX(), getColumns()[0], 0)", "x: b s (* c) -> [y: b s c] ; linear widths(c)">]>]> {
  let summary = "the width cut in `parts` equal runs of columns, or in runs of `widths`, in each of `periods` runs";
  let signature = "split(x, parts = .., periods = 1)";
  let formula = "columns_i = x[.., i width/parts : (i + 1) width/parts]";
  let note = "the width cut in `parts` equal runs; also written `split(x, 3)`, or `split(x, [8, 4, 4])` for runs of "
             "these widths; with `periods`, each of so many equal runs of columns is cut, and a result has its part of "
             "all";
  let arguments = (ins Nn_Tensor:$x, OptionalAttr<I64Attr>:$parts, OptionalAttr<DenseI64ArrayAttr>:$widths,
                       Nn_Once:$periods);
  let results = (outs Variadic<Nn_Tensor>:$columns);
  let assemblyFormat = "$x attr-dict `:` functional-type(operands, results)";
  let extraClassDeclaration = [{
    /// How many columns of a period each result has.
    ::llvm::SmallVector<int64_t> runWidths();
  }];
}

def ConcatOp : Nn_Op<"concat", [
  DeclareOpInterfaceMethods<Nn_Differentiable>, DeclareOpInterfaceMethods<Nn_Composed>,
  Nn_Factors<"x: b s c!, y: b s d! -> z: b s e! ; linear", [
    Nn_When<"getPeriods() > 1 && getShared()", "x: b s (p a!), y: b s d! -> z: b s (p e!) ; linear periods(p)">,
    Nn_When<"getPeriods() > 1", "x: b s (p a!), y: b s (p d!) -> z: b s (p e!) ; linear periods(p)">]>]> {
  let summary = "the columns of x, and behind them those of y, in each of `periods` runs; `shared`: y is one run";
  let signature = "concat(x, y, periods = 1, shared = false)";
  let formula = "z = [x, y]";
  let note = "columns side by side; with `periods`, behind each of so many equal runs of columns of x stands its part "
             "of y, and with `shared = true` all of y";
  let arguments = (ins Nn_Tensor:$x, Nn_Tensor:$y, Nn_Once:$periods, Nn_Flag:$shared);
  let results = (outs Nn_Tensor:$z);
  let assemblyFormat = "$x `,` $y attr-dict `:` functional-type(operands, results)";
}

def PadOp : Nn_Op<"pad", [
  DeclareOpInterfaceMethods<Nn_Differentiable>, DeclareOpInterfaceMethods<Nn_Composed>,
  Nn_Factors<"x: b s c! -> z: b s e! ; linear", [
    Nn_When<"getPeriods() > 1", "x: b s (p a!) -> z: b s (p e!) ; linear periods(p)">]>]> {
  let summary = "the columns of x, and `columns` zeros behind each of `periods` equal runs of them";
  let signature = "pad(x, columns = .., periods = 1)";
  let formula = "z = [x, 0]";
  let note = "`columns` zeros behind the columns of x, or behind each of `periods` equal runs of them; also written "
             "`pad(x, 3)`";
  let arguments = (ins Nn_Tensor:$x, I64Attr:$columns, Nn_Once:$periods);
  let results = (outs Nn_Tensor:$z);
  let assemblyFormat = "$x attr-dict `:` functional-type(operands, results)";
}

def SplitRowsOp : Nn_Op<"split_rows", [
  DeclareOpInterfaceMethods<Nn_Differentiable>, DeclareOpInterfaceMethods<Nn_Composed>,
  Nn_Factors<"x: b s c -> [y: b s c] ; linear ranked">]> {
  let summary = "the rows of all sequences together cut in runs of `counts` rows, each as one sequence";
  let arguments = (ins Nn_Tensor:$x, DenseI64ArrayAttr:$counts);
  let results = (outs Variadic<Nn_Tensor>:$runs);
  let assemblyFormat = "$x attr-dict `:` functional-type(operands, results)";
}

def JoinRowsOp : Nn_Op<"join_rows", [
  DeclareOpInterfaceMethods<Nn_Differentiable>, DeclareOpInterfaceMethods<Nn_View>,
  Nn_Factors<"[x: b s c] -> y: b s c ; linear ranked">]> {
  let summary = "`batch` sequences of equal length from runs of their rows, which are computed where they belong";
  let arguments = (ins Variadic<Nn_Tensor>:$runs, I64Attr:$batch);
  let results = (outs Nn_Tensor:$y);
  let assemblyFormat = "$runs attr-dict `:` functional-type(operands, results)";
}

//===-- Backward ------------------------------------------------------------------------------------------------===//

def LinearDxOp : Nn_AccOp<"linear_dx", ["flags"], [
  Nn_Product,
  Nn_Factors<Nn_LinearFactors # " | d(y) w acc -> d(x)=acc", [
    Nn_When<"getTransposed()", Nn_TurnedFactors # " | d(y) w acc -> d(x)=acc">]>]> {
  let summary = "gradient of a linear's input";
  let arguments = (ins Nn_Tensor:$dy, Nn_Tensor:$w, Optional<Nn_Tensor>:$acc, Nn_Flag:$transposed);
  let results = (outs Nn_Tensor:$dx);
  let assemblyFormat = "$dy `,` $w (`into` $acc^)? attr-dict `:` functional-type(operands, results)";
}

def LinearDwOp : Nn_AccOp<"linear_dw", ["flags"], [
  Nn_WeightGradient, Nn_Product,
  Nn_Factors<Nn_LinearFactors # " | x d(y) acc -> d(w)=acc", [
    Nn_When<"getTransposed()", Nn_TurnedFactors # " | x d(y) acc -> d(w)=acc">]>]> {
  let summary = "gradient of a linear's weight";
  let arguments = (ins Nn_Tensor:$x, Nn_Tensor:$dy, Optional<Nn_Tensor>:$acc, Nn_Flag:$transposed);
  let results = (outs Nn_Tensor:$dw);
  let assemblyFormat = "$x `,` $dy (`into` $acc^)? attr-dict `:` functional-type(operands, results)";
}

def OpaqueDxOp : Nn_AccOp<"opaque_dx", ["flags"], [Nn_Product]> {
  let summary = "gradient of the input of an `opaque`";
  let arguments = (ins Nn_Tensor:$dy, Nn_Tensor:$w, Nn_Tensor:$kept, Optional<Nn_Tensor>:$acc, F64Attr:$flops);
  let results = (outs Nn_Tensor:$dx);
  let assemblyFormat = [{
    $dy `,` $w `,` $kept (`into` $acc^)? attr-dict `:` functional-type(operands, results)
  }];
}

def OpaqueDwOp : Nn_AccOp<"opaque_dw", ["flags"], [Nn_WeightGradient, Nn_Product]> {
  let summary = "gradient of the weight of an `opaque`, which holds `count` numbers";
  let arguments = (ins Nn_Tensor:$dy, Nn_Tensor:$kept, Optional<Nn_Tensor>:$acc, F64Attr:$flops, I64Attr:$count);
  let results = (outs Nn_Tensor:$dw);
  let assemblyFormat = "$dy `,` $kept (`into` $acc^)? attr-dict `:` functional-type(operands, results)";
}

def BiasDwOp : Nn_AccOp<"bias_dw", ["flags"], [
  Nn_WeightGradient,
  Nn_Factors<Nn_BiasFactors # " | d(y) acc -> d(bias)=acc">]> {
  let summary = "gradient of a linear's bias: column sums";
  let arguments = (ins Nn_Tensor:$dy, Optional<Nn_Tensor>:$acc);
  let results = (outs Nn_Tensor:$db);
  let assemblyFormat = "$dy (`into` $acc^)? attr-dict `:` functional-type(operands, results)";
}

def EmbeddingDwOp : Nn_AccOp<"embedding_dw", ["params", "flags", "varying"], [
  Nn_WeightGradient,
  Nn_Factors<Nn_EmbeddingFactors # " | tokens d(x) acc -> d(table)=acc">]> {
  let summary = "gradient of an embedding's table of `vocab` rows; the row of the token `pad` takes none";
  let description = [{ `first`, `whole` and `first_by` are those of the embedding. }];
  let arguments = (ins Nn_Integers:$tokens, Nn_Tensor:$dx, Optional<Nn_Tensor>:$acc, I64Attr:$vocab,
                       OptionalAttr<I64Attr>:$first, OptionalAttr<I64Attr>:$whole,
                       DefaultValuedAttr<I64Attr, "-1">:$pad, OptionalAttr<Nn_AxesAttr>:$first_by);
  let results = (outs Nn_Tensor:$dtable);
  let assemblyFormat = "$tokens `,` $dx (`into` $acc^)? attr-dict `:` functional-type(operands, results)";
}

def PositionsDwOp : Nn_AccOp<"positions_dw", ["flags", "varying"], [
  Nn_WeightGradient,
  Nn_Factors<Nn_PositionsFactors # " | d(x) acc -> d(table)=acc">]> {
  let summary = "gradient of a table of `positions` rows";
  let arguments = (ins Nn_Tensor:$dx, Optional<Nn_Tensor>:$acc, I64Attr:$positions, Nn_Offset:$offset,
                       Nn_Zigzag:$zigzag);
  let results = (outs Nn_Tensor:$dtable);
  let assemblyFormat = "$dx (`into` $acc^)? attr-dict `:` functional-type(operands, results)";
}

def LayernormRebuildOp : Nn_KernelOp<"layernorm_rebuild", [], [
  Nn_Factors<Nn_LayernormFactors # " | x gain bias mean rstd -> y">]> {
  let summary = "a layernorm's output again, bit for bit, from its statistics";
  let arguments = (ins Nn_Tensor:$x, Nn_Tensor:$gain, Nn_Tensor:$bias, Nn_Tensor:$mean, Nn_Tensor:$rstd);
  let results = (outs Nn_Tensor:$y);
  let assemblyFormat = [{
    $x `,` $gain `,` $bias `,` $mean `,` $rstd attr-dict `:` functional-type(operands, results)
  }];
}

def LayernormBwdOp : Nn_AccOp<"layernorm_bwd", ["flags"], [
  Nn_Factors<Nn_LayernormFactors # " | d(y) x gain mean rstd acc -> d(x)=acc d(gain) d(bias)">]> {
  let summary = "gradients of a layernorm: dx, and gain's and bias's of this unit alone (docs/derivatives.md R3)";
  let arguments = (ins Nn_Tensor:$dy, Nn_Tensor:$x, Nn_Tensor:$gain, Nn_Tensor:$mean, Nn_Tensor:$rstd,
                       Optional<Nn_Tensor>:$acc);
  let results = (outs Nn_Tensor:$dx, Nn_Tensor:$dgain, Nn_Tensor:$dbias);
  let assemblyFormat = [{
    $dy `,` $x `,` $gain `,` $mean `,` $rstd (`into` $acc^)? attr-dict `:` functional-type(operands, results)
  }];
}

def RmsnormRebuildOp : Nn_KernelOp<"rmsnorm_rebuild", ["flags"], [
  Nn_Factors<Nn_RmsnormFactors # " | x gain rstd -> y">]> {
  let summary = "an rmsnorm's output again, bit for bit, from its statistic";
  let arguments = (ins Nn_Tensor:$x, Nn_Tensor:$gain, Nn_Tensor:$rstd, Nn_Offset:$plus);
  let results = (outs Nn_Tensor:$y);
  let assemblyFormat = "$x `,` $gain `,` $rstd attr-dict `:` functional-type(operands, results)";
}

def RmsnormBwdOp : Nn_AccOp<"rmsnorm_bwd", ["flags"], [
  Nn_Factors<Nn_RmsnormFactors # " | d(y) x gain rstd acc -> d(x)=acc d(gain)">]> {
  let summary = "gradients of an rmsnorm: dx, and gain's of this unit alone (docs/derivatives.md R3)";
  let arguments = (ins Nn_Tensor:$dy, Nn_Tensor:$x, Nn_Tensor:$gain, Nn_Tensor:$rstd, Optional<Nn_Tensor>:$acc,
                       Nn_Offset:$plus);
  let results = (outs Nn_Tensor:$dx, Nn_Tensor:$dgain);
  let assemblyFormat = [{
    $dy `,` $x `,` $gain `,` $rstd (`into` $acc^)? attr-dict `:` functional-type(operands, results)
  }];
}

//===-- Columns, copies, sums -----------------------------------------------------------------------------------===//

def RowsOp : Nn_Op<"rows", [
  DeclareOpInterfaceMethods<Nn_View>,
  Nn_Factors<"x: b s c -> y: b s c ; linear ranked">]> {
  let summary = "rows [start, start + count) of all sequences together, where they lie: a run of `split_rows`";
  let arguments = (ins Nn_Tensor:$x, I64Attr:$start, I64Attr:$count);
  let results = (outs Nn_Tensor:$y);
  let assemblyFormat = "$x attr-dict `:` functional-type(operands, results)";
}

def SliceColumnsOp : Nn_KernelOp<"slice_columns", ["moves"], [
  Nn_Factors<"x: b s c! -> y: b s d! ; linear", [
    Nn_When<"getPeriods() > 1", "x: b s (p a!) -> y: b s (p d!) ; linear">,
    Nn_When<"areEqualRuns(getX(), getY(), getStart())", "x: b s (* c) -> y: b s c ; linear">]>]> {
  let summary = "columns [start, start + width) of each of `periods` equal runs of columns of x";
  let arguments = (ins Nn_Tensor:$x, I64Attr:$start, I64Attr:$width, Nn_Once:$periods);
  let results = (outs Nn_Tensor:$y);
  let assemblyFormat = "$x attr-dict `:` functional-type(operands, results)";
}

def SumColumnsOp : Nn_KernelOp<"sum_columns", ["kernelName"], [
  Nn_Factors<"x: b s c! -> y: b s d! ; linear", [
    Nn_When<"getPeriods() > 1", "x: b s (p a!) -> y: b s d! ; linear">]>]> {
  let summary = "the sum over `periods` equal runs of columns of x of their columns [start, start + width)";
  let arguments = (ins Nn_Tensor:$x, I64Attr:$start, I64Attr:$width, Nn_Once:$periods);
  let results = (outs Nn_Tensor:$y);
  let assemblyFormat = "$x attr-dict `:` functional-type(operands, results)";
}

def SliceElementsOp : Nn_KernelOp<"slice_elements", ["kernelName", "moves"]> {
  let summary = "elements [start, start + count) of x in row-major order, as a tensor of one dimension";
  let arguments = (ins Nn_Tensor:$x, I64Attr:$start, I64Attr:$count);
  let results = (outs Nn_Tensor:$y);
  let assemblyFormat = "$x attr-dict `:` functional-type(operands, results)";
}

def PlaceColumnsOp : Nn_AccOp<"place_columns", ["flags", "moves"], [
  Nn_Factors<"x: b s d!, acc: b s c! -> y=acc: b s c! ; linear", [
    Nn_When<"getPeriods() > 1 && getShared()", "x: b s d!, acc: b s (p a!) -> y=acc: b s (p a!) ; linear">,
    Nn_When<"getPeriods() > 1", "x: b s (p d!), acc: b s (p a!) -> y=acc: b s (p a!) ; linear">,
    Nn_When<"areEqualRuns(getY(), getX(), getStart())", "x: b s c, acc: b s (* c) -> y=acc: b s (* c) ; linear">]>]> {
  let summary = "a tensor `total` wide with x from column `start` on, in each of `periods` equal runs its share of x, "
                "or all of it if `shared`; the rest is that of `acc`; without it 0 if `zeros`, else undefined";
  let arguments = (ins Nn_Tensor:$x, Optional<Nn_Tensor>:$acc, I64Attr:$start, I64Attr:$total, Nn_Once:$periods,
                       Nn_Flag:$shared, Nn_Flag:$zeros);
  let results = (outs Nn_Tensor:$y);
  let assemblyFormat = "$x (`into` $acc^)? attr-dict `:` functional-type(operands, results)";
}

def CopyOp : Nn_AccOp<"copy", ["moves"], [
  Nn_Factors<"x: .., acc: .. -> y=acc: .. ; linear each">]> {
  let summary = "x in another buffer; that of `acc`, whose content is lost, if given";
  let arguments = (ins Nn_Tensor:$x, Optional<Nn_Tensor>:$acc);
  let results = (outs Nn_Tensor:$y);
  let assemblyFormat = "$x (`into` $acc^)? attr-dict `:` functional-type(operands, results)";
}

def ZeroOp : Op<Nn_Dialect, "zero", [Pure, Nn_Kernels<["moves"]>]> {
  let summary = "zeros, of any type";
  let arguments = (ins);
  let results = (outs Nn_Tensor:$y);
  let assemblyFormat = "attr-dict `:` type($y)";
}

def AccumulateOp : Nn_AccOp<"accumulate", ["varying", "moved"], [
  Nn_WeightGradient,
  Nn_Factors<"x: .., acc: .. -> y=acc: .. ; linear each">]> {
  let summary = "acc + x, in the type of sums, which x need not have";
  let description = [{ `flat`: to a shard `acc` a device adds what it has of x, as in `adamw`. }];
  let arguments = (ins Nn_Tensor:$x, Nn_Tensor:$acc, OptionalAttr<DenseI64ArrayAttr>:$flat);
  let results = (outs Nn_Tensor:$y);
  let assemblyFormat = "$x `into` $acc attr-dict `:` functional-type(operands, results)";
}

def RoundOp : Nn_KernelOp<"round", ["elementType", "moves"], [
  Nn_Factors<"x: .. -> y: .. ; linear each">]> {
  let summary = "a sum rounded, once it is complete";
  let arguments = (ins Nn_Tensor:$x, TypeAttrOf<AnyTypeOf<[F32, BF16, F16, F64]>>:$element);
  let results = (outs Nn_Tensor:$y);
  let assemblyFormat = "$x `to` $element attr-dict `:` functional-type(operands, results)";
}

def SumSquaresOp : Nn_AccOp<"sum_squares", ["flags", "varying", "moved"]> {
  let summary = "sum of squares, one f64";
  let description = [{
    `once`: so many `copies` neighbours along these axes have the same tensor (all devices, if absent), and only the
    first of them counts it. `flat`: a device along `data` counts what its shard has, as in `adamw`.
  }];
  let arguments = (ins Nn_Tensor:$grad, Optional<Nn_Tensor>:$acc, OptionalAttr<Nn_AxesAttr>:$once,
                       OptionalAttr<I64Attr>:$copies, OptionalAttr<DenseI64ArrayAttr>:$flat);
  let results = (outs Nn_Tensor:$sum);
  let assemblyFormat = "$grad (`into` $acc^)? attr-dict `:` functional-type(operands, results)";
}

include "dialect/nn/ActivationOps.td"
include "dialect/nn/AttentionOps.td"
include "dialect/nn/LossOps.td"
include "dialect/nn/ExpertOps.td"
include "dialect/nn/OptimizerOps.td"
include "dialect/nn/ExchangeOps.td"
include "dialect/formula/Ops.td"
include "dialect/scan/Ops.td"

#endif // PP_DIALECT_NNOPS_TD
