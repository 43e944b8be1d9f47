// Attributes and types of the `pipeline` dialect: unit coordinates, payloads of messages, places, and placed values.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_DIALECT_PIPELINEATTRS_TD
#define PP_DIALECT_PIPELINEATTRS_TD

include "mlir/IR/AttrTypeBase.td"
include "mlir/IR/BuiltinAttributeInterfaces.td"
include "mlir/IR/EnumAttr.td"
include "mlir/IR/OpBase.td"

def Pipeline_Dialect : Dialect {
  let name = "pipeline";
  let cppNamespace = "::pp::pipeline";
  let summary = "what runs where, when, and what travels: one training step over all ranks";
  let description = [{
    Three levels in one dialect, each an ordinary op inside `pipeline.program`:
    *actions* as the schedule's author emitted them (`piece`, `unit`, `transfer`, `together`, `limit`),
    the *step* in one global SSA order (`input`, `task`, `move`, `wait`, `join`, `output`),
    and the *rank programs* projected from it (`rank`, `slot`, `launch`, `post`, `complete`).
  }];
  let useDefaultTypePrinterParser = 1;
  let useDefaultAttributePrinterParser = 1;
  let dependentDialects = ["::mlir::func::FuncDialect", "::pp::nn::NnDialect"];
  let hasOperationAttrVerify = 1;
}

class Pipeline_I32Enum<string name, string summary, list<I32EnumAttrCase> cases> : I32EnumAttr<name, summary, cases> {
  let cppNamespace = "::pp::pipeline";
}

def Pipeline_Phase : Pipeline_I32Enum<"Phase", "what a unit computes", [
  I32EnumAttrCase<"F", 0>, I32EnumAttrCase<"B", 1>, I32EnumAttrCase<"I", 2>, I32EnumAttrCase<"W", 3>,
  I32EnumAttrCase<"R", 4>, I32EnumAttrCase<"U", 5>]>;

def Pipeline_Role : Pipeline_I32Enum<"Role", "what a value is", [
  I32EnumAttrCase<"act", 0>, I32EnumAttrCase<"dact", 1>, I32EnumAttrCase<"weight", 2>, I32EnumAttrCase<"grad", 3>,
  I32EnumAttrCase<"stash", 4>, I32EnumAttrCase<"kv", 5>, I32EnumAttrCase<"dkv", 6>, I32EnumAttrCase<"stat", 7>,
  I32EnumAttrCase<"opt", 8>, I32EnumAttrCase<"data", 9>, I32EnumAttrCase<"temporary", 10>,
  I32EnumAttrCase<"query", 11>, I32EnumAttrCase<"part", 12>, I32EnumAttrCase<"undo", 13>,
  I32EnumAttrCase<"state", 14>, I32EnumAttrCase<"dstate", 15>]>;

def Pipeline_Layout : Pipeline_I32Enum<"Layout", "how the ranks of a value share it", [
  I32EnumAttrCase<"full", 0>, I32EnumAttrCase<"shard", 1>, I32EnumAttrCase<"partial", 2>, I32EnumAttrCase<"host", 3>]>;

def Pipeline_Verb : Pipeline_I32Enum<"Verb", "what a move is, read off its two places", [
  I32EnumAttrCase<"p2p", 0>, I32EnumAttrCase<"broadcast", 1>, I32EnumAttrCase<"reduce", 2>,
  I32EnumAttrCase<"all_gather", 3>, I32EnumAttrCase<"reduce_scatter", 4>, I32EnumAttrCase<"all_reduce", 5>,
  I32EnumAttrCase<"all_to_all", 6>, I32EnumAttrCase<"scatter", 7>, I32EnumAttrCase<"gather", 8>,
  I32EnumAttrCase<"to_host", 9>, I32EnumAttrCase<"from_host", 10>]>;

def Pipeline_Again : Pipeline_I32Enum<"Again", "what a backward gathers again rather than keep", [
  I32EnumAttrCase<"nothing", 0>, I32EnumAttrCase<"inputs", 1>, I32EnumAttrCase<"all", 2>]>;

