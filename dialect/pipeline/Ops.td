// Operations of the `pipeline` dialect: the actions a schedule emits, the global step, and the programs of the ranks.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_DIALECT_PIPELINEOPS_TD
#define PP_DIALECT_PIPELINEOPS_TD

include "dialect/pipeline/Attrs.td"
include "mlir/IR/OpAsmInterface.td"
include "mlir/IR/SymbolInterfaces.td"
include "mlir/Interfaces/SideEffectInterfaces.td"

class Pipeline_Op<string mnemonic, list<Trait> traits = []> : Op<Pipeline_Dialect, mnemonic, traits>;

/// Results print with names that say what they are: `%f_s2_m3_act`, `%weight_s0_r1`.
def Named : DeclareOpInterfaceMethods<OpAsmOpInterface, ["getAsmResultNames"]>;

//===-- The program and its pieces ------------------------------------------------------------------------------===//

def ProgramOp : Pipeline_Op<"program", [IsolatedFromAbove, NoTerminator, SingleBlock, Symbol, SymbolTable]> {
  let summary = "one training step of a schedule, at one of the three levels";
  let description = [{
    `train` holds what the trainer needs and the compiler does not: {model, schedule, batch, sequence, vocab, precision,
    gradients, optimizer = {..}}. `slices` is 0 where the schedule has no slices.
  }];
  let arguments = (ins SymbolNameAttr:$sym_name, I64Attr:$ranks, I64Attr:$microbatches, I64Attr:$slices,
                       DictionaryAttr:$train);
  let regions = (region SizedRegion<1>:$body);
  let assemblyFormat = [{
    $sym_name `ranks` $ranks `microbatches` $microbatches `slices` $slices attr-dict-with-keyword $body
  }];
}

def PieceOp : Pipeline_Op<"piece", [HasParent<"ProgramOp">, Symbol]> {
  let summary = "a stage or part of the model: what it holds, where its units run, where its weights live";
  let description = [{
    `parts` lists [part function, layer] in model order, layer -1 for embed and head. `at` is where units run when no
    rank is current (absent: nowhere by default). `homes` are the places that hold the current weights when a step
    begins and again when it ends; `owner` holds the optimizer state and runs U. Pieces stand in model order.
    `recompute` names the model parts that R runs again; absent, R runs all of the piece.
    `weights` and `bodies` are filled in by derive-tasks. Pieces with equal `bodies` are of one class and share their
    functions: those whose `#pipeline.body` names that class.
  }];
  let arguments = (ins SymbolNameAttr:$sym_name, Pipeline_CoordAttr:$coord, ArrayAttr:$parts,
                       OptionalAttr<Pipeline_PlaceAttr>:$at, OptionalAttr<Pipeline_PlaceAttr>:$homes,
                       OptionalAttr<Pipeline_PlaceAttr>:$owner, OptionalAttr<ArrayAttr>:$recompute,
                       OptionalAttr<ArrayAttr>:$weights,
                       OptionalAttr<StrAttr>:$bodies);
  let assemblyFormat = [{
    $sym_name $coord `parts` $parts (`at` $at^)? (`homes` $homes^)? (`owner` $owner^)? (`recompute` $recompute^)?
    (`bodies` $bodies^)? attr-dict
  }];
}

//===-- Level 1: the actions of the schedule --------------------------------------------------------------------===//

def UnitOp : Pipeline_Op<"unit"> {
  let summary = "a unit of work, emitted by the schedule";
  let description = [{ Anchored on the ranks it runs on: units and transfers anchored on one rank keep their order. }];
  let arguments = (ins Pipeline_UnitAttr:$unit, DenseI64ArrayAttr:$ranks);
  let assemblyFormat = "$unit `on` $ranks attr-dict";
}

