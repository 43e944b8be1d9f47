// Mixtures of experts: a router picks some experts for each token, and their rows are multiplied expert by expert.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_DIALECT_NNEXPERTOPS_TD
#define PP_DIALECT_NNEXPERTOPS_TD

//===-- Router --------------------------------------------------------------------------------------------------===//

def RouterOp : Nn_ForwardOp<"router", [], [
  Nn_Product,
  Nn_Factors<Nn_RouterFactors>]> {
  let summary = "x times wr [in, experts], in the type of sums: the logits of the experts";
  let arguments = (ins Nn_Tensor:$x, Nn_Tensor:$wr);
  let results = (outs Nn_Tensor:$logits);
  let assemblyFormat = "$x `,` $wr attr-dict `:` functional-type(operands, results)";
}

def RouteOp : Nn_ForwardOp<"route", ["params", "flags", "pointers", "elementType"], [
  AttrSizedOperandSegments, Nn_Chooses,
  Nn_Factors<"logits: b s n!, bias: n!, #rows: b s "
             "-> w: b s k!, #sel: b s k!, p: b s n!, lse: b s, #places: b s k!, #counts: s n! ; ranked">],
  ["whyNotSliced"]> {
  let summary = "which experts take each token, with which weight, and where its rows are among all";
  let signature = "experts(x, wr, w_gate, w_up, w_down[, bias], top = .., renormalise = false, scale = 1.0, "
                  "balance = 0.0, over = \"sequence\", z = 0.0, score = \"softmax\", groups = 1, top_groups = 1, "
                  "rate = 0.0, capacity = 0.0, group_by = \"pair\", least = 0.0, added = 0.0, router_bias = .., "
                  "gate_up_bias = .., down_bias = .., reads = .., on_input = false, activation = \"silu\", "
                  "limit = 0.0, alpha = 1.0, plus = 0.0, identity = 0, jitter = 0.01)";
  let formula = "y = sum over the top experts e, those of largest p, of w_e (swiglu(x w_gate_e, x w_up_e)) w_down_e, "
                "p = softmax(x wr), w = scale p or, with renormalise, scale p / (sum of the chosen p)";
  let note = "a mixture of experts; wr is [in, experts], the others [experts, in, out]; w_gate and w_up may be one, "
             "whose columns are those of w_gate, then those of w_up; `balance` and `z` add two losses to what is "
             "trained, balance experts / top sum over e of (share of choices) (mean of p), over each sequence or "
             "\"microbatch\", and z mean(log(sum(e^logits))^2), each a mean over a step's tokens; with `score` "
             "\"sigmoid\" p is that of each logit; experts are chosen by p + bias, among the `top_groups` of `groups` "
             "runs of experts whose two largest are together the largest, or with `group_by` \"largest\" whose "
             "largest is; a sum of p is at least `least`, and `added` is added to it; after each step `bias` grows by "
             "`rate` for an expert with fewer choices than the mean, and falls for one with more; with `capacity` f "
             "devices with experts of their own take f times the mean of choices at most, and drop the rest; "
             "`router_bias` [experts] is added to x wr, `down_bias` [experts, in] to what w_e multiplies, and "
             "`gate_up_bias` [experts, 2 out] to x times the one weight for gate and up; experts read `reads`, "
             "if it is there, in the place of x; with `on_input` w_e multiplies what they read, not the output of the "
             "expert; with `identity` so many experts behind the others have no weights, and give x itself; with "
             "`score` \"sparsemixer\" each token has two choices, the largest logit and the next one, and w is the "
             "softmax at the choice over the logits r, without what is chosen before, that are no farther from its "
             "logit m than (m - r) / max(|r|, m) = 2 `jitter`; `activation` to `plus`: of the gated unit, as `glu` has "
             "them; with `activation` \"relu2\" experts have no gate, relu(x w_up_e)^2 w_down_e, and no w_gate";
  let description = [{
    p is the softmax of the logits, or with `score = "sigmoid"` the sigmoid of each, whose lse is 0. `sel` are the `top`
    experts of largest p, of equal ones the lower first; `w` are their p, divided by their sum with `renormalise`, times
    `scale`; a sum below `least` counts as that, and `added` is added to it. `bias` is added to p where experts are
    chosen, and nowhere else. With `groups` above 1, only experts in the `top_groups` runs of experts with the largest
    sums of their two largest, or with `group_by = "largest"` with the largest p + bias, are chosen. The rows of all
    choices are ordered by expert, then by token: choice j of a token has row `places`, and the expert e has the
    `counts[e]` rows behind those of the experts before it. `lse` is the log of the sum of e^logits. `balance`, `over`
    and `z` say which losses the derivative adds. With `shared`, a group of tokens of the balance is spread over the
    devices along these axes, and the derivative adds up how often they chose each expert. With `sections` the experts
    are in as many equal runs, the rows of a run are a section, and `counts` are [sections, experts of a section]. A
    section takes choices until it is full, first choices of all tokens first; a choice that is dropped has no row, so
    `places` is -1. What it chose is never computed again: if a tie were broken in another way, the function would be
    another one.

    With `identity` the last so many of the experts give a token itself: a choice of one has no row, so its place is -1
    too, and `counts` are those of the others. `identity_weights` gives what such choices weigh.

    With `score = "sparsemixer"` each token has two choices, those of the two largest logits, and w of a choice is its
    part of the softmax of the logits, without that of the choice before, whose distance (m - r) / max(|r|, m) from the
    choice's logit m is at most 2 `jitter`. p are the logits then, and lse is 0. This is how SparseMixer (Liu et al.
    2023) routes where nothing is drawn at random.

    `rows` [b, l] is negative where a row holds no token. Such a row chooses nothing and counts nowhere: `sel` and
    `places` are -1, and w, p and lse are 0. The room that `capacity` gives is that of the tokens which are there.
  }];
  let arguments = (ins Nn_Tensor:$logits, Optional<Nn_Tensor>:$bias, Optional<Nn_Integers>:$rows, I64Attr:$top,
                       Nn_Flag:$renormalise, Nn_One:$scale, Nn_Number:$balance,
                       DefaultValuedStrAttr<StrAttr, "sequence">:$over, Nn_Number:$z,
                       DefaultValuedStrAttr<StrAttr, "softmax">:$score, Nn_Once:$groups, Nn_Once:$top_groups,
                       OptionalAttr<Nn_AxesAttr>:$shared, OptionalAttr<Nn_SectionsAttr>:$sections,
                       Nn_Number:$capacity, DefaultValuedStrAttr<StrAttr, "pair">:$group_by, Nn_Number:$least,
                       Nn_Number:$added, Nn_Offset:$identity, DefaultValuedAttr<F64Attr, "0.01">:$jitter);
  let results = (outs Nn_Tensor:$w, Nn_Integers:$sel, Nn_Tensor:$p, Nn_Tensor:$lse, Nn_Integers:$places,
                      Nn_Integers:$counts);
  let assemblyFormat = "$logits (`bias` $bias^)? (`rows` $rows^)? attr-dict `:` functional-type(operands, results)";
}

