// Operations of the `pipeline` dialect: the actions a schedule emits, the global step, and the programs of the ranks.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_DIALECT_PIPELINEOPS_TD
#define PP_DIALECT_PIPELINEOPS_TD

include "dialect/pipeline/Attrs.td"
include "mlir/IR/OpAsmInterface.td"
include "mlir/IR/SymbolInterfaces.td"
include "mlir/Interfaces/SideEffectInterfaces.td"

class Pipeline_Op<string mnemonic, list<Trait> traits = []> : Op<Pipeline_Dialect, mnemonic, traits>;

/// An op of one level: a program has ops of one level only, and a pass refuses a program of another level than its own.
class Pipeline_Level<string trait> : NativeOpTrait<trait> { let cppNamespace = "::pp::pipeline"; }
class Pipeline_ActionOp<string mnemonic, list<Trait> traits = [ParentOneOf<["ProgramOp", "TogetherOp"]>]>
    : Pipeline_Op<mnemonic, !listconcat([Pipeline_Level<"OfActions">], traits)>;
class Pipeline_StepOp<string mnemonic, list<Trait> traits = []>
    : Pipeline_Op<mnemonic, !listconcat([Pipeline_Level<"OfStep">, HasParent<"ProgramOp">], traits)>;
/// An op inside the program of a rank.
class Pipeline_RankOp<string mnemonic, list<Trait> traits = []>
    : Pipeline_Op<mnemonic, !listconcat([HasParent<"RankOp">], traits)>;

/// Results print with names that say what they are: `%f_s2_m3_act`, `%weight_s0_r1`.
def Named : DeclareOpInterfaceMethods<OpAsmOpInterface, ["getAsmResultNames"]>;

//===-- The program and its pieces ------------------------------------------------------------------------------===//

