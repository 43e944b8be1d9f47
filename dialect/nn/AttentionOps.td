// Attention: whole or over chunks of keys, partial results and their merge, and the gradients of each part.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_DIALECT_NNATTENTIONOPS_TD
#define PP_DIALECT_NNATTENTIONOPS_TD

/// First positions of chunks.
def Nn_Offsets : OptionalAttr<DenseI64ArrayAttr>;

def AttentionOp : Nn_ForwardOp<"attention", ["flags", "lists"]> {
  let summary = "softmax(q k^T / sqrt(d)) v of each head over chunks of keys; keeps the log-sum-exp of each row";
  let signature = "attention(q, k, v, heads = .., kv_heads = heads, causal = ..)";
  let formula = "o = softmax(q k^T / sqrt(d)) v, d = width / heads";
  let note = "of each head; k and v have kv_heads heads, each read by heads / kv_heads heads of q; `causal`: a query "
             "sees the keys up to its own position";
  let description = [{
    `kv` is k and v of each chunk in turn: one chunk for a whole sequence, for a slice those of the slices before it and
    its own. `kv_heads` heads of k and v, each read by heads / kv_heads heads of q; 0: as many as heads.

    `causal`: a query sees the keys up to its own position. The first query stands at `offset`, the first key of each
    chunk at its place in `kv_offsets`; absent, the chunks stand one after the other from 0 on. A query that sees no key
    has o = 0 and a log-sum-exp of -inf.

    An attention of some of the chunks is a part; `attention_merge` joins parts.
  }];
  let arguments = (ins Nn_Tensor:$q, Variadic<Nn_Tensor>:$kv, I64Attr:$heads, Nn_Offset:$kv_heads, Nn_Flag:$causal,
                       Nn_Offset:$offset, Nn_Offsets:$kv_offsets);
  let results = (outs Nn_Tensor:$o, Nn_Tensor:$lse);
  let assemblyFormat = "$q `,` $kv attr-dict `:` functional-type(operands, results)";
}

def AttentionMergeOp : Nn_ForwardOp<"attention_merge", ["lists"], [Nn_InPlace]> {
  let summary = "o and log-sum-exp of all keys together from those of parts: o0, lse0, o1, lse1, ..";
  let description = [{
    lse = log sum e^lse_a and o = sum e^(lse_a - lse) o_a. Parts that are attentions of this function get their
    gradients here, from the merged lse; parts from elsewhere get them where they were made.
  }];
  let arguments = (ins Variadic<Nn_Tensor>:$parts, I64Attr:$heads);
  let results = (outs Nn_Tensor:$o, Nn_Tensor:$lse);
  let assemblyFormat = "$parts attr-dict `:` functional-type(operands, results)";
  let extraClassDeclaration = Nn_Overwrites<"{{0, 0}, {1, 1}}">.declaration;
}

def AttentionDeltaOp : Nn_KernelOp<"attention_delta"> {
  let summary = "sums of dout times o over each head's row: with lse, all that a part's gradients need of the whole";
  let arguments = (ins Nn_Tensor:$dout, Nn_Tensor:$o, I64Attr:$heads);
  let results = (outs Nn_Tensor:$delta);
  let assemblyFormat = "$dout `,` $o attr-dict `:` functional-type(operands, results)";
}

def AttentionBwdOp : Nn_KernelOp<"attention_bwd", ["flags", "lists"],
                                 [AttrSizedOperandSegments,
                                  DeclareOpInterfaceMethods<Nn_InPlace, ["getRequiredTies"]>]> {
  let summary = "gradients of an attention or a part of one: dq, and dk, dv of each chunk";
  let description = [{
    `lse` and `delta` are of all chunks together, these or more: gradients of parts add. dq goes on `into` a sum of its
    type. `sums`: dk and dv are in the type of sums, and go on `into_kv` sums, if given.
  }];
  let arguments = (ins Nn_Tensor:$dout, Nn_Tensor:$q, Nn_Tensor:$lse, Nn_Tensor:$delta, Variadic<Nn_Tensor>:$kv,
                       Optional<Nn_Tensor>:$acc, Variadic<Nn_Tensor>:$kv_acc, I64Attr:$heads, Nn_Offset:$kv_heads,
                       Nn_Flag:$causal, Nn_Flag:$sums, Nn_Offset:$offset, Nn_Offsets:$kv_offsets);
  let results = (outs Nn_Tensor:$dq, Variadic<Nn_Tensor>:$dkv);
  let assemblyFormat = [{
    $dout `,` $q `,` $lse `,` $delta `,` $kv (`into` $acc^)? (`into_kv` $kv_acc^)? attr-dict
    `:` functional-type(operands, results)
  }];
}

#endif // PP_DIALECT_NNATTENTIONOPS_TD