def RouterDxOp : Nn_AccOp<"router_dx", ["flags", "elementType"], [
  Nn_Product,
  Nn_Factors<Nn_RouterFactors # " | d(logits) wr acc -> d(x)=acc">]> {
  let summary = "gradient of a router's input";
  let arguments = (ins Nn_Tensor:$dlogits, Nn_Tensor:$wr, Optional<Nn_Tensor>:$acc);
  let results = (outs Nn_Tensor:$dx);
  let assemblyFormat = "$dlogits `,` $wr (`into` $acc^)? attr-dict `:` functional-type(operands, results)";
}

def RouterDwOp : Nn_AccOp<"router_dw", ["flags"], [
  Nn_WeightGradient, Nn_Product,
  Nn_Factors<Nn_RouterFactors # " | x d(logits) acc -> d(wr)=acc">]> {
  let summary = "gradient of a router's weight";
  let arguments = (ins Nn_Tensor:$x, Nn_Tensor:$dlogits, Optional<Nn_Tensor>:$acc);
  let results = (outs Nn_Tensor:$dwr);
  let assemblyFormat = "$x `,` $dlogits (`into` $acc^)? attr-dict `:` functional-type(operands, results)";
}

def ChoiceCountsOp : Nn_KernelOp<"choice_counts", ["elementType"], [
  Nn_Factors<"#sel: b s k! -> often: u n! ; ranked">]> {
  let summary = "how often each group of `group` rows, one behind the other, chose each of `experts`";
  let description = [{
    Numbers, [groups, experts] of type `sum`, so that devices which share a group can add theirs up: exact up to 2^24 in
    f32.
  }];
  let arguments = (ins Nn_Integers:$sel, I64Attr:$group, I64Attr:$experts, TypeAttr:$sum);
  let results = (outs Nn_Tensor:$often);
  let assemblyFormat = "$sel attr-dict `:` functional-type(operands, results)";
}