def ProgramOp : Pipeline_Op<"program", [IsolatedFromAbove, NoTerminator, SingleBlock, Symbol, SymbolTable]> {
  let summary = "one training step of a schedule, at one of the three levels";
  let description = [{
    `train` holds what the trainer needs and the compiler does not: {model, schedule, batch, sequence, vocab, precision,
    gradients, optimizer = {..}}. `columns` in it are those of the dataset that the model reads, each with its `name`,
    its `width` (absent: one value for each token), `int`, and `default`. `slices` is 0 where the schedule has no
    slices; `slice_lengths` are their tokens, where they are not equal. `updates` (1 if absent) is how often a step
    updates its weights. `target` is `cpu` (if absent) or `cuda`. `cluster` describes the machines: numbers, and
    dictionaries of numbers for `device`, `inside`, `between` and others. Where devices differ, `memory` and what is in
    `device`, `efficiency` and `host` may be an array: device d has entry d, modulo its length. `costs` has the time of
    each part of the model. `proof` has what was proved, a dictionary for each proof. `forward`: the program evaluates.
    It has only the units F of the training program of this module, trains nothing, and has everything that lives from
    step to step at the same places. `redo`: the program is that of a step whose judges find that the update before it
    was wrong (docs/barrier.md). `mesh`: each rank is several devices, which run its program on data of their own;
    without it a rank is one device. All ops of a program have one level. They name only ranks, microbatches, slices and
    pieces that the program has.
  }];
  let arguments = (ins SymbolNameAttr:$sym_name, I64Attr:$ranks, I64Attr:$microbatches, I64Attr:$slices,
                       DictionaryAttr:$train, OptionalAttr<I64Attr>:$updates,
                       OptionalAttr<DenseI64ArrayAttr>:$slice_lengths, OptionalAttr<StrAttr>:$target,
                       OptionalAttr<DictionaryAttr>:$cluster, OptionalAttr<DictionaryAttr>:$costs,
                       OptionalAttr<DictionaryAttr>:$proof, UnitAttr:$forward, UnitAttr:$redo,
                       OptionalAttr<Pipeline_MeshAttr>:$mesh);
  let regions = (region SizedRegion<1>:$body);
  let skipDefaultBuilders = 1;
  let builders = [OpBuilder<(ins "::llvm::StringRef":$name, "int64_t":$ranks, "int64_t":$microbatches,
                                 "int64_t":$slices, "::mlir::DictionaryAttr":$train)>];
  let hasVerifier = 1;
  let hasRegionVerifier = 1;
  let extraClassDeclaration = [{
    /// How often a step updates its weights.
    int64_t countUpdates() { return getUpdates().value_or(1); }
    /// How many devices lie along an axis; 1 without a mesh.
    int64_t sizeOf(Axis axis) { return getMeshAttr() ? getMeshAttr().sizeOf(axis) : 1; }
    /// How many devices of a rank have the same weights and sum their gradients.
    int64_t sumMembers() { return getMeshAttr() ? getMeshAttr().sumMembers() : 1; }
    /// The axes along which they lie; null if there is one.
    AxesAttr sumAxes();
    /// The training program of a module that has its forward program, too; null if there is no program.
    static ProgramOp trainingOf(::mlir::ModuleOp module);
    /// The one with `forward`; null if there is none.
    static ProgramOp forwardOf(::mlir::ModuleOp module);
    /// The one with `redo`; null if there is none.
    static ProgramOp redoOf(::mlir::ModuleOp module);
  }];
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
    `recompute` names the model parts that R runs again; absent, R runs all of the piece. `frozen` names the weights
    that are not trained.
    `weights` and `bodies` are filled in by derive-tasks. Pieces with equal `bodies` are of one class and share their
    functions: those whose `#pipeline.body` names that class. `vocabulary`: it is a shard of a part that is cut by the
    vocabulary. The shards are neighbouring pieces, which their coordinates number. All shards read the result of the
    piece before them, and the piece behind them reads the sum of their results. `sums_whole`: the sum of this piece's
    gradient stays whole under `mesh zero 2`, because the gradient moves or another rank reads it.
  }];
  let arguments = (ins SymbolNameAttr:$sym_name, Pipeline_CoordAttr:$coord, ArrayAttr:$parts,
                       OptionalAttr<Pipeline_PlaceAttr>:$at, OptionalAttr<Pipeline_PlaceAttr>:$homes,
                       OptionalAttr<Pipeline_PlaceAttr>:$owner, OptionalAttr<StrArrayAttr>:$recompute,
                       OptionalAttr<StrArrayAttr>:$frozen,
                       OptionalAttr<Pipeline_WeightArrayAttr>:$weights, OptionalAttr<StrAttr>:$bodies,
                       OptionalAttr<Pipeline_VocabularyAttr>:$vocabulary, UnitAttr:$sums_whole);
  let assemblyFormat = [{
    $sym_name $coord `parts` $parts (`at` $at^)? (`homes` $homes^)? (`owner` $owner^)? (`recompute` $recompute^)?
    (`bodies` $bodies^)? (`vocabulary` $vocabulary^)? attr-dict
  }];
  let skipDefaultBuilders = 1;
  let builders = [OpBuilder<(ins "::pp::pipeline::CoordAttr":$coord, "::mlir::ArrayAttr":$parts,
                                 "::pp::pipeline::PlaceAttr":$at, "::pp::pipeline::PlaceAttr":$homes,
                                 "::pp::pipeline::PlaceAttr":$owner)>];
  let hasVerifier = 1;
}

//===-- Level 1: the actions of the schedule --------------------------------------------------------------------===//