def Pipeline_Meeting : Pipeline_I32Enum<"Meeting", "how queries and keys meet over the context axis", [
  I32EnumAttrCase<"gather", 0>, I32EnumAttrCase<"heads", 1>]>;

def Pipeline_BindingKind : Pipeline_I32Enum<"BindingKind", "what the trainer finds in a slot", [
  I32EnumAttrCase<"weight", 0>, I32EnumAttrCase<"previous", 1>, I32EnumAttrCase<"opt", 2>, I32EnumAttrCase<"grad", 3>,
  I32EnumAttrCase<"tokens", 4>, I32EnumAttrCase<"targets", 5>, I32EnumAttrCase<"source", 6>,
  I32EnumAttrCase<"loss", 7>, I32EnumAttrCase<"norm", 8>, I32EnumAttrCase<"starts", 9>,
  I32EnumAttrCase<"positions", 10>, I32EnumAttrCase<"rows", 11>, I32EnumAttrCase<"undo", 12>,
  I32EnumAttrCase<"column", 13>]>;

def Pipeline_PostKind : Pipeline_I32Enum<"PostKind", "one rank's side of a move", [
  I32EnumAttrCase<"send", 0>, I32EnumAttrCase<"receive", 1>, I32EnumAttrCase<"all_reduce", 2>,
  I32EnumAttrCase<"broadcast", 3>, I32EnumAttrCase<"reduce", 4>, I32EnumAttrCase<"all_gather", 5>,
  I32EnumAttrCase<"reduce_scatter", 6>]>;

def Pipeline_BodyVariant : Pipeline_I32Enum<"BodyVariant",
                                            "which of the bodies of a phase; those from `norm` on are of U", [
  I32EnumAttrCase<"plain", 0>, I32EnumAttrCase<"light", 1>, I32EnumAttrCase<"act", 2>, I32EnumAttrCase<"first", 3>,
  I32EnumAttrCase<"norm", 4>, I32EnumAttrCase<"norm_first", 5>, I32EnumAttrCase<"zero", 6>, I32EnumAttrCase<"sum", 7>,
  I32EnumAttrCase<"sum_keys", 8>, I32EnumAttrCase<"tie_out", 9>, I32EnumAttrCase<"tie_in", 10>,
  I32EnumAttrCase<"tie_fresh", 11>, I32EnumAttrCase<"copy", 12>, I32EnumAttrCase<"cut", 13>,
  I32EnumAttrCase<"merge", 14>, I32EnumAttrCase<"judge", 15>, I32EnumAttrCase<"redo", 16>]>;

def Pipeline_CutKind : Pipeline_I32Enum<"CutKind", "what of a unit that is cut at its attentions a body computes", [
  I32EnumAttrCase<"step", 0>, I32EnumAttrCase<"part", 1>, I32EnumAttrCase<"rest", 2>]>;

def Pipeline_GroupKind : Pipeline_I32Enum<"GroupKind", "what the tensors of a group are", [
  I32EnumAttrCase<"act", 0>, I32EnumAttrCase<"dact", 1>, I32EnumAttrCase<"kept", 2>, I32EnumAttrCase<"stash", 3>,
  I32EnumAttrCase<"pending", 4>, I32EnumAttrCase<"carry", 5>, I32EnumAttrCase<"dcarry", 6>,
  I32EnumAttrCase<"query", 7>, I32EnumAttrCase<"dquery", 8>, I32EnumAttrCase<"part", 9>, I32EnumAttrCase<"dpart", 10>,
  I32EnumAttrCase<"kv", 11>, I32EnumAttrCase<"dkv", 12>, I32EnumAttrCase<"dterm", 13>, I32EnumAttrCase<"keys", 14>,
  I32EnumAttrCase<"dkeys", 15>, I32EnumAttrCase<"weight", 16>, I32EnumAttrCase<"fresh", 17>,
  I32EnumAttrCase<"grad", 18>, I32EnumAttrCase<"share", 19>, I32EnumAttrCase<"opt", 20>, I32EnumAttrCase<"norm", 21>,
  I32EnumAttrCase<"loss", 22>, I32EnumAttrCase<"stats", 23>, I32EnumAttrCase<"tokens", 24>,
  I32EnumAttrCase<"targets", 25>, I32EnumAttrCase<"source", 26>, I32EnumAttrCase<"starts", 27>,
  I32EnumAttrCase<"positions", 28>, I32EnumAttrCase<"rows", 29>, I32EnumAttrCase<"undo", 30>,
  I32EnumAttrCase<"column", 31>, I32EnumAttrCase<"state", 32>, I32EnumAttrCase<"dstate", 33>]>;

