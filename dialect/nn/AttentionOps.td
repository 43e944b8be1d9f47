// Attention: whole or over chunks of keys, partial results and their merge, gradients of each part, copies of heads.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_DIALECT_NNATTENTIONOPS_TD
#define PP_DIALECT_NNATTENTIONOPS_TD

/// First positions of chunks.
def Nn_Offsets : OptionalAttr<DenseI64ArrayAttr>;
/// k and v of each chunk in turn; then, where rows hold several documents, where the document of each query begins;
/// then, with dropout, the number of each query's sequence in the run.
def Nn_Lists : Variadic<AnyTypeOf<[Nn_Tensor, Nn_Integers]>>;
def Nn_KeyLists { string declaration = [{
    /// k and v of each chunk in turn.
    ::mlir::OperandRange getKv();
    /// Where in the sequence each query's document begins; null where a row is one document.
    ::mlir::Value getStarts();
    /// The number of each query's sequence in the run; null without dropout.
    ::mlir::Value getRows();
  }]; }
def Nn_Dropout : OptionalAttr<Nn_DropoutAttr>;

def AttentionOp : Nn_ForwardOp<"attention", ["params", "flags", "lists", "varying", "variedParams"], [
  Nn_Attends,
  Nn_Factors<Nn_AttentionFactors, [
    Nn_When<"getPacked()", Nn_PackedAttentionFactors>,
    Nn_When<"getDropoutAttr()", Nn_DroppedAttentionFactors>]>]> {
  let summary = "softmax(q k^T / sqrt(d)) v of each head over chunks of keys; keeps the log-sum-exp of each row";
  let signature = "attention(q, k, v, heads = .., kv_heads = heads, causal = .., window = 0, scale = 1 / sqrt(d), "
                  "softcap = 0.0, dropout = 0.0)";
  let formula = "o = softmax(q k^T / sqrt(d)) v, d = width / heads";
  let note = "of each head; k and v have kv_heads heads, each read by heads / kv_heads heads of q; `causal`: a query "
             "sees the keys up to its own position, with a `window` of n the last n of them; a `scale` replaces "
             "1 / sqrt(d), and a `softcap` of c makes c tanh(x / c) of every score x; `dropout` is a rate, as that of "
             "`dropout(..)`, and meets the softmax's results";
  let description = [{
    `lists` has k and v of each chunk in turn: one chunk for a whole sequence, for a slice those of the slices before it
    and its own. A tensor of integers behind them, [b, l], says where in the sequence the document of each query begins:
    a query sees no key before it. `kv_heads` heads of k and v, each read by heads / kv_heads heads of q; 0: as many as
    heads.

    `causal`: a query sees the keys up to its own position. The first query stands at `offset`, the first key of each
    chunk at its place in `kv_offsets`; absent, the chunks stand one after the other from 0 on. A query that sees no key
    has o = 0 and a log-sum-exp of -inf. With a `window` of n keys, a query sees those from n - 1 before its own
    position on; 0: all. `scale` is 1 / sqrt(d) where it is 0; a `softcap` of 0 leaves scores as they are.

    With `dropout` the weight of query i and key j of a head h, both counted from the sequence's begin, is 0 or grows by
    1 / (1 - rate), as element (h * length + i) * length + j of a sequence does in `nn.dropout`, before it multiplies v;
    the log-sum-exp is that of all keys. h counts the heads of all devices. The last tensor of `lists` are the numbers
    of the queries' sequences, `rows`.

    Queries that are two runs of each sequence, or slice (`zigzag`), see keys of whole ones.

    `packed`: q, k and v are one tensor, the columns of q before those of k before those of v, and stand for all three
    operands. The sequence is whole then, and its queries are one run.

    An attention of some of the chunks is a part; `attention_merge` joins parts.
  }];
  let arguments = (ins Nn_Tensor:$q, Nn_Lists:$lists, I64Attr:$heads, Nn_Offset:$kv_heads, Nn_Flag:$causal,
                       Nn_Offset:$offset, Nn_Offsets:$kv_offsets, Nn_Offset:$window, Nn_Number:$scale,
                       Nn_Number:$softcap, Nn_Dropout:$dropout, Nn_Zigzag:$zigzag, Nn_Flag:$packed);
  let results = (outs Nn_Tensor:$o, Nn_Tensor:$lse);
  let assemblyFormat = "$q `,` $lists attr-dict `:` functional-type(operands, results)";
  let extraClassDeclaration = Nn_KeyLists.declaration;
}

def AttentionMergeOp : Nn_ForwardOp<"attention_merge", ["lists"], [
  Nn_InPlace,
  Nn_Factors<"[o: b s (h d!), lse: b h s] -> y: b s (h d!), lse_y: b h s">]> {
  let summary = "o and log-sum-exp of all keys together from those of parts: o0, lse0, o1, lse1, ..";
  let description = [{
    lse = log sum e^lse_a and o = sum e^(lse_a - lse) o_a. The parts that this function computes get their gradients
    here, from the merged lse. The other parts get them in the functions that computed them.
  }];
  let arguments = (ins Variadic<Nn_Tensor>:$parts, I64Attr:$heads);
  let results = (outs Nn_Tensor:$o, Nn_Tensor:$lse);
  let assemblyFormat = "$parts attr-dict `:` functional-type(operands, results)";
  let extraClassDeclaration = Nn_Overwrites<"{{0, 0}, {1, 1}}">.declaration;
}

