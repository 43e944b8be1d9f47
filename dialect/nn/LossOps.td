// Cross-entropy: over whole rows of logits, or over shards of the vocabulary through their statistics.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_DIALECT_NNLOSSOPS_TD
#define PP_DIALECT_NNLOSSOPS_TD

def CrossEntropyOp : Nn_Op<"cross_entropy", [
  DeclareOpInterfaceMethods<Nn_Differentiable>, Nn_Loss, DeclareOpInterfaceMethods<Nn_ReadsLogits>,
  Nn_Factors<Nn_LossFactors>]> {
  let summary = "`scale` times the sum over tokens of lse(z) - z[target]; runs as `cross_entropy_bwd`, which makes dz "
                "too";
  let description = [{
    `scale` is the weight of this loss in the model's loss, which may be a sum of several losses. `counted`: the sum is
    divided by the number of the step's targets that count, which is known when the step runs. If each place has the
    target `ahead` places later in its document, it is the number of those targets. A `softcap` of c above 0 first makes
    c tanh(z / c) of the logits. A `z_loss` of w above 0 adds w lse(z)^2 of each token to the loss that is trained. The
    sum of these, times `scale` and divided as the loss, is the second element of the loss. A loss that is `further`
    adds to the gradients and is reported apart from the others.
  }];
  let signature = "cross_entropy(z, targets, softcap = 0.0, z_loss = 0.0)";
  let formula = "loss = sum over tokens of log(sum(e^z)) - z[target]";
  let note = "z are the logits, with a `softcap` of c above 0 first made c tanh(z / c); a `z_loss` of w trains w "
             "log(sum(e^z))^2, too, and is told apart; the last part returns it, or `a + 0.3 * b` of several, and "
             "further ones behind a comma; training takes the mean over all tokens of a step, or with "
             "`documents = true` over those that count";
  let arguments = (ins Nn_Tensor:$z, Nn_Integers:$targets, Nn_One:$scale, UnitAttr:$counted, Nn_Offset:$ahead,
                       Nn_Number:$softcap, Nn_Number:$z_loss, UnitAttr:$further);
  let results = (outs Nn_Tensor:$loss);
  let assemblyFormat = "$z `,` $targets attr-dict `:` functional-type(operands, results)";
}

def CrossEntropyBwdOp : Nn_KernelOp<"cross_entropy_bwd", ["kernelName", "params", "flags"], [
  Nn_InPlace,
  Nn_Factors<Nn_LossFactors # " | z targets -> d(z) loss">]> {
  let summary = "loss and gradient of the logits in one pass, both times `scale`";
  let arguments = (ins Nn_Tensor:$z, Nn_Integers:$targets, F64Attr:$scale, UnitAttr:$counted, Nn_Offset:$ahead,
                       Nn_Number:$softcap, Nn_Number:$z_loss);
  let results = (outs Nn_Tensor:$dz, Nn_Tensor:$loss);
  let assemblyFormat = "$z `,` $targets attr-dict `:` functional-type(operands, results)";
  let extraClassDeclaration = Nn_Overwrites<"{{0, 0}}">.declaration;
}

/// Whether so many columns of each row are picked: an operand of integers [batch, length, k].
class Nn_PicksMany<string factors> : Nn_When<
  "getIds() && ::llvm::cast<::mlir::RankedTensorType>(getIds().getType()).getRank() == 3", factors>;