class Pipeline_Attr<string name, string mnem> : AttrDef<Pipeline_Dialect, name> { let mnemonic = mnem; }

def Pipeline_CoordAttr : Pipeline_Attr<"Coord", "at"> {
  let summary = "coordinates of a unit or thing: piece, microbatch, slice";
  let description = [{
    `part` is empty for a stage, else the part's name; `index` is the stage, the layer of the part, or -1 for a part
    that exists once (embed, head); `microbatch` and `slice` are -1 where they do not apply.
    Printed as the user counts: `#pipeline.at<stage 2 mb 3>`, `#pipeline.at<part "attn" 3 mb 1 slice 5>`.
  }];
  let parameters = (ins "::mlir::StringAttr":$part, "int64_t":$index, "int64_t":$microbatch, "int64_t":$slice);
  let hasCustomAssemblyFormat = 1;
  let extraClassDeclaration = [{
    bool isStage() const { return getPart().empty(); }
    /// The symbol of the piece: `s2` for stage 2, `attn3` for layer 3 of part attn, `head` for a part that exists once.
    std::string pieceName() const;
    /// The coordinate inside brackets as a `.pipe` file writes it: `2, 3` or `attn(3), 1, 5`.
    std::string str() const;
    /// The same piece with another microbatch and slice.
    CoordAttr with(int64_t microbatch, int64_t slice) const;
  }];
}

def Pipeline_UnitAttr : Pipeline_Attr<"UnitId", "unit"> {
  let summary = "a unit of work: phase and coordinates";
  let parameters = (ins "::pp::pipeline::Phase":$phase, "::pp::pipeline::CoordAttr":$coord);
  let hasCustomAssemblyFormat = 1;
  let extraClassDeclaration = [{
    /// As a `.pipe` file writes it: `F(2, 3)`.
    std::string str() const;
    /// As a CSV cell writes it: `2F3`, `s5.0F1`, `attn.3F1`, `attn.s5.3F1`, `head.F1`.
    std::string cell() const;
  }];
}

def Pipeline_ThingAttr : Pipeline_Attr<"Thing", "thing"> {
  let summary = "a thing that travels: role and coordinates";
  let parameters = (ins "::pp::pipeline::Role":$role, "::pp::pipeline::CoordAttr":$coord);
  let hasCustomAssemblyFormat = 1;
  let extraClassDeclaration = [{
    /// As a `.pipe` file writes it: `weight(2)`, `act(2, 3)`.
    std::string str() const;
  }];
}

def Pipeline_PlaceAttr : Pipeline_Attr<"Place", "place"> {
  let summary = "where a value is: ranks in ascending order of mention, and how they share it";
  let parameters = (ins ArrayRefParameter<"int64_t">:$ranks, "::pp::pipeline::Layout":$layout);
  let hasCustomAssemblyFormat = 1;
  let extraClassDeclaration = [{
    /// As messages say it: `rank 2`, `ranks 0, 1`, `shard of ranks 0, 1`, `the host of rank 2`.
    std::string str() const;
  }];
}

def Pipeline_WeightAttr : Pipeline_Attr<"Weight", "weight"> {
  let summary = "one weight tensor of a piece: its name in checkpoints, its type here, and how the model declares it";
  let description = [{
    `tied`: another piece owns and updates this tensor; this piece holds a copy and sends its share of the gradient.
    `frozen`: nothing updates the weight. Frozen weights are the last ones of a piece.
    `#pipeline.weight<"h.0.w" : tensor<4x4xf32> tied declared <"w" as "h.{l}.w" normal 2.0e-2>>`.
  }];
  let parameters = (ins "::mlir::StringAttr":$name, "::mlir::RankedTensorType":$type, "bool":$tied,
                        "bool":$frozen, "::pp::nn::WeightAttr":$declared);
  let hasCustomAssemblyFormat = 1;
}