def SinkOp : Nn_ForwardOp<"sink", [], [
  Nn_InPlace,
  Nn_Factors<Nn_SinkFactors>]> {
  let summary = "o and log-sum-exp of an attention whose softmax has one score more, `s` of each head, without a value";
  let signature = "sink(o, s)";
  let formula = "o = softmax([q k^T / sqrt(d), s])[.., : keys] v";
  let note = "as `sink(attention(..), s)` only; s has a number for each head, a score that every query sees";
  let description = [{
    lse' = log(e^lse + e^s) and o' = e^(lse - lse') o. The attention, or the parts of it that a merge joins, get their
    gradients here, from lse' and o': these are what attention_bwd takes for all that a query saw.
  }];
  let arguments = (ins Nn_Tensor:$o, Nn_Tensor:$lse, Nn_Tensor:$s);
  let results = (outs Nn_Tensor:$y, Nn_Tensor:$lse_y);
  let assemblyFormat = "$o `,` $lse `,` $s attr-dict `:` functional-type(operands, results)";
  let extraClassDeclaration = Nn_Overwrites<"{{0, 0}, {1, 1}}">.declaration;
}

def SinkBwdOp : Nn_KernelOp<"sink_bwd", [], [
  Nn_Factors<Nn_SinkFactors # " | scores lse_y d(lse_y) -> d(scores)">]> {
  let summary = "gradient of a sink's scores, of this unit alone (docs/derivatives.md R3): -sum e^(s - lse) delta";
  let arguments = (ins Nn_Tensor:$s, Nn_Tensor:$lse, Nn_Tensor:$delta);
  let results = (outs Nn_Tensor:$ds);
  let assemblyFormat = "$s `,` $lse `,` $delta attr-dict `:` functional-type(operands, results)";
}

def AttentionDeltaOp : Nn_KernelOp<"attention_delta", [], [
  Nn_Factors<"o: b s (h d!) -> lse: b h s | d(o) o -> d(lse)">]> {
  let summary = "sums of dout times o over each head's row: with lse, all that a part's gradients need of the whole";
  let arguments = (ins Nn_Tensor:$dout, Nn_Tensor:$o, I64Attr:$heads);
  let results = (outs Nn_Tensor:$delta);
  let assemblyFormat = "$dout `,` $o attr-dict `:` functional-type(operands, results)";
}

def AttentionBwdOp : Nn_KernelOp<"attention_bwd", ["params", "flags", "lists", "varying", "variedParams"], [
  AttrSizedOperandSegments, DeclareOpInterfaceMethods<Nn_InPlace, ["getRequiredTies"]>, Nn_Attends,
  Nn_Factors<!strconcat(Nn_AttentionFactors, Nn_AttentionCall), [
    Nn_When<"getPacked()", !strconcat(Nn_PackedAttentionFactors, Nn_AttentionCall)>,
    Nn_When<"getDropoutAttr()", !strconcat(Nn_DroppedAttentionFactors, Nn_AttentionCall)>]>]> {
  let summary = "gradients of an attention or a part of one: dq, and dk, dv of each chunk";
  let description = [{
    `lse` and `delta` are those of all chunks of the query, which may be more than these: gradients of parts add. dq is
    added to `into`, a sum of its type. `sums`: dk and dv have the type of sums; they are added to `into_kv`, if given.
    `packed`: as the attention has it, and dq is the gradient of all three.
  }];
  let arguments = (ins Nn_Tensor:$dout, Nn_Tensor:$q, Nn_Tensor:$lse, Nn_Tensor:$delta, Nn_Lists:$lists,
                       Optional<Nn_Tensor>:$acc, Variadic<Nn_Tensor>:$kv_acc, I64Attr:$heads, Nn_Offset:$kv_heads,
                       Nn_Flag:$causal, Nn_Flag:$sums, Nn_Offset:$offset, Nn_Offsets:$kv_offsets,
                       Nn_Offset:$window, Nn_Number:$scale, Nn_Number:$softcap, Nn_Dropout:$dropout,
                       Nn_Zigzag:$zigzag, Nn_Flag:$packed);
  let results = (outs Nn_Tensor:$dq, Variadic<Nn_Tensor>:$dkv);
  let assemblyFormat = [{
    $dout `,` $q `,` $lse `,` $delta `,` $lists (`into` $acc^)? (`into_kv` $kv_acc^)? attr-dict
    `:` functional-type(operands, results)
  }];
  let extraClassDeclaration = Nn_KeyLists.declaration;
}

def RepeatHeadsOp : Nn_ForwardOp<"repeat_heads", ["moves"], [
  Nn_Factors<Nn_HeadsFactors>]> {
  let summary = "each of `heads` heads of x `times` times, copies side by side";
  let description = [{
    It is for devices that exchange heads when there are fewer heads of keys than devices. Each device then gets the
    head that its queries read. The gradient of a head is the sum of the gradients of its copies, `sum_heads`.
  }];
  let arguments = (ins Nn_Tensor:$x, I64Attr:$heads, I64Attr:$times);
  let results = (outs Nn_Tensor:$y);
  let assemblyFormat = "$x attr-dict `:` functional-type(operands, results)";
}

def SumHeadsOp : Nn_KernelOp<"sum_heads", [], [
  Nn_Factors<Nn_HeadsFactors # " | d(y) -> d(x)">]> {
  let summary = "for each of `heads` heads the sum of its `times` copies side by side in x, rounded once";
  let arguments = (ins Nn_Tensor:$x, I64Attr:$heads, I64Attr:$times);
  let results = (outs Nn_Tensor:$y);
  let assemblyFormat = "$x attr-dict `:` functional-type(operands, results)";
}

#endif // PP_DIALECT_NNATTENTIONOPS_TD