def CrossEntropyStatsOp : Nn_ForwardOp<"cross_entropy_stats", ["kernelName", "params", "varying"], [
  DeclareOpInterfaceMethods<Nn_ReadsLogits>,
  Nn_Factors<"z: b s v@, #targets: b s -> stats: (v b) s t!", [
    Nn_PicksMany<"z: b s v@, #targets: b s, #ids: b s k! -> stats: (v b) s t!">,
    Nn_When<"getIds() != nullptr", "z: b s v@, #targets: b s, #ids: b s -> stats: (v b) s t!">]>]> {
  let summary = "largest logit, sum of exp(z - largest), target's logit or 0, of the columns of z in each row";
  let description = [{
    z holds columns [first, first + width) of the logits over a vocabulary of `vocab`; targets count in the whole.
    A `softcap` is applied to z first. `first_by`: each device along these axes begins behind the columns of the one
    before it, and columns from `vocab` on do not exist. With `ids` a row's statistics are those that `token_stats`
    makes of whole rows, side by side: log(sum(e^z)), the mean of z under softmax(z), the sum of z by `vocab`, and z at
    each of the columns `ids`, 0 if it is another shard's. They run as `token_shard`.
  }];
  let arguments = (ins Nn_Tensor:$z, Nn_Integers:$targets, Optional<Nn_Integers>:$ids, Nn_Offset:$first,
                       I64Attr:$vocab, Nn_Number:$softcap, OptionalAttr<Nn_AxesAttr>:$first_by);
  let results = (outs Nn_Tensor:$stats);
  let assemblyFormat = "$z `,` $targets (`picks` $ids^)? attr-dict `:` functional-type(operands, results)";
}

def CrossEntropyMergeOp : Nn_ForwardOp<"cross_entropy_merge", ["kernelName", "lists"], [
  Nn_InPlace,
  Nn_Factors<"[parts: b s t!] -> stats: b s t!">]> {
  let summary = "the statistics of whole rows from those of all shards, summed in their order";
  let description = [{
    Those with picked columns, which are more than three, run as `token_merge`.
  }];
  let arguments = (ins Variadic<Nn_Tensor>:$parts);
  let results = (outs Nn_Tensor:$stats);
  let assemblyFormat = "$parts attr-dict `:` functional-type(operands, results)";
  let extraClassDeclaration = Nn_Overwrites<"{{0, 0}}">.declaration;
}

def CrossEntropyLossOp : Nn_ForwardOp<"cross_entropy_loss", ["params", "flags", "moves"], [
  Nn_Loss,
  Nn_Factors<"stats: b s t!, #targets: b s -> loss: u">]> {
  let summary = "`scale` times the sum over tokens of log(sum) + largest - logit, from the statistics of whole rows";
  let description = [{
    Its derivative makes dz of each shard whose statistics are made in this function; the loss itself is counted where
    this op stands.
  }];
  let arguments = (ins Nn_Tensor:$stats, Nn_Integers:$targets, Nn_One:$scale, UnitAttr:$counted, Nn_Offset:$ahead,
                       Nn_Number:$z_loss);
  let results = (outs Nn_Tensor:$loss);
  let assemblyFormat = "$stats `,` $targets attr-dict `:` functional-type(operands, results)";
}

def CrossEntropyDzOp : Nn_KernelOp<"cross_entropy_dz", ["params", "flags", "varying"], [
  Nn_InPlace,
  Nn_Factors<"z: b s v@, #targets: b s, ~stats: b s t! -> dz: b s v">]> {
  let summary = "gradient of a shard's logits times `scale`, from the statistics of whole rows";
  let arguments = (ins Nn_Tensor:$z, Nn_Integers:$targets, Nn_Tensor:$stats, Nn_Offset:$first, I64Attr:$vocab,
                       F64Attr:$scale, UnitAttr:$counted, Nn_Offset:$ahead, Nn_Number:$softcap, Nn_Number:$z_loss,
                       OptionalAttr<Nn_AxesAttr>:$first_by);
  let results = (outs Nn_Tensor:$dz);
  let assemblyFormat = "$z `,` $targets `,` $stats attr-dict `:` functional-type(operands, results)";
  let extraClassDeclaration = Nn_Overwrites<"{{0, 0}}">.declaration;
}

//===-- Losses that are formulas of tokens ------------------------------------------------------------------------===//