def TransferOp : Pipeline_Op<"transfer"> {
  let summary = "a thing changes place, emitted by the schedule";
  let description = [{
    `from` absent: all ranks that hold a share (grad). `anchors` are the ranks in whose order this action stands.
  }];
  let arguments = (ins Pipeline_ThingAttr:$thing, OptionalAttr<Pipeline_PlaceAttr>:$from, Pipeline_PlaceAttr:$to,
                       DenseI64ArrayAttr:$anchors);
  let assemblyFormat = "$thing (`from` $from^)? `to` $to `anchors` $anchors attr-dict";
}

def TogetherOp : Pipeline_Op<"together", [NoTerminator, SingleBlock]> {
  let summary = "actions that go as one: transfers posted as one group, all reads before all writes";
  let regions = (region SizedRegion<1>:$body);
  let assemblyFormat = "attr-dict-with-keyword $body";
}

def AttendOp : Pipeline_Op<"attend"> {
  let summary = "in the attentions of a unit of the same `together`, these slices of keys are attended on this rank";
  let arguments = (ins Pipeline_UnitAttr:$unit, DenseI64ArrayAttr:$slices, I64Attr:$rank);
  let assemblyFormat = "$unit `over` $slices `on` $rank attr-dict";
}

def LimitOp : Pipeline_Op<"limit"> {
  let summary = "at most this many values of a role alive at once on each of the ranks";
  let arguments = (ins Pipeline_Role:$role, I64Attr:$count, DenseI64ArrayAttr:$ranks);
  let assemblyFormat = "$role $count `on` $ranks attr-dict";
}

//===-- Level 2: the step in one global order -------------------------------------------------------------------===//

def InputOp : Pipeline_Op<"input", [Named]> {
  let summary = "a value that is there when the step begins: weights, optimizer state, tokens, targets";
  let arguments = (ins Pipeline_ThingAttr:$thing, OptionalAttr<StrAttr>:$data);
  let results = (outs Pipeline_ValType:$value);
  let assemblyFormat = "$thing ($data^)? `:` type($value) attr-dict";
}

def OutputOp : Pipeline_Op<"output"> {
  let summary = "a value that must be there when the step ends, where `input` of the same thing and rank had it";
  let description = [{
    For a weight or optimizer state: the new version, in the slot of the input. For a grad: the sum that U used, kept
    for `--grads`. For a stat: a loss or the squared gradient norm, read by the trainer.
  }];
  let arguments = (ins Pipeline_ThingAttr:$thing, Pipeline_ValType:$value);
  let assemblyFormat = "$thing $value `:` type($value) attr-dict";
}

def TaskOp : Pipeline_Op<"task", [Named]> {
  let summary = "one unit: calls its body on values that live on its ranks";
  let description = [{
    `callee` is a function whose `pipeline.inputs` and `pipeline.results` group its tensors into the payloads of the
    operands and results. `ties[i]` is the operand whose slot result i takes over (in place), -1 for none.
  }];
  let arguments = (ins FlatSymbolRefAttr:$callee, Pipeline_UnitAttr:$unit, DenseI64ArrayAttr:$ranks,
                       DenseI64ArrayAttr:$ties, Variadic<Pipeline_ValType>:$inputs);
  let results = (outs Variadic<Pipeline_ValType>:$results);
  let assemblyFormat = [{
    $callee $unit `on` $ranks `(` $inputs `)` `ties` $ties attr-dict `:` functional-type($inputs, $results)
  }];
  let hasVerifier = 1;
}

def MoveOp : Pipeline_Op<"move", [Named]> {
  let summary = "a value changes its placement; the verb is read off the two types";
  let description = [{
    Posts the message; the value is there after `wait`. `group` numbers the moves of one `together`.
  }];
  let arguments = (ins Pipeline_ThingAttr:$thing, Pipeline_ValType:$value, OptionalAttr<I64Attr>:$group);
  let results = (outs Pipeline_FutureType:$future);
  let assemblyFormat = "$thing $value (`group` $group^)? attr-dict `:` type($value) `->` type($future)";
  let hasVerifier = 1;
  let extraClassDeclaration = [{
    /// The verb of the two places; nullopt where no single message does it.
    std::optional<Verb> getVerb();
    ValType getTarget();
  }];
}

