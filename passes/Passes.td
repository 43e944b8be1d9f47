// The passes of `pp`, from the actions a schedule emitted to proved programs of the ranks.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_PASSES_PASSES_TD
#define PP_PASSES_PASSES_TD

include "mlir/Pass/PassBase.td"

/// A pass on programs of one level of the pipeline dialect; it refuses others with a sentence (passes/Levels.h).
class PpPass<string name, string level>
    : PassBase<"pp-" # name, "::pp::LevelPass<::pp::pipeline::Level::" # level # ">">;
/// A pass on task functions or on all ops, whatever the level of the programs.
class PpModulePass<string name> : PassBase<"pp-" # name, "::mlir::OperationPass<::mlir::ModuleOp>">;

def DeriveTasks : PpPass<"derive-tasks", "actions"> {
  let summary = "differentiate the model's parts into one function per piece and phase";
  let description = [{
    `@pre`, `@qkv`, .. ~~> `@s0.F`, `@s0.B`, `@s0.B.first`, `@s0.U`, .. with the exact set of values each needs saved
    (docs/derivatives.md R1). Pieces with the same parts share their functions.
  }];
  let dependentDialects = ["::pp::nn::NnDialect"];
}

def AdaptLinears : PpPass<"adapt-linears", "actions"> {
  let summary = "a linear that `lora` names gets two small weights beside its own, which are trained in its place";
  let description = [{
    `%y = nn.linear %x, %w` ~~> `%y0 = nn.linear %x, %w; %u = nn.linear %x, %a; %v = nn.scale %u; %z = nn.linear %v,
    %b; %y = nn.add %y0, %z`. With a rate of dropout %u is of `nn.dropout %x`, with a mask for each linear.
  }];
  let dependentDialects = ["::pp::nn::NnDialect"];
}

def SplitVocabulary : PpPass<"split-vocabulary", "actions"> {
  let summary = "a part at `shard(ranks)` becomes a piece for every rank, cut by the vocabulary";
  let description = [{
    `piece @head at [0, 1] shard; unit F(head, 0) on [0, 1]` ~~> `piece @head0 at [0] {first = 0, ..}; piece @head1 at
    [1] ..; together { unit F(head(0), 0) on [0]; unit F(head(1), 0) on [1] }`. Ops of the part that have nothing to do
    with the vocabulary join the neighbouring piece. Later passes only need to know which shards belong together.
  }];
  let dependentDialects = ["::pp::nn::NnDialect"];
}

def CutSequences : PpPass<"cut-sequences", "actions"> {
  let summary = "the model's parts work on the sequences of a device of the context axis; keys are gathered, or heads";
  let description = [{
    `%o, %lse = nn.attention %q, (%k, %v)` ~~> `%a = nn.gather_runs %k over <context>`, the same of %v, and
    `nn.attention %q, (%a, %b) {zigzag = 2}` on half the rows; with `attention heads` of the mesh q, k and v go through
    `nn.runs_to_heads`, and `%o` of the own heads through `nn.heads_to_runs`; fewer heads of keys than devices through
    `nn.repeat_heads` first. Programs without a mesh, or with `context = 1`, stay as they are.
  }];
  let dependentDialects = ["::pp::nn::NnDialect"];
}

def CutExperts : PpPass<"cut-experts", "actions"> {
  let summary = "the model's parts have the experts of one device; rows go to the devices of their experts, and back";
  let description = [{
    `%rows = nn.dispatch %x, %places` and `%y = nn.combine %rows, %places` ~~> the same with `nn.exchange_sections`
    behind the one and in front of the other; counts and weights of rows go with them. Programs without a mesh, or with
    `expert = 1`, stay as they are.
  }];
  let dependentDialects = ["::pp::nn::NnDialect"];
}

def SplitParts : PpPass<"split-parts", "actions"> {
  let summary = "the model's parts are cut over the devices of the tensor axis, with the exchanges that this needs";
  let description = [{
    `%z = nn.linear %o, %wo; %y = nn.add %x, %z` ~~> the same on the columns of %o and the rows of %wo that a device
    has, with `%s = nn.all_reduce %z over <tensor>; %y = nn.add %x, %s`. Layouts are chosen for each kind of layer
    (passes/layouts/ChooseLayouts.cpp). Programs without a mesh, or with `tensor = 1`, stay as they are.
  }];
  let dependentDialects = ["::pp::nn::NnDialect"];
}