def RouteBwdOp : Nn_KernelOp<"route_bwd", ["params", "flags", "pointers"], [
  AttrSizedOperandSegments,
  Nn_Factors<"dw: b s k!, w: b s k!, #sel: b s k!, p: b s n!, lse: b s, ~often: u n! "
             "-> dlogits: b s n! ; ranked linear_in(dw)">]> {
  let summary = "gradient of the logits of a `route`, from that of its weights and from its losses";
  let description = [{
    A group has `group` rows, one behind the other. Each expert has a share of the choices of the row's group. This
    share times `balance` experts / top is added to the gradient of p, and 2 `z` lse p to the gradient of the logits.
    Both are divided by the tokens of the update, and multiplied by the run's loss scale. With `sigmoid` the balance is
    that of p divided by its sum. If devices share a group, `often` are the `choice_counts` of all of them, and the
    run's report of the balance has this device's share. A row that chose nothing has no gradient. With `sparsemixer` p
    are logits, and a weight's gradient goes to those of its softmax, which `jitter` bounds; the bound has none.
  }];
  let arguments = (ins Nn_Tensor:$dw, Nn_Tensor:$w, Nn_Integers:$sel, Nn_Tensor:$p, Optional<Nn_Tensor>:$lse,
                       Optional<Nn_Tensor>:$often, Nn_Flag:$renormalise, Nn_One:$scale, Nn_Number:$balance,
                       I64Attr:$group, Nn_Number:$z, Nn_Flag:$sigmoid, Nn_Number:$least, Nn_Number:$added,
                       Nn_Flag:$sparsemixer, Nn_Number:$jitter);
  let results = (outs Nn_Tensor:$dlogits);
  let assemblyFormat = "$dw `,` $w `,` $sel `,` $p (`lse` $lse^)? (`often` $often^)? attr-dict `:` "
                       "functional-type(operands, results)";
}

def ExpertLoadOp : Nn_AccOp<"expert_load", ["flags", "elementType"], [
  Nn_WeightGradient,
  Nn_Factors<"#counts: s n!, acc: n! -> load=acc: n! ; ranked">]> {
  let summary = "how far each expert's number of choices is above the mean, times experts / gcd(experts, top)";
  let description = [{
    What stands for the gradient of a router's bias: integers, whose sum over all microbatches has the sign by which
    `steer` changes the bias.
  }];
  let arguments = (ins Nn_Integers:$counts, Optional<Nn_Tensor>:$acc, I64Attr:$top, TypeAttr:$sum);
  let results = (outs Nn_Tensor:$load);
  let assemblyFormat = "$counts (`into` $acc^)? attr-dict `:` functional-type(operands, results)";
}

def ChoiceLoadOp : Nn_AccOp<"choice_load", ["flags", "elementType"], [
  Nn_WeightGradient,
  Nn_Factors<"#sel: b s k!, acc: n! -> load=acc: n! ; ranked">]> {
  let summary = "what `expert_load` makes, of the choices themselves: of all `experts`, with those that have no rows";
  let arguments = (ins Nn_Integers:$sel, Optional<Nn_Tensor>:$acc, I64Attr:$experts, TypeAttr:$sum);
  let results = (outs Nn_Tensor:$load);
  let assemblyFormat = "$sel (`into` $acc^)? attr-dict `:` functional-type(operands, results)";
}

def IdentityWeightsOp : Nn_ForwardOp<"identity_weights", [], [
  Nn_Factors<"w: b s k!, #sel: b s k! -> u: b s ; linear ranked">]> {
  let summary = "the sum of a token's weights of choices that have no expert's weights, of numbers `experts` and more";
  let arguments = (ins Nn_Tensor:$w, Nn_Integers:$sel, I64Attr:$experts);
  let results = (outs Nn_Tensor:$u);
  let assemblyFormat = "$w `,` $sel attr-dict `:` functional-type(operands, results)";
}