def WaitOp : Pipeline_Op<"wait", [Named]> {
  let summary = "the value of a move, there from here on";
  let description = [{
    Of what comes to several ranks each may wait for its own copy, or its own shard: the value then is on that rank
    alone.
  }];
  let arguments = (ins Pipeline_FutureType:$future);
  let results = (outs Pipeline_ValType:$value);
  let assemblyFormat = "$future attr-dict `:` type($future) `->` type($value)";
  let hasVerifier = 1;
}

def JoinOp : Pipeline_Op<"join"> {
  let summary = "values on single ranks seen as one value of the group: its shards or its partial sums";
  let arguments = (ins Variadic<Pipeline_ValType>:$values);
  let results = (outs Pipeline_ValType:$value);
  let assemblyFormat = "$values attr-dict `:` type($values) `->` type($value)";
  let hasVerifier = 1;
}

def SplitOp : Pipeline_Op<"split"> {
  let summary = "what one rank holds of a group's value; the inverse of `join`";
  let arguments = (ins Pipeline_ValType:$value);
  let results = (outs Pipeline_ValType:$own);
  let assemblyFormat = "$value attr-dict `:` type($value) `->` type($own)";
  let hasVerifier = 1;
}

//===-- Level 3: the programs of the ranks ----------------------------------------------------------------------===//

def RankOp : Pipeline_Op<"rank", [HasParent<"ProgramOp">, NoTerminator, SingleBlock]> {
  let summary = "the program of one rank: slots, launches, posts, completes, in order";
  let arguments = (ins I64Attr:$rank, OptionalAttr<I64Attr>:$arena_bytes, OptionalAttr<I64Attr>:$host_bytes);
  let regions = (region SizedRegion<1>:$body);
  let assemblyFormat = "$rank (`arena` $arena_bytes^)? (`host` $host_bytes^)? attr-dict-with-keyword $body";
}

def SlotOp : Pipeline_Op<"slot", [Named]> {
  let summary = "a place in the rank's arena, or in its host memory";
  let description = [{
    `binding` says what the trainer finds in it before or after the step: {kind = "weight" | "opt" | "grad", piece,
    save}, {kind = "tokens" | "targets" | "source" | "loss", microbatch, slice, first} (the last two where there are
    slices: its number and first token), {kind = "norm"}; absent for what lives inside the step. `offset` is given by
    plan-slots. `label` names the value in messages. `host`: it lies in the rank's second arena, where only messages of
    the rank to itself go. `places`, instead of `offset`: its tensors lie apart, each at an offset of its own; bodies
    get an address for each, but no message can take it.
  }];
  let arguments = (ins Pipeline_Role:$role, StrAttr:$label, OptionalAttr<I64Attr>:$offset,
                       OptionalAttr<DenseI64ArrayAttr>:$places, OptionalAttr<DictionaryAttr>:$binding, UnitAttr:$host);
  let results = (outs Pipeline_SlotType:$slot);
  let assemblyFormat = [{
    $role $label (`host` $host^)? (`offset` $offset^)? (`places` $places^)? (`binding` $binding^)? attr-dict
    `:` type($slot)
  }];
  let hasVerifier = 1;
  let extraClassDeclaration = [{
    /// Where each of its tensors lies; from 0 on before slots are planned.
    ::llvm::SmallVector<int64_t> tensorOffsets();
  }];
}