def QuantizeProducts : PpPass<"quantize-products", "actions"> {
  let summary = "linears of layers multiply numbers of 8 bits, if the program says `products fp8_row` or `fp8_tile`";
  let description = [{
    `%y = nn.linear %x, %w` ~~> `%a = nn.quantize %x {rows = 1}; %b = nn.quantize %w {columns = 1}; %y = nn.linear %a,
    %b`. Embedding, head, routers, experts, norms, attention and adapters stay in the program's precision (docs/fp8.md).
  }];
  let dependentDialects = ["::pp::nn::NnDialect"];
}

def VerifyLayouts : PpPass<"verify-layouts", "actions"> {
  let summary = "every op of every part and task body computes by a rule of layouts on what the devices have";
  let description = [{
    `%y = nn.linear %x, %w` with %x `full` and %w cut by columns ~~> error: no rule, with the layouts of the operands.
    Layouts are recomputed from the cuts of weights and the exchanges alone (docs/meshes.md).
  }];
}

def VerifyUnits : PpPass<"verify-units", "actions"> {
  let summary = "every unit of the step exactly once: one F, and one B or one I and one W";
  let description = [{ `unit F(0, 1) .. unit F(0, 1)` ~~> error: `F(0, 1)` runs twice, with a note at the first. }];
}

def VerifyBarrier : PpPass<"verify-barrier", "actions"> {
  let summary = "a step without a barrier has nothing that needs one";
  let description = [{
    `optimizer = {barrier = false}` and a piece whose weights are on two ranks ~~> error that names the piece.
  }];
}

def FreezeWeights : PpPass<"freeze-weights", "actions"> {
  let summary = "what a schedule does for frozen weights vanishes, and every backward before the first trained one";
  let description = [{
    `unit B(0, 3); unit B(1, 3); unit B(2, 3); transfer grad(2) ..`, with `freeze` of all weights of stages 0 and 2 ~~>
    `unit B(1, 3); unit I(2, 3)`. Pieces get the names of their frozen weights.
  }];
}

def FuseUnits : PpPass<"fuse-units", "actions"> {
  let summary = "an I and the W right after it become B, where no message stands between them";
  let description = [{
    `unit I(0, 3); unit W(0, 3)` ~~> `unit B(0, 3)`, if the backward of the piece before runs on the same rank, or there
    is none, and the schedule does not move the piece's gradient. `pp-compile --fuse=false` leaves this pass out.
  }];
}

def FuseEpilogues : PpModulePass<"fuse-epilogues"> {
  let summary = "a product and the gelu, its derivative, the residual or the bias gradient beside it become one op";
  let description = [{
    `%u = nn.linear ..; %y = nn.gelu %u` ~~> `%u, %y = nn.linear_gelu ..`. In the same way `linear` joins the `add` of a
    residual, `linear_dx` joins `gelu_bwd`, and `linear_dw` joins `bias_dw`, inside one body. cuBLASLt runs such a pair
    as one kernel. `pp-compile --epilogues` asks for this pass, and `--target=cuda` does.
  }];
  let dependentDialects = ["::pp::nn::NnDialect"];
}

def LinearizeActions : PpPass<"linearize-actions", "actions"> {
  let summary = "merge the ranks' lists into one order in which every input is there";
  let description = [{
    `on 0 { F F B B } on 1 { F B F B }` ~~> `F(0, 0) F(1, 0) F(0, 1) ..`: of the actions that may go, the pass takes
    the one that starts first in unit time (F 1, B 2, I 1, W 1), and of those the one of the lowest rank. The place of a
    rank's list in the text does not matter. A projection of this order cannot deadlock.
  }];
}

def DeriveForward : PpPass<"derive-forward", "actions"> {
  let summary = "a second program with the units F alone and what they read, for evaluation";
  let description = [{
    `program @t { unit F(0, 0); transfer weight(1) ..; unit F(1, 0); unit B(1, 0); .. }` ~~> the same, and
    `program @t_forward .. {forward} { unit F(0, 0); transfer weight(1) ..; unit F(1, 0) }` with tasks of its own, which
    save nothing. Weights and optimizer state lie where those of the training program do, and nothing writes them.
    `pp-compile --forward=false` leaves this pass out.
  }];
  let dependentDialects = ["::pp::nn::NnDialect"];
}

def VerifyArrivals : PpPass<"verify-arrivals", "actions"> {
  let summary = "what a rank holds of a gradient when it leaves follows from the schedule";
  let description = [{
    `on 0 { move grad(2) to 1 } on 1 { move grad(2) to 2 }` ~~> error: order of arrival of `grad(2)` on rank 1 is not
    determined. Rank 0's share goes on to rank 2 or stays on rank 1, and neither the lists nor data say which.
  }];
}