defvar Nn_TokenFactors = "z: b s v!, #targets: b s, #ids: b s -> lse: b s, mean_p: b s, mean: b s, picks: b s";
defvar Nn_TokensFactors = "z: b s v!, #targets: b s, #ids: b s k! -> lse: b s, mean_p: b s, mean: b s, picks: b s k!";
defvar Nn_TokenRows = "~lse: b s, ~mean_p: b s, ~dlse: b s, ~dmean_p: b s, ~dmean: b s, ";

def TokenStatsOp : Nn_ForwardOp<"token_stats", ["params"], [
  DeclareOpInterfaceMethods<Nn_ReadsLogits>,
  Nn_Factors<Nn_TokenFactors, [
    Nn_When<"::llvm::cast<::mlir::RankedTensorType>(getIds().getType()).getRank() == 3", Nn_TokensFactors>]>]> {
  let summary = "of each row of logits: log(sum(e^z)), the means of z under softmax(z) and of z, and z at some columns";
  let description = [{
    `ids` are the columns that are picked: one of each row [batch, length], or k for each [batch, length, k]. With a
    `softcap` of c above 0, z is c tanh(z / c) of the logits. All results are in the type of sums: the log-probability
    of a column is what is picked there, less lse; the entropy is lse - mean_p. Rows with a negative target give 0.
  }];
  let arguments = (ins Nn_Tensor:$z, Nn_Integers:$targets, Nn_Integers:$ids, Nn_Number:$softcap);
  let results = (outs Nn_Tensor:$lse, Nn_Tensor:$mean_p, Nn_Tensor:$mean, Nn_Tensor:$picks);
  let assemblyFormat = "$z `,` $targets `,` $ids attr-dict `:` functional-type(operands, results)";
}

def TokenRowsOp : Nn_ForwardOp<"token_rows", ["moves"], [
  Nn_Factors<"stats: b s t!, #targets: b s, #ids: b s -> lse: b s, mean_p: b s, mean: b s, picks: b s", [
    Nn_When<"::llvm::cast<::mlir::RankedTensorType>(getIds().getType()).getRank() == 3",
            "stats: b s t!, #targets: b s, #ids: b s k! -> lse: b s, mean_p: b s, mean: b s, picks: b s k!">]>]> {
  let summary = "the results of `token_stats`, each for itself, from the statistics of whole rows side by side";
  let description = [{
    Its derivative makes dz of each shard whose statistics are made in this function. Rows with a negative target have
    only zeros.
  }];
  let arguments = (ins Nn_Tensor:$stats, Nn_Integers:$targets, Nn_Integers:$ids);
  let results = (outs Nn_Tensor:$lse, Nn_Tensor:$mean_p, Nn_Tensor:$mean, Nn_Tensor:$picks);
  let assemblyFormat = "$stats `,` $targets `,` $ids attr-dict `:` functional-type(operands, results)";
}

def TokenStatsBwdOp : Nn_KernelOp<"token_stats_bwd", ["params", "varying"], [
  Nn_InPlace,
  Nn_Factors<!strconcat("z: b s v@, #targets: b s, #ids: b s, ", Nn_TokenRows, "~dpicks: b s -> dz: b s v"), [
    Nn_When<"::llvm::cast<::mlir::RankedTensorType>(getIds().getType()).getRank() == 3",
            !strconcat("z: b s v@, #targets: b s, #ids: b s k!, ", Nn_TokenRows, "~dpicks: b s k! -> dz: b s v")>]>]> {
  let summary = "gradient of the logits from those of their statistics; rows with a negative target have none";
  let description = [{
    With p = softmax(z): dz[v] = p[v] (dlse + dmean_p (1 + z[v] - mean_p)) + dmean / vocabulary, and dpicks more where v
    was picked; all times the slope of the cap. z may hold columns [first, first + width) of a vocabulary of `vocab`, as
    of `cross_entropy_stats`; 0: it holds all of them.
  }];
  let arguments = (ins Nn_Tensor:$z, Nn_Integers:$targets, Nn_Integers:$ids, Nn_Tensor:$lse, Nn_Tensor:$mean_p,
                       Nn_Tensor:$dlse, Nn_Tensor:$dmean_p, Nn_Tensor:$dmean, Nn_Tensor:$dpicks, Nn_Number:$softcap,
                       Nn_Offset:$first, Nn_Offset:$vocab, OptionalAttr<Nn_AxesAttr>:$first_by);
  let results = (outs Nn_Tensor:$dz);
  let assemblyFormat = "operands attr-dict `:` functional-type(operands, results)";
  let extraClassDeclaration = Nn_Overwrites<"{{0, 0}}">.declaration;
}