def UnitOp : Pipeline_ActionOp<"unit"> {
  let summary = "a unit of work, emitted by the schedule";
  let description = [{
    A unit is anchored on the ranks that run it. Units and transfers with one anchor keep their order. `version` is the
    version of the weights that the unit reads. Version 0 is there when the step begins, each update makes the next one,
    and negative versions come from earlier steps. If `version` is absent, the weights have all updates before the
    unit's own one.
  }];
  let arguments = (ins Pipeline_UnitAttr:$unit, DenseI64ArrayAttr:$ranks, OptionalAttr<I64Attr>:$version);
  let assemblyFormat = "$unit `on` $ranks (`version` $version^)? attr-dict";
  let skipDefaultBuilders = 1;
  let builders = [OpBuilder<(ins "::pp::pipeline::UnitIdAttr":$unit, "::llvm::ArrayRef<int64_t>":$ranks,
                                 CArg<"::mlir::IntegerAttr", "{}">:$version)>];
  let hasVerifier = 1;
}

def TransferOp : Pipeline_ActionOp<"transfer"> {
  let summary = "a thing changes place, emitted by the schedule";
  let description = [{
    Without `from` all ranks send that hold a share of a gradient. `anchors` are the ranks whose order has this action.
  }];
  let arguments = (ins Pipeline_ThingAttr:$thing, OptionalAttr<Pipeline_PlaceAttr>:$from, Pipeline_PlaceAttr:$to,
                       DenseI64ArrayAttr:$anchors);
  let assemblyFormat = "$thing (`from` $from^)? `to` $to `anchors` $anchors attr-dict";
  let hasVerifier = 1;
}

def TogetherOp : Pipeline_ActionOp<"together", [HasParent<"ProgramOp">, NoTerminator, SingleBlock]> {
  let summary = "actions that go as one: transfers posted as one group, all reads before all writes";
  let regions = (region SizedRegion<1>:$body);
  let assemblyFormat = "attr-dict-with-keyword $body";
}

def AttendOp : Pipeline_ActionOp<"attend"> {
  let summary = "this rank attends these slices of keys for a unit";
  let description = [{
    Inside a `together` another rank attends the keys while the unit runs. The unit stands in the same `together`.
    Outside of one, the unit's own rank attends the keys before the unit runs. The unit then stands later.
  }];
  let arguments = (ins Pipeline_UnitAttr:$unit, DenseI64ArrayAttr:$slices, I64Attr:$rank);
  let assemblyFormat = "$unit `over` $slices `on` $rank attr-dict";
  let hasVerifier = 1;
}

def LimitOp : Pipeline_Op<"limit", [HasParent<"ProgramOp">]> {
  let summary = "at most this many values of a role alive at once on each of the ranks";
  let arguments = (ins Pipeline_Role:$role, I64Attr:$count, DenseI64ArrayAttr:$ranks);
  let assemblyFormat = "$role $count `on` $ranks attr-dict";
  let hasVerifier = 1;
}

//===-- Level 2: the step in one global order -------------------------------------------------------------------===//

def InputOp : Pipeline_StepOp<"input", [Named]> {
  let summary = "a value that is there when the step begins: weights, optimizer state, tokens, targets";
  let arguments = (ins Pipeline_ThingAttr:$thing, OptionalAttr<StrAttr>:$data);
  let results = (outs Pipeline_ValType:$value);
  let assemblyFormat = "$thing ($data^)? `:` type($value) attr-dict";
  let hasVerifier = 1;
}

def OutputOp : Pipeline_StepOp<"output"> {
  let summary = "a value that must be there when the step ends, where `input` of the same thing and rank had it";
  let description = [{
    For a weight or optimizer state: the new version, in the slot of the input. For a grad: the sum that U used, kept
    for `--grads`. For a stat: a loss or the squared gradient norm, read by the trainer.
  }];
  let arguments = (ins Pipeline_ThingAttr:$thing, Pipeline_ValType:$value);
  let assemblyFormat = "$thing $value `:` type($value) attr-dict";
  let hasVerifier = 1;
}