def Pipeline_WeightArrayAttr : TypedArrayAttrBase<Pipeline_WeightAttr, "weights of a piece">;

def Pipeline_VocabularyAttr : Pipeline_Attr<"Vocabulary", "vocabulary"> {
  let summary = "which shard of a part that is cut by the vocabulary a piece is";
  let description = [{
    There are `shards` of them. The weight that is cut has the type `whole`. The shard has its rows or columns from
    number `first` on: `#pipeline.vocabulary<first 128 of tensor<256x64xf32> in 2 shards>`.
  }];
  let parameters = (ins "int64_t":$first, "::mlir::RankedTensorType":$whole, "int64_t":$shards);
  let assemblyFormat = "`<` `first` $first `of` $whole `in` $shards `shards` `>`";
  let genVerifyDecl = 1;
}

def Pipeline_BindingAttr : Pipeline_Attr<"Binding", "binding"> {
  let summary = "what the trainer finds in a slot before or after the step";
  let description = [{
    A piece has weights (`save`: this copy goes into checkpoints), weights of earlier steps (`back` versions ago),
    optimizer state and gradients. If the piece is cut over ranks, `shard` is the number of the shard in the slot.
    A microbatch has tokens, targets, the source of an encoder, and a loss. With slices, the slice and its first token
    are given, too. `ahead`: each place holds the token or target that stands so many places later. A `column` of the
    dataset has a `number` in the list of the program's columns. `norm` is the norm of all gradients. `<weight @s0 shard
    1 save>`, `<previous @s0 back 2>`, `<tokens mb 3 slice 1 first 64>`, `<targets mb 3 ahead 1>`, `<column mb 3 number
    0>`, `<norm>`.
  }];
  let parameters = (ins "::pp::pipeline::BindingKind":$kind,
                        OptionalParameter<"::mlir::FlatSymbolRefAttr">:$piece,
                        DefaultValuedParameter<"int64_t", "-1">:$shard,
                        DefaultValuedParameter<"bool", "false">:$save, DefaultValuedParameter<"int64_t", "0">:$back,
                        DefaultValuedParameter<"int64_t", "-1">:$microbatch,
                        DefaultValuedParameter<"int64_t", "-1">:$slice, DefaultValuedParameter<"int64_t", "-1">:$first,
                        DefaultValuedParameter<"int64_t", "0">:$number);
  let hasCustomAssemblyFormat = 1;
  let genVerifyDecl = 1;
  let builders = [
    AttrBuilder<(ins "::pp::pipeline::BindingKind":$kind), [{
      return $_get($_ctxt, kind, ::mlir::FlatSymbolRefAttr(), -1, false, 0, -1, -1, -1, 0);
    }]>,
    AttrBuilder<(ins "::pp::pipeline::BindingKind":$kind, "::mlir::FlatSymbolRefAttr":$piece, "int64_t":$shard,
                     CArg<"bool", "false">:$save, CArg<"int64_t", "0">:$back), [{
      return $_get($_ctxt, kind, piece, shard, save, back, -1, -1, -1, 0);
    }]>,
    AttrBuilder<(ins "::pp::pipeline::BindingKind":$kind, "int64_t":$microbatch, CArg<"int64_t", "-1">:$slice,
                     CArg<"int64_t", "-1">:$first, CArg<"int64_t", "0">:$number), [{
      return $_get($_ctxt, kind, ::mlir::FlatSymbolRefAttr(), -1, false, 0, microbatch, slice, first, number);
    }]>];
  let extraClassDeclaration = [{
    /// Whether it is bound to the weights of a piece, or what goes with them.
    static bool isOfPiece(BindingKind kind) { return kind <= BindingKind::grad || kind == BindingKind::undo; }
    /// What the trainer reads from files for each microbatch.
    static bool isData(BindingKind kind);
    bool isColumn() const { return getKind() == BindingKind::column; }
    /// How many places ahead the data lie.
    int64_t getAhead() const { return isColumn() ? 0 : getNumber(); }
    bool isOfPiece() const { return isOfPiece(getKind()); }
    /// Whether it is there when the step begins; whether it must be there when it ends.
    bool isThereBefore() const;
    bool isThereAfter() const;
  }];
}

def Pipeline_KeysAttr : Pipeline_Attr<"Keys", "keys"> {
  let summary = "slices of keys that one rank attends at once for a unit";
  let description = [{
    `slices` ascend. `home`: the keys were made on the rank that attends them. They do not travel, nor do their
    gradients. Printed as `#pipeline.keys<[0, 1] home>`.
  }];
  let parameters = (ins ArrayRefParameter<"int64_t">:$slices, "bool":$home);
  let hasCustomAssemblyFormat = 1;
  let genVerifyDecl = 1;
  let extraClassDeclaration = [{
    /// For people: `0to2`, `0to1n4to5`; runs, each without its end, and `h` behind them for keys at home.
    std::string label() const;
  }];
}