def IdentityWeightsBwdOp : Nn_KernelOp<"identity_weights_bwd", ["moves"], [
  Nn_Factors<"du: b s, #sel: b s k! -> dw: b s k! ; linear ranked">]> {
  let summary = "gradient of the weights that an identity_weights reads; of other choices 0";
  let arguments = (ins Nn_Tensor:$du, Nn_Integers:$sel, I64Attr:$experts);
  let results = (outs Nn_Tensor:$dw);
  let assemblyFormat = "$du `,` $sel attr-dict `:` functional-type(operands, results)";
}

//===-- Rows of experts -----------------------------------------------------------------------------------------===//

def DispatchOp : Nn_KernelOp<"dispatch", ["moves"], [
  DeclareOpInterfaceMethods<Nn_Differentiable>, Nn_Cheap,
  Nn_Factors<"x: b s c, #places: b s k! -> rows: o s c ; linear ranked">]> {
  let summary = "the rows of experts: for each choice of a token a copy of its row; the derivative of `combine`";
  let description = [{
    With `sections` the rows are [1, those of all sections, width], and those without a choice hold anything.
  }];
  let arguments = (ins Nn_Tensor:$x, Nn_Integers:$places, OptionalAttr<Nn_SectionsAttr>:$sections);
  let results = (outs Nn_Tensor:$rows);
  let assemblyFormat = "$x `,` $places attr-dict `:` functional-type(operands, results)";
}

def CombineOp : Nn_AccOp<"combine", ["flags"], [
  DeclareOpInterfaceMethods<Nn_Differentiable>,
  Nn_Factors<"rows: o s c, #places: b s k!, acc: b s c -> y=acc: b s c ; linear ranked">]> {
  let summary = "the sum of the rows of a token's choices, in the order of the choices; the derivative of `dispatch`";
  let description = "With `sections` the rows are those that `dispatch` makes with them.";
  let arguments = (ins Nn_Tensor:$rows, Nn_Integers:$places, Optional<Nn_Tensor>:$acc,
                       OptionalAttr<Nn_SectionsAttr>:$sections);
  let results = (outs Nn_Tensor:$y);
  let assemblyFormat = "$rows `,` $places (`into` $acc^)? attr-dict `:` functional-type(operands, results)";
}

def PlaceWeightsOp : Nn_ForwardOp<"place_weights", ["moves"], [
  Nn_Factors<"w: b s k!, #places: b s k! -> rows: o s ; linear ranked">]> {
  let summary = "the weights of choices as numbers of their rows, [1, rows of all sections]; of others 0";
  let arguments = (ins Nn_Tensor:$w, Nn_Integers:$places, Nn_SectionsAttr:$sections);
  let results = (outs Nn_Tensor:$rows);
  let assemblyFormat = "$w `,` $places attr-dict `:` functional-type(operands, results)";
}

def TakeWeightsOp : Nn_KernelOp<"take_weights", ["moves"], [
  Nn_Factors<"rows: o s, #places: b s k! -> w: b s k! ; linear ranked">]> {
  let summary = "of numbers of rows those of choices, 0 of those without a row; the derivative of `place_weights`";
  let arguments = (ins Nn_Tensor:$rows, Nn_Integers:$places);
  let results = (outs Nn_Tensor:$w);
  let assemblyFormat = "$rows `,` $places attr-dict `:` functional-type(operands, results)";
}

def ExpertLinearOp : Nn_ForwardOp<"expert_linear", [], [
  DeclareOpInterfaceMethods<Nn_Product, ["expertWeights"]>,
  Nn_Factors<Nn_ExpertsFactors>]> {
  let summary = "the rows of each expert times its matrix of w [experts, in, out]";
  let description = [{
    With counts [sections, experts] x has equal sections, in each of which the rows of the experts lie one behind the
    other from its begin on; what is behind them is neither read nor written. `filled`: the share of x that
    are rows of experts on average.
  }];
  let arguments = (ins Nn_Tensor:$x, Nn_Tensor:$w, Nn_Integers:$counts, Nn_One:$filled);
  let results = (outs Nn_Tensor:$y);
  let assemblyFormat = "$x `,` $w `,` $counts attr-dict `:` functional-type(operands, results)";
}