def TaskOp : Pipeline_StepOp<"task", [Named]> {
  let summary = "one unit: calls its body on values that live on its ranks";
  let description = [{
    `callee` is a function whose `pipeline.inputs` and `pipeline.results` group its tensors into the payloads of the
    operands and results. `ties[i]` is the operand whose slot result i takes over (in place), -1 for none. `version` is
    as in `unit`. `joint` is the number of the `together` that has the unit. `share` is the part of the unit that this
    task does, if it does not do all of it. `beside`: the task behind this one is the next of the rank and runs
    interleaved with it.
  }];
  let arguments = (ins FlatSymbolRefAttr:$callee, Pipeline_UnitAttr:$unit, DenseI64ArrayAttr:$ranks,
                       DenseI64ArrayAttr:$ties, Variadic<Pipeline_ValType>:$inputs, OptionalAttr<I64Attr>:$version,
                       OptionalAttr<I64Attr>:$joint, OptionalAttr<F64Attr>:$share, UnitAttr:$beside);
  let results = (outs Variadic<Pipeline_ValType>:$results);
  let assemblyFormat = [{
    $callee $unit `on` $ranks `(` $inputs `)` `ties` $ties (`version` $version^)? (`joint` $joint^)? (`share` $share^)?
    (`beside` $beside^)? attr-dict `:` functional-type($inputs, $results)
  }];
  let hasVerifier = 1;
}

def MoveOp : Pipeline_StepOp<"move", [Named]> {
  let summary = "a value changes its placement; the verb is read off the two types";
  let description = [{
    Posts the message; the value is there after `wait`. `group` numbers the moves of one `together`. `over`: the value
    stays on its rank, and the rank's devices along these axes sum the first `tensors` of it. `cut`: each device has a
    shard of these tensors, which `cutFlat` defines. For a gradient a device gets the sum of its shard only. For weights
    it gives its shard to the other devices.
  }];
  let arguments = (ins Pipeline_ThingAttr:$thing, Pipeline_ValType:$value, OptionalAttr<I64Attr>:$group,
                       OptionalAttr<Pipeline_AxesAttr>:$axes, OptionalAttr<I64Attr>:$tensors, UnitAttr:$cut);
  let results = (outs Pipeline_FutureType:$future);
  let assemblyFormat = [{
    $thing $value (`group` $group^)? (`over` $axes^)? (`tensors` $tensors^)? (`cut` $cut^)? attr-dict
    `:` type($value) `->` type($future)
  }];
  let skipDefaultBuilders = 1;
  let builders = [OpBuilder<(ins "::mlir::Type":$future, "::pp::pipeline::ThingAttr":$thing, "::mlir::Value":$value,
                                 CArg<"::mlir::IntegerAttr", "{}">:$group,
                                 CArg<"::pp::pipeline::AxesAttr", "{}">:$axes,
                                 CArg<"::mlir::IntegerAttr", "{}">:$tensors, CArg<"bool", "false">:$cut)>];
  let hasVerifier = 1;
  let extraClassDeclaration = [{
    /// The verb of the two places; nullopt where no single message does it.
    std::optional<Verb> getVerb();
    ValType getTarget();
  }];
}

def WaitOp : Pipeline_StepOp<"wait", [Named]> {
  let summary = "the value of a move, which has arrived";
  let description = [{
    If a value comes to several ranks, each rank may wait for its own copy or shard. The result then is on that rank
    only.
  }];
  let arguments = (ins Pipeline_FutureType:$future);
  let results = (outs Pipeline_ValType:$value);
  let assemblyFormat = "$future attr-dict `:` type($future) `->` type($value)";
  let hasVerifier = 1;
}

def JoinOp : Pipeline_StepOp<"join"> {
  let summary = "values on single ranks seen as one value of the group: its shards or its partial sums";
  let arguments = (ins Variadic<Pipeline_ValType>:$values);
  let results = (outs Pipeline_ValType:$value);
  let assemblyFormat = "$values attr-dict `:` type($values) `->` type($value)";
  let hasVerifier = 1;
}

def SplitOp : Pipeline_StepOp<"split"> {
  let summary = "what one rank holds of a group's value; the inverse of `join`";
  let arguments = (ins Pipeline_ValType:$value);
  let results = (outs Pipeline_ValType:$own);
  let assemblyFormat = "$value attr-dict `:` type($value) `->` type($own)";
  let hasVerifier = 1;
}

