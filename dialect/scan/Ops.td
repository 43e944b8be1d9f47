// What goes along a sequence in order: a causal convolution, and a linear scan, whose state is a matrix for each head.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_DIALECT_SCANOPS_TD
#define PP_DIALECT_SCANOPS_TD

defvar Nn_ConvFactors = "x: b s! c, w: c m! n!, #starts: b s!, state: b k! c -> y: b s! c, state_out: b k! c";
defvar Nn_SharedScanFactors = "q: b s! d!, k: b s! d!, v: b s! (h e!), decay: b s! h, beta: b s! h, #starts: b s!, "
                              "state: b h d! e! -> o: b s! (h e!), state_out: b h d! e! ; heads(h)";
defvar Nn_ScanCall = " | d(o) q k v decay beta starts state d(state_out) -> d(q) d(k) d(v) d(decay) d(beta) d(state)";
defvar Nn_ScanFactors = "q: b s! (g d!), k: b s! (g d!), v: b s! (g r! e!), decay: b s! (g r!), beta: b s! (g r!), "
                        "#starts: b s!, state: b (g r!) d! e! -> o: b s! (g r! e!), state_out: b (g r!) d! e! "
                       "; heads(g r) key_heads(g)";
defvar Nn_ChannelScanFactors = "q: b s! (g d!), k: b s! (g d!), v: b s! (g r! e!), decay: b s! (g r! d!), "
                               "beta: b s! (g r!), #starts: b s!, state: b (g r!) d! e! "
                               "-> o: b s! (g r! e!), state_out: b (g r!) d! e! ; heads(g r) key_heads(g)";

def ConvOp : Nn_KernelOp<"conv", ["params", "flags", "pointers"], [
  AttrSizedOperandSegments, DeclareOpInterfaceMethods<Nn_Differentiable>, Nn_Cheap, Nn_Carries,
  Nn_Factors<Nn_ConvFactors>]> {
  let summary = "a causal convolution of each column with its own taps: depthwise, along whole sequences or slices";
  let signature = "conv(x, w)";
  let formula = "y[t, c] = sum over i < n of w[c, 0, i] x[t - n + 1 + i, c]";
  let note = "a causal convolution of each column with its own taps; w is [columns, 1, n], as checkpoints have it; "
             "rows before the sequence, or before the token's document, are 0";
  let description = [{
    `starts` says where in the sequence the document of each token begins; no tap reaches over it. Of a slice, whose
    first row stands at `offset`, `state` are the n - 1 rows before it, and where it `carries` the second result are the
    last n - 1 rows up to its end, for the next slice.
  }];
  let arguments = (ins Nn_Tensor:$x, Nn_Tensor:$w, Optional<Nn_Integers>:$starts, Optional<Nn_Tensor>:$state,
                       Nn_Offset:$offset, Nn_Flag:$carries);
  let results = (outs Nn_Tensor:$y, Optional<Nn_Tensor>:$state_out);
  let assemblyFormat = [{
    $x `,` $w (`from` $starts^)? (`behind` $state^)? attr-dict `:` functional-type(operands, results)
  }];
}

def ConvDxOp : Nn_KernelOp<"conv_dx", ["params", "flags", "pointers"], [
  AttrSizedOperandSegments,
  Nn_Factors<Nn_ConvFactors # " | d(y) w starts d(state_out) -> d(x) d(state)">]> {
  let summary = "gradient of a convolution's input, and where it `carries` of the n - 1 rows before a slice";
  let description = [{
    The gradients of rows that go on from slice to slice are in the type of sums: the slice before adds its own part of
    them, and rounds them once.
  }];
  let arguments = (ins Nn_Tensor:$dy, Nn_Tensor:$w, Optional<Nn_Integers>:$starts, Optional<Nn_Tensor>:$dstate_out,
                       Nn_Offset:$offset, Nn_Flag:$carries);
  let results = (outs Nn_Tensor:$dx, Optional<Nn_Tensor>:$dstate);
  let assemblyFormat = [{
    $dy `,` $w (`from` $starts^)? (`behind` $dstate_out^)? attr-dict `:` functional-type(operands, results)
  }];
}

def ConvDwOp : Nn_AccOp<"conv_dw", ["params", "flags", "pointers"], [
  Nn_WeightGradient, AttrSizedOperandSegments,
  Nn_Factors<Nn_ConvFactors # " | x d(y) starts state acc -> d(w)=acc">]> {
  let summary = "gradient of a convolution's taps, of which each column has `taps`";
  let arguments = (ins Nn_Tensor:$x, Nn_Tensor:$dy, Optional<Nn_Integers>:$starts, Optional<Nn_Tensor>:$state,
                       Optional<Nn_Tensor>:$acc, I64Attr:$taps, Nn_Offset:$offset);
  let results = (outs Nn_Tensor:$dw);
  let assemblyFormat = [{
    $x `,` $dy (`from` $starts^)? (`behind` $state^)? (`into` $acc^)? attr-dict `:` functional-type(operands, results)
  }];
}