def CompleteStep : PpPass<"complete-step", "actions"> {
  let summary = "the step in SSA: tasks on placed values, inferred moves, reductions, updates, weight returns";
  let description = [{
    `unit F(0, 0) on [0]; unit F(1, 0) on [1]` ~~> `%a = task @s0.F ..; %f = move act(0, 0) %a; %b = wait %f; task
    @s1.F`.
  }];
}

def HoistMoves : PpPass<"hoist-moves", "step"> {
  let summary = "weights leave earlier, as far as the simulator says that the step gains by it";
  let description = [{
    `task F(0, 0); move weight(1); wait; task F(1, 0)` ~~> `move weight(1); task F(0, 0); wait; task F(1, 0)`. All moves
    of weights move by one distance, counted in tasks of their ranks. The pass takes the shortest distance with which
    the simulated step is fastest, within the schedule's limits and the memory of the ranks. `pp-compile --hoist` asks
    for this pass.
  }];
  let options = [
    Option<"costs", "costs", "std::string", "", "what the simulator counts in, as pp-compile --costs">,
    Option<"distance", "distance", "int64_t", "0", "use this distance, or the largest below it that limits allow">,
    Option<"memoryLimit", "memory-limit", "int64_t", "-1", "bytes that a rank may allocate, -1 for the cluster's">,
  ];
}

def VerifyLimits : PpPass<"verify-limits", "step"> {
  let summary = "the schedule's own memory claims (`limit`) hold on every rank";
  let description = [{ `limit stash 2 on [0]` ~~> error: rank 0 holds 3 stashes at once; the limit is 2. }];
}

def JoinUnits : PpPass<"join-units", "step"> {
  let summary = "units of one `together` on one rank stand side by side, where devices of a mesh exchange inside them";
  let description = [{
    `task F(0, 1); move act(0, 1); wait dact(1, 0); task B(0, 0)` ~~> `wait dact(1, 0); task F(0, 1) beside;
    task B(0, 0); move act(0, 1)`. So one unit's exchanges can hide behind the other's computation. Not done where the
    second unit waits for what another rank makes of the first. `pp-compile --interleave=false` leaves it out.
  }];
}

def HideExchanges : PpPass<"hide-exchanges", "step"> {
  let summary = "ops of a body stand behind an exchange that they do not need, as many as hide it";
  let description = [{
    `%dw = linear_dw; %dx = linear_dx; %s = all_reduce %dx` ~~> `%dx = linear_dx; %s = all_reduce %dx; %dw = linear_dw`.
    So a body computes while it waits for its own message. By the cluster's times, or, without one, by the arithmetic
    and the bytes of the ops. `pp-compile --interleave=false` leaves it out.
  }];
}

def InterleaveUnits : PpPass<"interleave-units", "ranks"> {
  let summary = "in which turns the ops of two launches run that stand side by side";
  let description = [{
    `launch F(0, 1) beside []; launch B(0, 0)` ~~> `launch F(0, 1) beside [3, 8, 5, 2]; launch B(0, 0)`: 3 ops of F,
    8 of B, 5 of F, 2 of B. By the cluster's times, or, without one, by the arithmetic and the bytes of the ops.
  }];
}

def VerifyOps : PpModulePass<"verify-ops"> {
  let summary = "every op is well formed: operands come first, types and attributes fit each other";
  let description = [{
    What MLIR does after every pass, `pp-compile` does once for the step and once for the planned programs of the ranks:
    a pass over a million units costs less than such a check. `task .. ties [7]` on three operands ~~> error at the
    task.
  }];
}

def PlanBodies : PpModulePass<"plan-bodies"> {
  let summary = "give every value inside a task function a place in its slots or its scratch memory";
  let description = [{
    `%1 = nn.linear ..` ~~> the same with `pipeline.buffers`, and `pipeline.scratch_bytes` on the function. An op behind
    an exchange that touches none of its memory gets `pipeline.overlaps`: it runs while the message is under way. Of an
    I also `pipeline.handed`: what waits for W and lies where a tensor of the stash lay, because it is that tensor or
    nobody reads that one any more.
  }];
}

def ProjectRanks : PpPass<"project-ranks", "step"> {
  let summary = "one program per rank: launches, posts and completes, in the step's order";
  let description = [{
    `%f = move %a; %b = wait %f` ~~> on the sender `post send`, on the receiver `post receive` at the same place of the
    order and `complete` where the `wait` stands. A send completes after the launch that follows it.
  }];
  let options = [
    Option<"stretch", "stretch", "int64_t", "65536", "ops of the step that are projected, and then erased, at a time">,
  ];
}