//===-- Level 3: the programs of the ranks ----------------------------------------------------------------------===//

def RankOp : Pipeline_Op<"rank", [Pipeline_Level<"OfRanks">, HasParent<"ProgramOp">, NoTerminator, SingleBlock]> {
  let summary = "the program of one rank: slots, launches, posts, completes, in order";
  let description = [{ `peak` has the bytes of each role at the instant at which most bytes are live, and sums. }];
  let arguments = (ins I64Attr:$rank, OptionalAttr<I64Attr>:$arena_bytes, OptionalAttr<I64Attr>:$host_bytes,
                       OptionalAttr<DictionaryAttr>:$peak);
  let regions = (region SizedRegion<1>:$body);
  let skipDefaultBuilders = 1;
  let builders = [OpBuilder<(ins "int64_t":$rank)>];
  let hasVerifier = 1;
  let assemblyFormat = "$rank (`arena` $arena_bytes^)? (`host` $host_bytes^)? attr-dict-with-keyword $body";
}

def SlotOp : Pipeline_RankOp<"slot", [Named]> {
  let summary = "a place in the rank's arena, or in its host memory";
  let description = [{
    `binding` says what the trainer finds in it before or after the step; absent for what lives inside the step.
    `offset` is given by plan-slots. `label` names the value in messages. `host`: it lies in the rank's second arena,
    where only messages of the rank to itself go. `places`, instead of `offset`: its tensors lie apart, each at an
    offset of its own; bodies get an address for each, but no message can take it.
  }];
  let arguments = (ins Pipeline_Role:$role, StrAttr:$label, OptionalAttr<I64Attr>:$offset,
                       OptionalAttr<DenseI64ArrayAttr>:$places, OptionalAttr<Pipeline_BindingAttr>:$binding,
                       UnitAttr:$host);
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

def LaunchOp : Pipeline_RankOp<"launch", [AttrSizedOperandSegments]> {
  let summary = "runs a task body on slots";
  let description = [{
    `inputs` are the slots of the body's input groups, `results` those of its result groups that are not tied to an
    input; `scratch` is memory for this launch only, of the body's `pipeline.scratch_bytes`. `version`, `joint` and
    `share` are those of its `task`. `handed` is the body's `pipeline.handed`. It lists tensors of results that take the
    memory of tensors of inputs; these inputs end with this launch. Each entry has four numbers: slot and tensor of the
    result, slot and tensor of the input. Slots are counted over inputs and results. `beside`: the launch right behind
    this one runs interleaved with it. The numbers say how many ops of this body and of the other one run in turn; there
    are none until interleave-units has chosen. A message of one body travels while the other body computes. `judges`:
    after this launch the trainer judges the update of the step before, by the norm that the launch reads.
  }];
  let arguments = (ins FlatSymbolRefAttr:$callee, Pipeline_UnitAttr:$unit, Variadic<Pipeline_SlotType>:$inputs,
                       Variadic<Pipeline_SlotType>:$results, Optional<Pipeline_SlotType>:$scratch,
                       OptionalAttr<DenseI64ArrayAttr>:$handed, OptionalAttr<I64Attr>:$version,
                       OptionalAttr<I64Attr>:$joint, OptionalAttr<F64Attr>:$share,
                       OptionalAttr<DenseI64ArrayAttr>:$beside, UnitAttr:$judges);
  let assemblyFormat = [{
    $callee $unit `(` $inputs `)` `->` `(` $results `)` (`scratch` $scratch^)? (`handed` $handed^)?
    (`version` $version^)? (`joint` $joint^)? (`share` $share^)? (`beside` $beside^)? (`judges` $judges^)? attr-dict
    `:` functional-type($inputs, $results) (`scratch` type($scratch)^)?
  }];
  let hasVerifier = 1;
  let extraClassDeclaration = [{
    /// The slots of the body's signature: inputs, then results.
    ::llvm::SmallVector<::mlir::Value> slots();
    /// The launch behind this one, where that runs beside it; else null.
    LaunchOp follower();
    /// The launch before this one, where this one runs beside it; else null.
    LaunchOp leader();
  }];
}

def PostOp : Pipeline_RankOp<"post"> {
  let summary = "one rank's side of a message; does not block";
  let description = [{
    `channel` orders messages between two ranks: the k-th send on a channel meets the k-th receive. A message of a rank
    to itself goes to its host memory or back. For a collective `peers` is the whole group, in ascending order; it works
    in place. all_reduce: every slot gets the sum. reduce: the slot of `root` gets it. broadcast: every other slot gets
    what that of `root` holds. all_gather and reduce_scatter have the rank's shard beside the whole: bytes `cuts[k]` to
    `cuts[k + 1]` of it for the k-th of n members, then `cuts[n + k]` to `cuts[n + k + 1]` where tensors are cut for
    themselves, and so on. all_gather: every slot gets what the members' `shard`s hold, each in its place.
    reduce_scatter: every `shard` gets its range of the slots' sum. `over`: the members are the devices of the ranks
    `peers` along these axes of the mesh. `tensors`: the message has only so many tensors, the first ones of the slot.
    all_gather and reduce_scatter over axes have no `shard`: each member's shard lies at its place in the slot.
  }];
  let arguments = (ins Pipeline_PostKind:$kind, Pipeline_ThingAttr:$thing, Pipeline_SlotType:$slot,
                       Optional<Pipeline_SlotType>:$shard, DenseI64ArrayAttr:$peers, OptionalAttr<I64Attr>:$root,
                       OptionalAttr<DenseI64ArrayAttr>:$cuts, OptionalAttr<I64Attr>:$channel,
                       OptionalAttr<I64Attr>:$group, OptionalAttr<Pipeline_AxesAttr>:$axes,
                       OptionalAttr<I64Attr>:$tensors);
  let results = (outs Pipeline_RequestType:$request);
  let assemblyFormat = [{
    $kind $thing $slot (`shard` $shard^)? `with` $peers (`over` $axes^)? (`tensors` $tensors^)? (`root` $root^)?
    (`cuts` $cuts^)? (`channel` $channel^)? (`group` $group^)? attr-dict `:` type($slot) (`shard` type($shard)^)?
  }];
  let skipDefaultBuilders = 1;
  let builders = [OpBuilder<(ins "::mlir::Type":$request, "::pp::pipeline::PostKind":$kind,
                                 "::pp::pipeline::ThingAttr":$thing, "::mlir::Value":$slot, "::mlir::Value":$shard,
                                 "::llvm::ArrayRef<int64_t>":$peers, "::mlir::IntegerAttr":$root,
                                 "::mlir::DenseI64ArrayAttr":$cuts, "::mlir::IntegerAttr":$channel,
                                 "::mlir::IntegerAttr":$group, CArg<"::pp::pipeline::AxesAttr", "{}">:$axes,
                                 CArg<"::mlir::IntegerAttr", "{}">:$tensors)>];
  let hasVerifier = 1;
  let extraClassDeclaration = [{
    bool isCollective() { return getKind() != PostKind::send && getKind() != PostKind::receive; }
    /// How many devices join a collective.
    int64_t countMembers();
    /// What of the slot's payload it has.
    ::mlir::TupleType getPayload();
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
    /// A gather or scatter whose shards lie in the whole.
    bool isInPlace() { return getAxes() && getCuts(); }
  }];
}

def CompleteOp : Pipeline_RankOp<"complete"> {
  let summary = "blocks until the message is done; its slot may be written (send) or read (receive) from here on";
  let arguments = (ins Pipeline_RequestType:$request);
  let assemblyFormat = "$request attr-dict";
}

#endif // PP_DIALECT_PIPELINEOPS_TD