def Pipeline_CutAttr : Pipeline_Attr<"Cut", "cut"> {
  let summary = "how a unit is cut at its attentions, and which of the pieces of work a body is";
  let description = [{
    A unit whose keys are attended on several ranks runs in `steps` steps: step l is what stands before attention l.
    `keys` has an entry for each rank that helps. What a body computes is its `kind`:

    | kind | number | keys |
    |---|---|---|
    | `step` | of the step | what others attend; empty where nobody helps |
    | `part` | of the attention | the one entry that this body attends |
    | `rest` | of the attention | what others attend; this body attends the keys that are left |

    A unit whose other keys were attended before it runs has one step. `next`: a part adds to the result of an earlier
    part.
    Printed as `#pipeline.cut<step 1 of 2 keys [0, 1], [2, 3] home>`, `#pipeline.cut<part 0 keys [2] next>`.
  }];
  let parameters = (ins "::pp::pipeline::CutKind":$kind, "int64_t":$number, "int64_t":$steps,
                        ArrayRefParameter<"::pp::pipeline::KeysAttr">:$keys, "bool":$next);
  let hasCustomAssemblyFormat = 1;
  let genVerifyDecl = 1;
}

def Pipeline_BodyAttr : Pipeline_Attr<"Body", "body"> {
  let summary = "what a derived function computes: its identity";
  let description = [{
    Every function that the compiler derives has this attribute as `pipeline.body`. Passes, proofs and reports find a
    function by it and ask it what the function does. The function's name is a label for people, and nothing reads it.

    `pieces` is the class of pieces that share the function: the `bodies` of their `pipeline.piece`.
    `variant`: F is `light` if R makes its stash again. R with `act` makes its activation, too. B and W are `first` if
    they begin a gradient and do not add to an earlier one. The `plain` variant of U is the update itself; `norm`,
    `zero`, `sum`, `tie_in` and the others are the steps around it. If devices have only the sum of a shard, `first`
    begins this sum and `sum` adds a device's gradient to it. `merge` sums the terms of the devices along `tensor`.
    `slice` is -1 for units of whole sequences. `cut` is absent for a body that computes all of its unit.
    `sharer` is for `tie_in` and `tie_fresh`: which of the pieces that use the same weights. `shard` is for a piece
    whose updates are cut over ranks: which shard; -1 for all of it.
    A new axis, such as a layout on a mesh, becomes one more optional parameter here. Code that does not need the axis
    does not see it.

    ```mlir
    #pipeline.body<"s0" B first slice 2>
    #pipeline.body<"s0" F light slice 3 step 1 of 2 keys [0, 1], [2] home>
    #pipeline.body<"s0" U tie_in sharer 0 shard 1>
    ```
  }];
  let parameters = (ins "::mlir::StringAttr":$pieces, "::pp::pipeline::Phase":$phase,
                        "::pp::pipeline::BodyVariant":$variant, "int64_t":$slice,
                        OptionalParameter<"::pp::pipeline::CutAttr">:$cut, "int64_t":$sharer, "int64_t":$shard);
  let hasCustomAssemblyFormat = 1;
  let genVerifyDecl = 1;
  let builders = [AttrBuilderWithInferredContext<
      (ins "::mlir::StringAttr":$pieces, "::pp::pipeline::Phase":$phase,
           CArg<"::pp::pipeline::BodyVariant", "::pp::pipeline::BodyVariant::plain">:$variant,
           CArg<"int64_t", "-1">:$slice, CArg<"::pp::pipeline::CutAttr", "{}">:$cut,
           CArg<"int64_t", "-1">:$sharer, CArg<"int64_t", "-1">:$shard),
      [{ return $_get(pieces.getContext(), pieces, phase, variant, slice, cut, sharer, shard); }]>];
  let extraClassDeclaration = [{
    /// The update of the weights itself, not what is done before and after it.
    bool isUpdate() const { return getPhase() == Phase::U && getVariant() == BodyVariant::plain; }
    bool isStep() const { return getCut() && getCut().getKind() == CutKind::step; }
    /// Attends some of a unit's keys, and does nothing else.
    bool isPart() const { return getCut() && !isStep(); }
    /// The rest of a unit whose other keys were attended ahead.
    bool isRestOfAhead() const { return isStep() && getCut().getSteps() == 1; }
    /// Whether the unit begins, or ends, with this body.
    bool beginsUnit() const { return !getCut() || (isStep() && getCut().getNumber() == 0); }
    bool endsUnit() const { return !getCut() || (isStep() && getCut().getNumber() + 1 == getCut().getSteps()); }
    /// The name of the function, for people: `s0.F.light.2`, `s0.tie.in.0.1`; and that without the pieces.
    std::string label() const;
    std::string task() const;
  }];
}