def LaunchOp : Pipeline_Op<"launch", [AttrSizedOperandSegments]> {
  let summary = "runs a task body on slots";
  let description = [{
    `inputs` are the slots of the body's input groups, `results` those of its result groups that are not tied to an
    input; `scratch` is memory for this launch alone, of the body's `pipeline.scratch_bytes`. Launches and tasks of the
    units of one `together` share the number `pipeline.joint`. `handed` is the body's `pipeline.handed`: tensors of
    results that lie where tensors of inputs lay, which are gone with this launch; four numbers for each: slot and
    tensor of the one, slot and tensor of the other, slots counted over inputs and results.
  }];
  let arguments = (ins FlatSymbolRefAttr:$callee, Pipeline_UnitAttr:$unit, Variadic<Pipeline_SlotType>:$inputs,
                       Variadic<Pipeline_SlotType>:$results, Optional<Pipeline_SlotType>:$scratch,
                       OptionalAttr<DenseI64ArrayAttr>:$handed);
  let assemblyFormat = [{
    $callee $unit `(` $inputs `)` `->` `(` $results `)` (`scratch` $scratch^)? (`handed` $handed^)? attr-dict
    `:` functional-type($inputs, $results) (`scratch` type($scratch)^)?
  }];
  let hasVerifier = 1;
  let extraClassDeclaration = [{
    /// The slots of the body's signature: inputs, then results.
    ::llvm::SmallVector<::mlir::Value> slots();
  }];
}

def PostOp : Pipeline_Op<"post"> {
  let summary = "one rank's side of a message; does not block";
  let description = [{
    `channel` orders messages between two ranks: the k-th send on a channel meets the k-th receive. A message of a rank
    to itself goes to its host memory or back. For a collective `peers` is the whole group, in ascending order; it works
    in place. all_reduce: every slot gets the sum. reduce: the slot of `root` gets it. broadcast: every other slot gets
    what that of `root` holds. all_gather and reduce_scatter have the rank's shard beside the whole: bytes `cuts[k]` to
    `cuts[k + 1]` of it for the k-th of n members, then `cuts[n + k]` to `cuts[n + k + 1]` where tensors are cut for
    themselves, and so on. all_gather: every slot gets what the members' `shard`s hold, each in its place.
    reduce_scatter: every `shard` gets its range of the slots' sum.
  }];
  let arguments = (ins Pipeline_PostKind:$kind, Pipeline_ThingAttr:$thing, Pipeline_SlotType:$slot,
                       Optional<Pipeline_SlotType>:$shard, DenseI64ArrayAttr:$peers, OptionalAttr<I64Attr>:$root,
                       OptionalAttr<DenseI64ArrayAttr>:$cuts, OptionalAttr<I64Attr>:$channel,
                       OptionalAttr<I64Attr>:$group);
  let results = (outs Pipeline_RequestType:$request);
  let assemblyFormat = [{
    $kind $thing $slot (`shard` $shard^)? `with` $peers (`root` $root^)? (`cuts` $cuts^)? (`channel` $channel^)?
    (`group` $group^)? attr-dict `:` type($slot) (`shard` type($shard)^)?
  }];
  let hasVerifier = 1;
  let extraClassDeclaration = [{
    bool isCollective() { return getKind() != PostKind::send && getKind() != PostKind::receive; }
    /// The rank whose program it stands in.
    int64_t getSelf();
    /// The members of a collective as a ring: of a broadcast from its root on, of a reduce up to it.
    ::llvm::SmallVector<int64_t> ringOrder();
    /// What a collective makes: `sum`, `broadcast` or `gather`.
    ::llvm::StringRef jointName();
    /// The slot of which the message takes what it holds when it is posted; null if none.
    ::mlir::Value readSlot();
    /// The slot that holds something new once it is complete, maybe the same one; null if none.
    ::mlir::Value writtenSlot();
    /// One end of a rank's message to itself: to its host memory, or back.
    bool isHost();
  }];
}

def CompleteOp : Pipeline_Op<"complete"> {
  let summary = "blocks until the message is done; its slot may be written (send) or read (receive) from here on";
  let arguments = (ins Pipeline_RequestType:$request);
  let assemblyFormat = "$request attr-dict";
}

#endif // PP_DIALECT_PIPELINEOPS_TD