def ExpertLinearDxOp : Nn_AccOp<"expert_linear_dx", ["flags"], [
  DeclareOpInterfaceMethods<Nn_Product, ["expertWeights"]>,
  Nn_Factors<Nn_ExpertsFactors # " | d(y) w counts acc -> d(x)=acc">]> {
  let summary = "gradient of an expert_linear's input";
  let arguments = (ins Nn_Tensor:$dy, Nn_Tensor:$w, Nn_Integers:$counts, Optional<Nn_Tensor>:$acc,
                       Nn_One:$filled);
  let results = (outs Nn_Tensor:$dx);
  let assemblyFormat = "$dy `,` $w `,` $counts (`into` $acc^)? attr-dict `:` functional-type(operands, results)";
}

def ExpertLinearDwOp : Nn_AccOp<"expert_linear_dw", ["flags"], [
  Nn_WeightGradient, DeclareOpInterfaceMethods<Nn_Product, ["expertWeights"]>,
  Nn_Factors<Nn_ExpertsFactors # " | x d(y) counts acc -> d(w)=acc">]> {
  let summary = "gradient of an expert_linear's weight; an expert that no row came to adds nothing";
  let arguments = (ins Nn_Tensor:$x, Nn_Tensor:$dy, Nn_Integers:$counts, Optional<Nn_Tensor>:$acc,
                       Nn_One:$filled);
  let results = (outs Nn_Tensor:$dw);
  let assemblyFormat = "$x `,` $dy `,` $counts (`into` $acc^)? attr-dict `:` functional-type(operands, results)";
}

def ExpertBiasOp : Nn_ForwardOp<"expert_bias", [], [
  Nn_InPlace,
  Nn_Factors<Nn_ExpertBiasFactors>]> {
  let summary = "the rows of each expert plus its bias of [experts, width]; rows are as in `expert_linear`";
  let arguments = (ins Nn_Tensor:$x, Nn_Tensor:$bias, Nn_Integers:$counts);
  let results = (outs Nn_Tensor:$y);
  let assemblyFormat = "$x `,` $bias `,` $counts attr-dict `:` functional-type(operands, results)";
  let extraClassDeclaration = Nn_Overwrites<"{{0, 0}}">.declaration;
}

def ExpertBiasDwOp : Nn_AccOp<"expert_bias_dw", ["flags"], [
  Nn_WeightGradient,
  Nn_Factors<Nn_ExpertBiasFactors # " | d(y) counts acc -> d(bias)=acc">]> {
  let summary = "gradient of an expert_bias's bias: the column sums of each expert's rows";
  let arguments = (ins Nn_Tensor:$dy, Nn_Integers:$counts, Optional<Nn_Tensor>:$acc);
  let results = (outs Nn_Tensor:$db);
  let assemblyFormat = "$dy `,` $counts (`into` $acc^)? attr-dict `:` functional-type(operands, results)";
}

def ScaleRowsOp : Nn_KernelOp<"scale_rows", ["pointers"], [
  DeclareOpInterfaceMethods<Nn_Differentiable>, Nn_Cheap, Nn_InPlace,
  Nn_Factors<Nn_RowsByNumbersFactors, [
    Nn_When<"getPlaces()", Nn_RowsByChoicesFactors>]>]> {
  let summary = "the row of each choice that has one times its weight; without places row i times number i of w";
  let arguments = (ins Nn_Tensor:$a, Nn_Tensor:$w, Optional<Nn_Integers>:$places);
  let results = (outs Nn_Tensor:$y);
  let assemblyFormat = "$a `,` $w (`,` $places^)? attr-dict `:` functional-type(operands, results)";
  let extraClassDeclaration = Nn_Overwrites<"{{0, 0}}">.declaration;
}

def ScaleRowsBwdOp : Nn_KernelOp<"scale_rows_bwd", ["pointers"], [
  Nn_InPlace,
  Nn_Factors<Nn_RowsByNumbersFactors # " | d(y) a w -> d(a) d(w)", [
    Nn_When<"getPlaces()", Nn_RowsByChoicesFactors # " | d(y) a w places -> d(a) d(w)">]>]> {
  let summary = "gradients of the rows and of the weights of a scale_rows";
  let arguments = (ins Nn_Tensor:$dy, Nn_Tensor:$a, Nn_Tensor:$w, Optional<Nn_Integers>:$places);
  let results = (outs Nn_Tensor:$da, Nn_Tensor:$dw);
  let assemblyFormat = "$dy `,` $a `,` $w (`,` $places^)? attr-dict `:` functional-type(operands, results)";
  let extraClassDeclaration = Nn_Overwrites<"{{0, 0}}">.declaration;
}

#endif // PP_DIALECT_NNEXPERTOPS_TD