def SegmentSumOp : Nn_ForwardOp<"segment_sum", ["flags", "varying"], [
  Nn_Factors<"v: b s!, #targets: b s!, #starts: b s! -> y: b s!">], ["whyNotSliced"]> {
  let summary = "for each token with a target, the sum of v over those of its segment that have one, or their `mean`";
  let description = [{
    Tokens of a row with equal `starts` are a segment, such as a document. Tokens without a target give and get 0. The
    op is its own derivative. With `zigzag` all operands are of whole rows, and y of the device's two runs of each.
  }];
  let arguments = (ins Nn_Tensor:$v, Nn_Integers:$targets, Nn_Integers:$starts, UnitAttr:$mean, Nn_Zigzag:$zigzag);
  let results = (outs Nn_Tensor:$y);
  let assemblyFormat = "$v `,` $targets `,` $starts attr-dict `:` functional-type(operands, results)";
}

defvar Nn_TokenMeanFactors = "v: b s, #targets: b s, #starts: b s -> loss: u";

def TokenMeanOp : Nn_ForwardOp<"token_mean", ["params", "flags", "pointers", "varying"], [
  DeclareOpInterfaceMethods<Nn_Loss, ["isDivided"]>,
  Nn_Factors<Nn_TokenMeanFactors>]> {
  let summary = "`scale` times the sum of v over the tokens that have a target; runs as `token_mean_bwd`, which makes "
                "dv too";
  let description = [{
    `counted` and `further` as of `cross_entropy`; `divisor` says by which of the step's divisors it is divided: that of
    targets (so many places on), of a column's sum, or of documents. The sum of a `total` is divided by nothing.
    v is in the type of sums, and where there is no target it counts for nothing, whatever it is. With `starts` the
    first token of each segment that has a target stands for it. A `report` is that of this number: it has no gradient,
    and is no part of the loss. With `zigzag` targets and starts are of whole rows, and v of the device's two runs.
  }];
  let arguments = (ins Nn_Tensor:$v, Nn_Integers:$targets, Optional<Nn_Integers>:$starts, Nn_One:$scale,
                       UnitAttr:$counted, Nn_Offset:$divisor, UnitAttr:$total, UnitAttr:$further,
                       OptionalAttr<I64Attr>:$report, Nn_Zigzag:$zigzag);
  let results = (outs Nn_Tensor:$loss);
  let assemblyFormat = "$v `,` $targets (`from` $starts^)? attr-dict `:` functional-type(operands, results)";
}

def TokenMeanBwdOp : Nn_KernelOp<"token_mean_bwd", ["params", "flags", "pointers", "varying"], [
  Nn_InPlace,
  Nn_Factors<Nn_TokenMeanFactors # " | v targets starts -> d(v) loss">]> {
  let summary = "loss and gradient of the values of tokens, both times `scale`";
  let arguments = (ins Nn_Tensor:$v, Nn_Integers:$targets, Optional<Nn_Integers>:$starts, F64Attr:$scale,
                       UnitAttr:$counted, Nn_Offset:$divisor, Nn_Zigzag:$zigzag);
  let results = (outs Nn_Tensor:$dv, Nn_Tensor:$loss);
  let assemblyFormat = "$v `,` $targets (`from` $starts^)? attr-dict `:` functional-type(operands, results)";
  let extraClassDeclaration = Nn_Overwrites<"{{0, 0}}">.declaration;
}

#endif // PP_DIALECT_NNLOSSOPS_TD