def ScanOp : Nn_ForwardOp<"scan", ["params", "flags", "pointers"], [
  AttrSizedOperandSegments, Nn_Carries,
  Nn_Factors<Nn_ScanFactors, [
    Nn_When<"getShared()", Nn_SharedScanFactors>, Nn_When<"getChannels()", Nn_ChannelScanFactors>]>]> {
  let summary = "a linear scan along the sequence: each head's state is a matrix that decays, and gets a product k u^T";
  let signature = "scan(q, k, v, decay, beta, heads = .., key_heads = heads, delta = false, "
                  "channels = false)";
  let formula = "S_t = exp(decay_t) S_(t-1) + k_t u_t^T, o_t = S_t^T q_t, u = beta v";
  let note = "of each head of v; q and k have key_heads heads, each read by heads / key_heads heads of v; decay, which "
             "is at most 0, and beta are formulas with a number for each head of a token, as of_heads(x, heads) makes "
             "them, and stay in the type of sums; with `delta` the rule of gated DeltaNet: u_t = beta_t (v_t - "
             "exp(decay_t) S_(t-1)^T k_t); with `channels` decay has a number for each column of k in each head of v, "
             "and exp(decay_t) multiplies the rows of S; S is 0 before the sequence, and before each document";
  let description = [{
    `decay` and `beta` are [batch, length, heads] in the type of sums. `key_heads` heads of q and k, of one width, are
    read by heads / key_heads heads of v each; 0: as many as heads. Without `delta` and with beta = dt, q = C and k = B
    it is the state-space duality of Mamba 2 (Dao and Gu 2024); with `delta` it is the gated delta rule (Yang et al.
    2024). `starts` says where in the sequence the document of each token begins. `shared`: the model has one head of q
    and k, which the heads of all devices read. With `channels` `decay` is [batch, length, heads x width of k]: each row
    of a state has a decay of its own, as Kimi Linear has it (Kimi Team 2025).

    Of a slice, whose first row stands at `offset`, `state` is S before it, [batch, heads, width of k, width of v] in
    the type of sums; absent, it is 0. Where it `carries` the second result is S behind it, for the next slice.
  }];
  let arguments = (ins Nn_Tensor:$q, Nn_Tensor:$k, Nn_Tensor:$v, Nn_Tensor:$decay, Nn_Tensor:$beta,
                       Optional<Nn_Integers>:$starts, Optional<Nn_Tensor>:$state, I64Attr:$heads, Nn_Offset:$key_heads,
                       Nn_Flag:$delta, Nn_Flag:$shared, Nn_Offset:$offset, Nn_Flag:$carries, Nn_Flag:$channels);
  let results = (outs Nn_Tensor:$o, Optional<Nn_Tensor>:$state_out);
  let assemblyFormat = [{
    $q `,` $k `,` $v `,` $decay `,` $beta (`from` $starts^)? (`behind` $state^)? attr-dict `:`
    functional-type(operands, results)
  }];
}

def ScanBwdOp : Nn_KernelOp<"scan_bwd", ["params", "flags", "pointers"], [
  AttrSizedOperandSegments,
  Nn_Factors<!strconcat(Nn_ScanFactors, Nn_ScanCall), [
    Nn_When<"getShared()", !strconcat(Nn_SharedScanFactors, Nn_ScanCall)>,
    Nn_When<"getChannels()", !strconcat(Nn_ChannelScanFactors, Nn_ScanCall)>]>]> {
  let summary = "gradients of all that a scan reads; it makes the states inside a slice again";
  let description = [{
    Of a slice `dstate_out` is the gradient of the state behind it; absent, it is 0. With a `state` before it, the last
    result is its gradient.
  }];
  let arguments = (ins Nn_Tensor:$dout, Nn_Tensor:$q, Nn_Tensor:$k, Nn_Tensor:$v, Nn_Tensor:$decay, Nn_Tensor:$beta,
                       Optional<Nn_Integers>:$starts, Optional<Nn_Tensor>:$state, Optional<Nn_Tensor>:$dstate_out,
                       I64Attr:$heads, Nn_Offset:$key_heads, Nn_Flag:$delta, Nn_Flag:$shared, Nn_Offset:$offset,
                       Nn_Flag:$channels);
  let results = (outs Nn_Tensor:$dq, Nn_Tensor:$dk, Nn_Tensor:$dv, Nn_Tensor:$ddecay, Nn_Tensor:$dbeta,
                      Optional<Nn_Tensor>:$dstate);
  let assemblyFormat = [{
    $dout `,` $q `,` $k `,` $v `,` $decay `,` $beta (`from` $starts^)? (`behind` $state^)? (`with` $dstate_out^)?
    attr-dict `:` functional-type(operands, results)
  }];
}

#endif // PP_DIALECT_SCANOPS_TD