def Pipeline_GroupAttr : Pipeline_Attr<"Group", "group"> {
  let summary = "tensors of a task function that travel as one payload";
  let description = [{
    The meaning of `number` depends on the kind. For `kv`, `dkv` and `dterm` it is the slice that has the keys. For
    `state` and `dstate` it is the slice behind which scans and convolutions have this state. For `act` and `dact`
    it is the value that skips parts. For `tokens` and `targets` it is how many places ahead the data lie. For
    `column` it is which one of the program's columns it is. In a unit that is cut at its attentions it is the cut
    that makes the tensors. Else it is -1. `attention` is the attention of the piece that reads these keys, or of
    states the cut that makes them; -1 for all. `tensors` is the number of tensors. Printed as `#pipeline.group<act
    x 1>`, `#pipeline.group<stash[1] x 3>`, `#pipeline.group<kv[2, 0] x 2>`.
  }];
  let parameters = (ins "::pp::pipeline::GroupKind":$kind, "int64_t":$number, "int64_t":$attention,
                        "int64_t":$tensors);
  let hasCustomAssemblyFormat = 1;
  let genVerifyDecl = 1;
  let builders = [AttrBuilder<(ins "::pp::pipeline::GroupName":$name, "int64_t":$tensors), [{
    return $_get($_ctxt, name.kind, name.number, name.attention, tensors);
  }]>];
  let extraClassDeclaration = [{
    /// Which group it is, without how many tensors it has.
    GroupName getName() const { return {getKind(), getNumber(), getAttention()}; }
  }];
}

def Pipeline_GroupsAttr : Pipeline_Attr<"Groups", "groups"> {
  let summary = "all arguments, or all results, of a task function in groups";
  let description = [{
    `pipeline.inputs` of a function has the groups of its arguments, `pipeline.results` those of its results, each the
    next tensors: `#pipeline.groups<weight x 2, stash[1] x 3, kv[2, 0] x 2>`.
  }];
  let parameters = (ins ArrayRefParameter<"::pp::pipeline::GroupAttr">:$groups);
  let hasCustomAssemblyFormat = 1;
}