def PlanSlots : PpPass<"plan-slots", "ranks"> {
  let summary = "give every slot an offset in its rank's arena; two live slots never overlap";
  let description = [{
    `slot act ..` ~~> `slot act .. offset 4096`, and `arena` on the rank. Where a plan of whole slots is more than a
    fiftieth above the largest live set, and where launches hand tensors on, stashes lie apart: `slot stash .. places
    [4096, 0]`.
  }];
  let options = [
    Option<"improve", "improve", "bool", "true", "make every plan small; else only one that must be smaller to fit">,
    Option<"limit", "limit", "int64_t", "-1", "bytes that a rank may allocate, -1 for the cluster's">,
  ];
}

def DeriveRedo : PpPass<"derive-redo", "ranks"> {
  let summary = "a second program of a step without a barrier: undo, update and forwards once more";
  let description = [{
    `launch F(0, 0); launch @s0.judge judges; launch B(0, 0); launch @s0.U` ~~> the same, and `program @t_redo .. {redo}
    { launch F(0, 0); launch @s0.judge judges; launch @s0.redo; launch F(0, 0); launch @s0.judge judges; launch B(0, 0);
    launch @s0.U }`: what runs where the norm shows that the update before was wrong. Programs whose updates wait for
    the norm stay as they are.
  }];
}

def ProveBodies : PpPass<"prove-bodies", "ranks"> {
  let summary = "every task body computes what the parts of its piece derive";
  let description = [{
    `nn.linear_dw %dy, %dy` in `@s0.B` where the parts derive `nn.linear_dw %x, %dy` ~~> error at the op. All bodies are
    derived again and compared value by value. `pp-compile` runs this pass on rank programs that it reads from a file.
  }];
}

def ProveUnits : PpPass<"prove-units", "ranks"> {
  let summary = "the ranks together launch every unit of the step exactly once";
  let description = [{
    `launch F(0, 1)` on rank 0 and on rank 1 ~~> error with both places. verify-units checks the schedule; this pass
    checks what is lowered.
  }];
}

def ProveChannels : PpPass<"prove-channels", "ranks"> {
  let summary = "on every channel the k-th send is the k-th receive";
  let description = [{ `post send act(0, 1) .. / post receive act(0, 0) ..` ~~> error with both places. }];
}

def ProveProgress : PpPass<"prove-progress", "ranks"> {
  let summary = "no deadlock with zero buffering: the rank programs' waits have no cycle";
  let description = [{
    a cycle of waits between ranks ~~> error that tells it, rank by rank, and which post would remove it. `channels`
    says which messages share a lane; analysis/Execution.h defines the maps.
  }];
  let options = [
    Option<"channels", "channels", "::pp::ChannelMap", "::pp::ChannelMap::edge",
           "the channel map that progress is proved for", [{::llvm::cl::values(
             clEnumValN(::pp::ChannelMap::rank, "rank", "one lane for each rank"),
             clEnumValN(::pp::ChannelMap::direction, "direction", "a forward and a backward lane for each rank"),
             clEnumValN(::pp::ChannelMap::pair, "pair", "one lane for every two ranks"),
             clEnumValN(::pp::ChannelMap::edge, "edge", "one lane for every directed edge"),
             clEnumValN(::pp::ChannelMap::serial, "serial", "a post blocks all behind it on its rank"))}]>,
    Option<"all", "all", "bool", "false", "prove progress for each channel map">
  ];
}

def ProveValues : PpPass<"prove-values", "ranks"> {
  let summary = "every unit reads what it needs, every gradient has each microbatch once when it is used";
  let description = [{
    Executes the rank programs with labels for values: `launch B(1, 2)` on a slot that holds `act(0, 1)` ~~> error with
    the place that wrote it and the place of `act(0, 2)`. Sums are sets of terms, additions disjoint unions.
  }];
}

def ProveSlots : PpPass<"prove-slots", "ranks"> {
  let summary = "no live slot overlaps another, nothing is touched in flight";
  let description = [{ checks the plan of plan-slots with a sweep of its own over the finished rank programs. }];
}

def ProveMemory : PpPass<"prove-memory", "ranks"> {
  let summary = "no rank allocates more bytes than its limit";
  let description = [{
    `rank 0 arena 4096` with a limit of 2048 ~~> error: the rank, the instant, its largest roles, the limit that would
    pass. Without the option, `memory` of the program's `cluster` is the limit; without both there is none.
  }];
  let options = [Option<"limit", "limit", "int64_t", "-1", "bytes that a rank may allocate, -1 for the cluster's">];
}

#endif // PP_PASSES_PASSES_TD