def Pipeline_MeshAttr : Pipeline_Attr<"Mesh", "mesh"> {
  let summary = "the devices of a program: its axes with their sizes, that whose coordinate runs fastest first";
  let description = [{
    All four axes are there, each once; `pipeline` has as many devices as the program has ranks. The devices of a rank
    run its program. Printed as `#pipeline.mesh<tensor 1, context 1, data 2, pipeline 4>`. `zero` 1: of what several
    devices along `data` and `context` would update alike each updates a shard, and keeps the optimizer state of that
    alone; printed behind the axes, as `zero 1`. `zero 2`: and the sum of its gradient alone, too. `sequence`: between
    products the devices along `tensor` have a run of the rows each; `again inputs`: a backward gathers again what went
    into products, and keys; `again all`: and W the gradients of what came out. `attention heads`: along `context` each
    device attends whole sequences for its share of the heads; else it has its own queries and the keys of all,
    `gather`. `expert 4`: experts are cut over so many neighbours along `context`, or over all of these and
    neighbours along `data`, in the order of their numbers; along `copies` lie those with the same experts.
  }];
  let parameters = (ins ArrayRefParameter<"::pp::nn::Axis">:$order, ArrayRefParameter<"int64_t">:$sizes,
                        "int64_t":$zero, "bool":$sequence, "::pp::pipeline::Again":$again,
                        "::pp::pipeline::Meeting":$attention, "int64_t":$expert);
  let hasCustomAssemblyFormat = 1;
  let genVerifyDecl = 1;
  let extraClassDeclaration = [{
    int64_t sizeOf(Axis axis) const;
    /// How many devices run the program of one rank.
    int64_t devicesOfRank() const;
    /// The axes of several devices along which devices of a rank have the same weights, and sum their gradients: of
    /// `context` and `data`, the one whose coordinate runs slowest first.
    ::llvm::SmallVector<Axis> sumAxes() const;
    /// How many devices sum one gradient.
    int64_t sumMembers() const { return sizeOf(Axis::context) * sizeOf(Axis::data); }
    /// How far apart in number two neighbours on this axis are, one of those that number devices.
    int64_t stride(Axis axis) const;
    /// This device and all that differ from it on these axes alone, ascending.
    ::llvm::SmallVector<int64_t> line(int64_t device, ::llvm::ArrayRef<Axis> axes) const;
  }];
}

def Pipeline_AxesAttr : Pipeline_Attr<"Axes", "axes"> {
  let summary = "axes of the mesh over which devices do something together: `#pipeline.axes<data>`";
  let parameters = (ins ArrayRefParameter<"::pp::nn::Axis">:$axes);
  let hasCustomAssemblyFormat = 1;
  let genVerifyDecl = 1;
}

class Pipeline_Type<string name, string mnem, string what> : TypeDef<Pipeline_Dialect, name> {
  let mnemonic = mnem;
  let summary = what;
}

def Pipeline_ValType : Pipeline_Type<"Val", "val", "a value placed on ranks"> {
  let description = [{
    Invariant 2 of the design: a value says what it is (role), what it holds (payload, a tuple of ranked tensors laid
    out one after the other, each 64-byte aligned), where it lives and how its ranks share it.
    `!pipeline.val<act, tuple<tensor<2x128x128xf32>>, [0] full>`.
  }];
  let parameters = (ins "::pp::pipeline::Role":$role, "::mlir::TupleType":$payload,
                        "::pp::pipeline::PlaceAttr":$place);
  let hasCustomAssemblyFormat = 1;
  let extraClassDeclaration = [{
    llvm::ArrayRef<int64_t> getRanks() const { return getPlace().getRanks(); }
    Layout getLayout() const { return getPlace().getLayout(); }
    /// Bytes on one rank.
    int64_t getBytes() const;
  }];
}

def Pipeline_FutureType : Pipeline_Type<"Future", "future", "a value on its way; only `wait` gives it"> {
  let parameters = (ins "::pp::pipeline::ValType":$value);
  let assemblyFormat = "`<` $value `>`";
}

def Pipeline_SlotType : Pipeline_Type<"Slot", "slot", "a place in a rank's arena"> {
  let parameters = (ins "::mlir::TupleType":$payload);
  let assemblyFormat = "`<` $payload `>`";
}

def Pipeline_RequestType : Pipeline_Type<"Request", "request", "a posted message; `complete` ends it"> {}

#endif // PP_DIALECT_PIPELINEATTRS_TD
