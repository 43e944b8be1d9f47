// Proves that every unit reads what it needs, and that every gradient has each microbatch once when it is used.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Before: rank programs. After: the same, or one error that tells which value is where it should not be (docs/proofs.md
// 3, 4).
//
//   rank 0:  launch F(0, 1) writes act(0, 1) ─send─▶ rank 1: complete; launch F(1, 1) reads act(0, 1): the one it needs
//   rank 1:  launch B(1, 0): grad(1) = {0};  launch B(1, 1): grad(1) = {0, 1};  U(1) needs {0, 1} and weight(1)
//
// The programs are executed with labels for values: LabelRules.cpp says what each group of a body must hold and what it
// makes. A sum's label is the set of its terms; additions are disjoint unions.
//
// Without a barrier (docs/barrier.md) a step judges the update before it. In the program that does it over, weights and
// states are doubtful when it begins, and so is all that its first forwards make of them, wherever it travels. No label
// that a unit needs is `doubtful`: the proof fails if anything of it is read behind the redo.
//
// One step is enough for all: it reads nothing that it, or the trainer, did not write, and when it ends every slot that
// the trainer bound to a weight or an optimizer state holds the updated one. So the next step begins as this one did,
// one version later, and a copy that stayed old, at a second home or in a ring, is an error at the end of this one.
// (Executing two steps would show the same a step later, at twice the cost.) prove-progress has shown that the
// programs end, prove-slots shows that slots keep what was written until it is read and that nothing is touched on its
// way; so no order of execution changes a label.
#include "analysis/Exchange.h"
#include "analysis/Execution.h"
#include "analysis/Optimizer.h"
#include "analysis/Proof.h"
#include "analysis/Vocabulary.h"
#include "dialect/pipeline/Ranges.h"
#include "passes/Passes.h"
#include "passes/prove/LabelRules.h"
#include "passes/prove/Values.h"

namespace pp {
#define GEN_PASS_DEF_PROVEVALUES
#include "passes/Passes.h.inc"
} // namespace pp

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;

namespace {

class ValueProof : public ExecutionListener {
public:
  ValueProof(ModuleOp module, ProgramOp program, const BodyTable &bodies)
      : module(module), program(program), values(program, bodies) {}

  LogicalResult prove() {
    begin();
    Execution execution(program);
    execution.run(*this);
    if (failed(result))
      return failure();
    for (int64_t rank = 0; rank < execution.ranks(); ++rank)
      if (!execution.hasEnded(rank)) {
        PostOp post = execution.waitsFor(rank);
        return emitError(post.getLoc()) << "rank " << rank << " waits for `" << post.getThing().str()
                                        << "` for ever; prove-progress tells why" << withLoops(post);
      }
    if (failed(end()) || failed(proveBindings(program)))
      return failure();
    recordFacts();
    return success();
  }

  void launched(int64_t rank, LaunchOp launch) override {
    if (succeeded(result))
      result = isDoubtful(rank, launch) ? executeDoubtful(launch) : execute(launch);
    if (launch.getJudges() && stages[rank] == Stage::Doubt)
      stages[rank] = Stage::Redo;
  }
  void posted(int64_t rank, PostOp post) override {
    Value written = post.writtenSlot();
    if (succeeded(result) && written && written != post.readSlot())
      result = write(written, Label(), post);
    if (written)
      values.of(written).arriving = post;
  }
  void delivered(ArrayRef<std::pair<int64_t, PostOp>> ends) override {
    PostOp first = ends.front().second;
    if (failed(result))
      return;
    if (first.jointName() == "sum" && first.isCollective()) {
      bool isShard = llvm::is_contained({Role::act, Role::dact}, first.getThing().getRole());
      result = first.isInPlace() ? scatterOverMesh(first)
               : first.getAxes() ? sumOverMesh(first)
               : isShard         ? sumShards(ends)
                                 : sum(ends);
      return;
    }
    if (first.getKind() == PostKind::all_gather) {
      result = first.isInPlace() ? gatherOverMesh(first) : gather(ends);
      return;
    }
    auto *source = llvm::find_if(ends, [](auto &end) { return bool(PostOp(end.second).readSlot()); });
    for (auto [rank, post] : ends)
      if (succeeded(result) && post != source->second)
        result = deliver(source->second, post);
  }
  void completed(int64_t rank, PostOp post) override {
    if (Value written = post.writtenSlot())
      values.of(written).arriving = nullptr;
  }

private:
  ModuleOp module;
  ProgramOp program;
  Values values;
  LogicalResult result = success();
  DenseMap<Attribute, BodyLabels> bodies;        ///< by callee
  std::vector<std::pair<SlotOp, Label>> outputs; ///< what the trainer reads after the step, or the next step
  const bool late = !program.getForward() && !Optimizer(program).hasBarrier();
  /// The stage of a rank in the program that repeats an update: before the first judge, behind it, and from the
  /// repeated forwards on.
  enum class Stage : uint8_t { Doubt, Redo, Sure };
  std::vector<Stage> stages = std::vector(size_t(program.getRanks()), program.getRedo() ? Stage::Doubt : Stage::Sure);
  bool makesLosses = false, keepsOld = false; ///< keepsOld: versions of weights from before the step
  int64_t reads = 0, weightReads = 0;         ///< checked, for the record

  void recordFacts() const {
    int64_t updates = 0, contributions = 0;
    for (int64_t piece = 0; piece < values.pieces.size(); ++piece)
      if (values.pieces.trains(piece)) {
        ++updates;
        contributions += values.wholeGradient(piece);
      }
    recordProof(program, "values", {{"reads", reads}, {"weights", weightReads}});
    recordProof(program, "gradients", {{"gradients", updates}, {"contributions", contributions / values.steps}});
  }

  //===-- The ends of a step ------------------------------------------------------------------------------------===//

  void begin() {
    llvm::DenseMap<Attribute, int64_t> numbers;
    for (int64_t piece = 0; piece < values.pieces.size(); ++piece)
      numbers[FlatSymbolRefAttr::get(values.pieces.op(piece).getSymNameAttr())] = piece;
    for (auto rank : program.getOps<RankOp>())
      for (auto slot : rank.getOps<SlotOp>())
        if (BindingAttr binding = slot.getBindingAttr())
          bind(slot, binding, numbers);
  }

  void bind(SlotOp slot, BindingAttr binding, const llvm::DenseMap<Attribute, int64_t> &numbers) {
    struct Kind {
      BindingKind kind;
      What what;
      bool before, after;
    };
    static constexpr Kind kinds[] = {{BindingKind::weight, What::weight, true, true},
                                     {BindingKind::previous, What::weight, true, true},
                                     {BindingKind::opt, What::opt, true, true},
                                     {BindingKind::tokens, What::tokens, true, false},
                                     {BindingKind::targets, What::targets, true, false},
                                     {BindingKind::grad, What::grad, false, true},
                                     {BindingKind::norm, What::norm, false, true},
                                     {BindingKind::loss, What::loss, false, true},
                                     {BindingKind::source, What::source, true, false},
                                     {BindingKind::starts, What::starts, true, false},
                                     {BindingKind::positions, What::positions, true, false},
                                     {BindingKind::rows, What::rows, true, false},
                                     {BindingKind::column, What::column, true, false},
                                     {BindingKind::undo, What::undo, true, true}};
    auto *kind = llvm::find_if(kinds, [&](const Kind &kind) { return kind.kind == binding.getKind(); });
    Label label;
    label.what = kind->what;
    if (binding.getPiece())
      label.piece = numbers.lookup(binding.getPiece());
    label.microbatch = binding.getMicrobatch();
    label.slice = binding.getSlice();
    bool isNumbered = binding.isColumn() || binding.getAhead() > 0;
    label.shard = isNumbered ? binding.getNumber() : binding.getShard();
    label.version = -binding.getBack();
    keepsOld |= binding.getBack() > 0;
    if (kind->what == What::undo)
      label.version = -1; // of the update before
    if (kind->before)
      values.of(slot).label = label;
    if (program.getRedo() && (kind->what == What::weight || kind->what == What::opt) &&
        values.pieces.trains(label.piece))
      values.of(slot).label = doubtful();
    if (kind->before && kind->after && values.pieces.trains(label.piece))
      label.version += values.updates;
    if (kind->what == What::norm)
      label.version = late ? -1 : values.updates - 1;
    if (kind->what == What::grad)
      label.part = values.pieces.isCutOverMesh(label.piece);
    if (kind->after)
      outputs.push_back({slot, label});
  }

  LogicalResult end() {
    llvm::BitVector losses(makesLosses ? values.unitsOfStep() : 0);
    for (auto [slot, wanted] : outputs) {
      const SlotState &state = values.of(slot);
      bool fits = state.label == wanted;
      if (wanted.what == What::loss) {
        fits = state.label.what == What::loss && state.label.microbatch == wanted.microbatch;
        if (fits)
          losses.set(state.label.microbatch * std::max<int64_t>(program.getSlices(), 1) +
                     std::max(state.label.slice, 0));
      }
      if (fits && wanted.what == What::grad)
        fits = !values.missingInGradient(wanted.piece, values.updates - 1, values.termsOf(state)) &&
               !values.strangeInGradient(wanted.piece, values.updates - 1, values.termsOf(state));
      if (fits && wanted.what == What::norm)
        fits = values.missingInNorm(values.termsOf(state)) < 0;
      if (!fits)
        return values.tellAtEnd(slot, wanted);
    }
    if (int lost = losses.find_first_unset(); lost >= 0)
      return emitError(program.getLoc()) << "no slot gives the trainer the loss of microbatch "
                                         << lost / std::max<int64_t>(program.getSlices(), 1);
    return success();
  }

  //===-- Doubt -------------------------------------------------------------------------------------------------===//

  static Label doubtful() {
    Label label;
    label.what = What::doubtful;
    return label;
  }

  static bool isOfNorm(BodyAttr body) {
    return llvm::is_contained({BodyVariant::norm, BodyVariant::norm_first, BodyVariant::judge}, body.getVariant());
  }

  /// Whether the launch's results are doubtful: before the first judge of a step that may be done over, everything but
  /// the norm is. Results that depend on the weights are wrong if an update was wrong, and the others are made again.
  bool isDoubtful(int64_t rank, LaunchOp launch) {
    if (stages[rank] == Stage::Sure)
      return false;
    BodyAttr body = values.bodies.of(launch);
    if (!body)
      return false;
    bool isOfRedo = llvm::is_contained({BodyVariant::redo, BodyVariant::tie_fresh}, body.getVariant());
    if (stages[rank] == Stage::Redo && !isOfRedo)
      stages[rank] = Stage::Sure;
    return stages[rank] == Stage::Doubt && !isOfNorm(body);
  }

  LogicalResult executeDoubtful(LaunchOp launch) {
    if (failed(readUnit(launch)))
      return failure();
    for (Value slot : launch.getResults())
      if (failed(write(slot, doubtful(), launch)))
        return failure();
    for (int64_t tie : bodies.find(launch.getCalleeAttr())->second.ties)
      if (tie >= 0)
        values.of(launch.getInputs()[tie]).label = doubtful();
    return success();
  }

  //===-- Launches ----------------------------------------------------------------------------------------------===//

  struct Unit {
    const BodyLabels &body;
    int64_t piece;
    CoordAttr coord;
    int64_t update;  ///< of which it is a part, or its gradient
    int64_t version; ///< of the weights that it reads
  };

  FailureOr<Unit> readUnit(LaunchOp launch) {
    CoordAttr coord = launch.getUnit().getCoord();
    auto [it, isNew] = bodies.try_emplace(launch.getCalleeAttr());
    if (isNew) {
      auto read = BodyLabels::get(module, launch);
      if (failed(read))
        return failure();
      it->second = std::move(*read);
    }
    bool isUpdate = launch.getUnit().getPhase() == Phase::U;
    int64_t update = isUpdate ? std::max<int64_t>(coord.getMicrobatch(), 0) : updateOf(program, coord.getMicrobatch());
    Unit unit{it->second, values.pieces.find(coord), coord, update, isUpdate ? update : versionOf(program, launch)};
    if (late && isUpdate && isOfUpdateBefore(launch, it->second.identity))
      --unit.update, --unit.version;
    size_t reads = unit.body.inputs.size(), writes = llvm::count(unit.body.ties, -1);
    if (reads != launch.getInputs().size() || writes != launch.getResults().size())
      return emitError(launch.getLoc()) << "`@" << launch.getCallee() << "` reads " << reads << " slots and writes "
                                        << writes << "; this launch gives " << launch.getInputs().size() << " and "
                                        << launch.getResults().size();
    BodyAttr identity = unit.body.identity;
    if (unit.piece >= 0 && values.pieces.op(unit.piece).getBodiesAttr() == identity.getPieces() &&
        identity.getPhase() == launch.getUnit().getPhase() && identity.getSlice() == coord.getSlice())
      return unit;
    return emitError(launch.getLoc()) << "`" << launch.getUnit().str() << "` on rank " << rankOf(launch) << " runs `@"
                                      << launch.getCallee() << "`, which is not its body" << withLoops(launch);
  }

  /// Without a barrier the norm belongs to the update before, and so does everything that is repeated of this update.
  bool isOfUpdateBefore(LaunchOp launch, BodyAttr body) const {
    return isOfNorm(body) || body.getVariant() == BodyVariant::redo || stages[rankOf(launch)] == Stage::Redo;
  }

  /// The number of a value that skips parts, or of its gradient.
  int64_t skipOf(const Unit &unit, const BodyGroup &group, bool input) const {
    Role role = group->what == What::act ? Role::act : Role::dact;
    auto skips = input ? values.pieces.skipsInto(unit.piece, role) : values.pieces.skipsFrom(unit.piece, role);
    return group.chunk < static_cast<int64_t>(skips.size()) ? skips[group.chunk] : -1;
  }

  Label labelOf(const Unit &unit, const BodyGroup &group, bool input) const {
    Label label;
    label.what = group->what;
    bool ofUnit = group->span == LabelSpan::Unit || group->span == LabelSpan::Chunk || group->span == LabelSpan::Cut;
    if (group->span == LabelSpan::Piece || ofUnit)
      label.piece = unit.piece;
    if (input && group->from < 0)
      label.piece = *piecesBefore(values.pieces, unit.piece).begin();
    if ((input || group->what == What::kv) && group->from > 0) // keys are of the piece that attends them
      label.piece = *piecesAfter(values.pieces, unit.piece).begin();
    if (llvm::is_contained({What::act, What::dact}, group->what) && group.chunk >= 0)
      label.piece = skipOf(unit, group, input);
    if (group->span == LabelSpan::Tokens || ofUnit) {
      label.microbatch = unit.coord.getMicrobatch();
      label.slice = group->span == LabelSpan::Chunk ? group.chunk : unit.coord.getSlice();
    }
    bool isCut = unit.body.identity.getVariant() == BodyVariant::cut; // from the whole, as it is, a shard
    bool makes = (!input && !isCut) || unit.body.rule->updated;
    if ((group->what == What::weight || group->what == What::opt) && values.pieces.trains(unit.piece))
      label.version = unit.version + (makes && !isCopyOfOld(unit));
    else if (group->what == What::fresh || group->what == What::norm || group->what == What::undo)
      label.version = unit.update;
    if (group->span == LabelSpan::Piece && !(isCut && input))
      label.shard = unit.body.identity.getShard();
    else if (ofUnit)
      label.shard = group->span == LabelSpan::Cut ? group.chunk : group.attention;
    if (group->what == What::grad)
      label.pending = !isOfAllReplicas(unit) && values.isSummedOverMesh(unit.piece, label.shard);
    label.terms = group->what == What::grad && !isMerged(unit, input) && values.pieces.hasTerms(unit.piece);
    bool isOwn = group->what == What::grad || (group->what == What::weight && !input && updatesWeights(unit));
    label.part = isOwn && isOfAllReplicas(unit) && values.pieces.isCutOverMesh(unit.piece);
    if (group->span == LabelSpan::Tokens)
      label.shard = group.chunk;
    bool isShard = vocabularyShards(values.pieces, unit.piece) > 0;
    if (isShard && llvm::is_contained({What::act, What::dact, What::stats}, group->what) &&
        (!input || group->what == What::stats)) {
      label.piece = leadOf(values.pieces, unit.piece);
      label.shard = input ? -1 : unit.piece - label.piece;
    }
    if ((group->what == What::share && input) || (group->what == What::fresh && !input)) {
      ArrayRef<int64_t> sharers = values.sharers[unit.piece];
      int64_t sharer = unit.body.identity.getSharer();
      bool isSharer = sharer >= 0 && sharer < static_cast<int64_t>(sharers.size());
      label.piece = isSharer ? sharers[sharer] : -1;
    }
    return label;
  }

  /// The norm and the update read what the replicas have summed, and so does what adds up shards; all else makes, or
  /// reads, a replica's own gradient.
  bool isOfAllReplicas(const Unit &unit) const {
    BodyVariant variant = unit.body.identity.getVariant();
    if (unit.body.identity.getPhase() != Phase::U)
      return false;
    return llvm::is_contained({BodyVariant::plain, BodyVariant::norm, BodyVariant::norm_first}, variant) ||
           (values.pieces.sumsShards(unit.piece) &&
            llvm::is_contained({BodyVariant::first, BodyVariant::sum, BodyVariant::tie_out}, variant));
  }

  /// The norm and the update read sums over `tensor`; until then some of a gradient may be a term on each device.
  static bool isMerged(const Unit &unit, bool input) {
    BodyVariant variant = unit.body.identity.getVariant();
    return unit.body.identity.getPhase() == Phase::U &&
           (llvm::is_contained({BodyVariant::plain, BodyVariant::norm, BodyVariant::norm_first}, variant) ||
            (variant == BodyVariant::merge && !input));
  }

  static bool updatesWeights(const Unit &unit) {
    return unit.body.identity.getPhase() == Phase::U && unit.body.identity.getVariant() == BodyVariant::plain;
  }

  /// If old versions are kept, a copy may be of any version; its reader asks for the right one.
  bool isCopyOfOld(const Unit &unit) const {
    return unit.body.identity.getVariant() == BodyVariant::copy && (keepsOld || values.updates > 1);
  }

  LogicalResult execute(LaunchOp launch) {
    FailureOr<Unit> unit = readUnit(launch);
    if (failed(unit))
      return failure();
    if (isCopyOfOld(*unit))
      unit->version = values.of(launch.getInputs().front()).label.version;
    Value grad, share, norm;
    Terms parts;
    size_t part = 0;
    for (auto [number, slot, group] : llvm::enumerate(launch.getInputs(), unit->body.inputs)) {
      SlotState &state = values.of(slot);
      bool isReplaced = unit->body.identity.getVariant() == BodyVariant::redo &&
                        (group->what == What::weight || group->what == What::opt);
      if (Label wanted = labelOf(*unit, group, true); (state.label != wanted && !isReplaced) || state.arriving)
        return values.tellWrongRead(launch, slot, wanted);
      ++reads;
      weightReads += group->what == What::weight;
      if (group->what == What::norm)
        norm = slot;
      else if (group->what == What::share || (group->what == What::grad && (grad || unit->body.beginsSum())))
        share = slot;
      else if (group->what == What::grad)
        grad = slot;
      else if (group->what == What::dkv && unit->body.sumsChunk()) {
        if (failed(addTerm(launch, number == 0 ? Value() : slot)))
          return failure();
      } else if (group->what == What::dkv && failed(addToChunk(launch, unit->coord.getSlice(), slot,
                                                               llvm::is_contained(unit->body.ties, int64_t(number)))))
        return failure();
      else if (values.of(slot).label.isPart() && failed(mergePart(launch, *unit, slot, part++, parts)))
        return failure();
    }
    if (failed(checkParts(launch, *unit, part > 0, parts)))
      return failure();
    if (failed(checkWhole(launch, *unit, grad, norm)))
      return failure();
    Terms made;
    return success(succeeded(add(launch, *unit, grad, share, norm, made)) &&
                   succeeded(writeResults(launch, *unit, unit->body.identity.isPart() ? parts : made)));
  }

  /// Whoever goes on with a part adds the keys that it reads itself; in the end all are there.
  LogicalResult checkParts(LaunchOp launch, const Unit &unit, bool merges, Terms &parts) {
    BodyAttr body = unit.body.identity;
    if (body.isPart() || (merges && body.isRestOfAhead()))
      if (auto twice = parts.add(keysOf(unit)))
        return values.tellWrongParts(launch, *twice, "twice");
    if (auto lacks = merges && !body.isPart() ? parts.firstMissing(unit.coord.getSlice() + 1) : std::nullopt)
      return values.tellWrongParts(launch, *lacks, "in none of them");
    return success();
  }

  /// A slice adds its part to the gradient of keys that it saw, after all slices behind it; the keys' own adds last.
  /// Where a unit is cut, its parts add, and a step takes the gradient of the unit's own keys.
  LogicalResult addToChunk(LaunchOp launch, int32_t slice, Value slot, bool adds) {
    SlotState &state = values.of(slot);
    Terms &sum = values.terms[state.terms];
    for (int32_t later = slice + adds; later < static_cast<int32_t>(program.getSlices()); ++later)
      if (!sum.contains(later))
        return values.tellChunkLacks(launch, slot, later);
    if (auto twice = adds ? sum.add(slice) : std::nullopt)
      return values.tellTwice(launch, slot, slot, *twice);
    state.taken = state.label.slice == slice;
    return success();
  }

  /// One more share of the gradient of a chunk goes into the first input; null for that one itself.
  LogicalResult addTerm(LaunchOp launch, Value slot) {
    if (!slot)
      return success();
    Value into = launch.getInputs().front();
    if (auto twice = values.terms[values.of(into).terms].add(values.termsOf(values.of(slot))))
      return values.tellTwice(launch, into, slot, *twice);
    values.of(slot).taken = true;
    return success();
  }

  static Terms termsOf(ArrayRef<int64_t> slices) {
    Terms terms;
    for (int64_t slice : slices)
      terms.add(slice);
    return terms;
  }

  /// The first part is of the keys that stay, then one for each help of the plan. That of another's keys in its place
  /// is told by those that are there twice or not at all.
  LogicalResult mergePart(LaunchOp launch, const Unit &unit, Value slot, size_t number, Terms &parts) {
    SlotState &state = values.of(slot);
    BodyAttr body = unit.body.identity;
    const Terms &given = values.termsOf(state);
    state.taken = true;
    if (auto twice = parts.add(given))
      return values.tellWrongParts(launch, *twice, "twice");
    if (body.isPart()) // attended ahead so far
      return success();
    CutPlan plan = body.getCut() ? CutPlan::of(body.getCut()) : CutPlan();
    Terms wanted;
    if (body.isRestOfAhead())
      for (KeysAttr help : plan.helps)
        wanted.add(termsOf(help.getSlices()));
    else if (number == 0)
      wanted = termsOf(plan.kept(unit.coord.getSlice()));
    else if (number <= plan.helps.size())
      wanted = termsOf(plan.helps[number - 1].getSlices());
    return given == wanted ? success() : values.tellWrongParts(launch, given.front(), "where others belong");
  }

  /// An error if a gradient that is read lacks terms.
  LogicalResult checkWhole(LaunchOp launch, const Unit &unit, Value grad, Value norm) {
    if (norm && llvm::is_contained({BodyVariant::judge, BodyVariant::redo}, unit.body.identity.getVariant()))
      if (int64_t piece = values.missingInNorm(values.termsOf(values.of(norm))); piece >= 0)
        return values.tellNormLacks(launch, norm, piece);
    if (!unit.body.rule->whole || !grad) // a piece with nothing but tied weights updates none by its gradient
      return success();
    const Terms &sum = values.termsOf(values.of(grad));
    if (auto missing = values.missingInGradient(unit.piece, unit.update, sum))
      return values.tellMissing(launch, grad, *missing);
    if (auto strange = values.strangeInGradient(unit.piece, unit.update, sum))
      return values.tellStrange(launch, grad, *strange);
    bool isUpdate = unit.body.has(What::weight, /*input=*/true);
    if (int64_t piece = norm && isUpdate ? values.missingInNorm(values.termsOf(values.of(norm))) : -1; piece >= 0)
      return values.tellNormLacks(launch, norm, piece);
    values.of(grad).taken |= isUpdate;
    return success();
  }

  /// The terms of the sum that this launch makes: of its tied input, which is added to in place, or a new one.
  LogicalResult add(LaunchOp launch, const Unit &unit, Value grad, Value share, Value norm, Terms &made) {
    Value into = unit.body.adds() == Adds::Norm ? norm : grad;
    Terms &sum = into ? values.terms[values.of(into).terms] : made;
    std::optional<int32_t> twice;
    switch (unit.body.adds()) {
    case Adds::Nothing:
      if (unit.body.has(What::share, /*input=*/false))
        made = sum;
      return success();
    case Adds::None:
      return success();
    case Adds::Unit:
      twice = sum.add(stepsOf(unit));
      break;
    case Adds::Norm:
      twice = sum.add(values.normTerm(unit.piece, unit.body.identity.getShard()));
      break;
    case Adds::Share:
    case Adds::Tied:
      twice = sum.add(values.termsOf(values.of(share)),
                      unit.body.adds() == Adds::Tied ? values.unitCount() * (1 + unit.body.identity.getSharer()) : 0);
      values.of(share).taken = true;
    }
    return twice ? values.tellTwice(launch, into, share ? share : grad, *twice) : success();
  }

  /// The terms that this body adds to the gradient of its unit: its step. The last step stands for all later ones that
  /// other units may have.
  Terms stepsOf(const Unit &unit) const {
    BodyAttr body = unit.body.identity;
    int32_t first = values.unitNumber(unit.coord), step = body.isStep() ? body.getCut().getNumber() : 0;
    return body.endsUnit() ? Terms(first + step, first + values.steps - 1) : Terms(first + step);
  }

  /// The slices of the keys that a part of an attention reads.
  static Terms keysOf(const Unit &unit) {
    SmallVector<int64_t> slices;
    for (const BodyGroup &group : unit.body.inputs)
      if (group->what == What::kv)
        slices.push_back(group.chunk);
    return termsOf(slices);
  }

  LogicalResult writeResults(LaunchOp launch, const Unit &unit, const Terms &made) {
    auto results = launch.getResults().begin();
    for (auto [group, tie] : llvm::zip(unit.body.results, unit.body.ties)) {
      Label label = labelOf(unit, group, false);
      makesLosses |= label.what == What::loss;
      if (tie < 0) {
        bool isChunk = label.what == What::dkv;
        Terms terms = isChunk ? Terms(unit.coord.getSlice()) : made;
        if (failed(write(*results++, label, launch, terms)))
          return failure();
        continue;
      }
      SlotState &state = values.of(launch.getInputs()[tie]);
      if (label.isSum() && !state.label.isSum())
        setTerms(state, made);
      state.label = label;
      state.writer = launch;
    }
    return success();
  }

  LogicalResult write(Value slot, Label label, Operation *writer, const Terms &made = {}) {
    SlotState &state = values.of(slot);
    bool isGradient = state.label.isSum() && state.label.what != What::norm;
    if (isGradient && !state.taken && !values.termsOf(state).empty())
      return values.tellLost(writer, slot);
    state.label = label;
    state.writer = writer;
    state.taken = false;
    if (label.isSum())
      setTerms(state, made);
    return success();
  }

  void setTerms(SlotState &state, Terms made) {
    if (state.terms < 0) {
      state.terms = values.terms.size();
      values.terms.emplace_back();
    }
    values.terms[state.terms] = std::move(made);
  }

  //===-- Messages ----------------------------------------------------------------------------------------------===//

  /// Whether the label is the thing that the message names; the coordinates of the norm are its name.
  bool isCargo(const Label &label, ThingAttr thing) const {
    CoordAttr coord = thing.getCoord();
    return llvm::is_contained(cargoOf(thing.getRole()), label.what) &&
           (label.what == What::norm || (label.piece == values.pieces.find(coord) &&
                                         label.microbatch == coord.getMicrobatch() && label.slice == coord.getSlice()));
  }

  LogicalResult deliver(PostOp send, PostOp receive) {
    SlotState &from = values.of(send.getSlot()), &to = values.of(receive.getSlot());
    if (from.arriving || (from.label.what != What::doubtful && !isCargo(from.label, send.getThing())))
      return values.tellWrongSend(send);
    to.label = from.label;
    if (from.label.isSum()) {
      from.taken = true;
      setTerms(to, values.termsOf(from));
    }
    return success();
  }

  LogicalResult sum(ArrayRef<std::pair<int64_t, PostOp>> ends) {
    Terms total;
    PostOp first = ends.front().second;
    for (auto [rank, post] : ends) {
      const SlotState &state = values.of(post.getSlot());
      bool scatters = post.getKind() == PostKind::reduce_scatter;
      if (!isCargo(state.label, post.getThing()) || !state.label.isSum() || (scatters && state.label.shard >= 0) ||
          state.label != values.of(first.getSlot()).label)
        return values.tellWrongSend(post);
      if (auto twice = total.add(values.termsOf(state)))
        for (auto [other, holder] : ends)
          if (values.termsOf(values.of(holder.getSlot())).contains(*twice))
            return values.tellTwice(post, holder.getSlot(), post.getSlot(), *twice);
    }
    for (auto [rank, post] : ends) {
      SlotState &given = values.of(post.getSlot());
      Value written = post.writtenSlot();
      given.taken |= written != post.getSlot();
      if (!written)
        continue;
      SlotState &state = values.of(written);
      state.label = given.label;
      if (written != post.getSlot()) {
        state.label.shard = memberOf(post);
        state.label.pending &= values.isSummedOverMesh(state.label.piece, state.label.shard);
      }
      setTerms(state, total);
      state.writer = post;
    }
    return success();
  }

  /// Sums over the devices of a rank, which have the same terms of other sequences: everything but tied weights, and
  /// everything once.
  LogicalResult sumOverMesh(PostOp post) {
    SlotState &state = values.of(post.getSlot());
    if (state.label.what != What::grad || state.label.terms || !isCargo(state.label, post.getThing()))
      return values.tellWrongSend(post);
    if (!state.label.pending)
      return values.tellSummedTwice(post);
    if (failed(checkTensors(post, state.label, values.pieces.isCutOverMesh(state.label.piece))))
      return failure();
    state.label.pending = false;
    state.writer = post;
    return success();
  }

  /// Each replica gets the sum of its shard, and updates that alone.
  LogicalResult scatterOverMesh(PostOp post) {
    SlotState &state = values.of(post.getSlot());
    if (failed(sumOverMesh(post)))
      return failure();
    state.label.part = true;
    return success();
  }

  /// Each replica gives the shard of the weights that it has updated; now all of them have all.
  LogicalResult gatherOverMesh(PostOp post) {
    SlotState &state = values.of(post.getSlot());
    if (state.label.what != What::weight || !state.label.part || !isCargo(state.label, post.getThing()))
      return values.tellWrongSend(post);
    if (failed(checkTensors(post, state.label, /*inPlace=*/true)))
      return failure();
    state.label.part = false;
    state.writer = post;
    return success();
  }

  /// A message over the mesh must have all of the piece's own weights, join all devices that have the same weights, and
  /// be of the right kind.
  LogicalResult checkTensors(PostOp post, const Label &label, bool inPlace) {
    int64_t summed = values.pieces.summedTensors(label.piece, label.shard);
    SmallVector<Axis, 2> axes;
    for (Axis axis : {Axis::context, Axis::data})
      if (values.program.sizeOf(axis) > 1)
        axes.push_back(axis);
    if (post.getAxesAttr().getAxes() != ArrayRef(axes) || !post.getTensors() ||
        static_cast<int64_t>(*post.getTensors()) != summed)
      return emitError(post.getLoc()) << "rank " << post.getSelf() << " sums "
                                      << static_cast<int64_t>(post.getTensors().value_or(0)) << " tensors of `"
                                      << post.getThing().str() << "` over " << textOf(post.getAxesAttr())
                                      << "; expected " << summed << " over "
                                      << textOf(AxesAttr::get(post.getContext(), axes));
    if (post.isInPlace() != inPlace)
      return emitError(post.getLoc()) << "rank " << post.getSelf() << (inPlace ? " sums all of `" : " cuts `")
                                      << post.getThing().str() << "` over " << textOf(post.getAxesAttr())
                                      << (inPlace ? ", and its replicas update a shard each"
                                                  : ", and each of its replicas updates all of it");
    return success();
  }

  /// Sums the values of a part that is cut by the vocabulary: every shard must come exactly once.
  LogicalResult sumShards(ArrayRef<std::pair<int64_t, PostOp>> ends) {
    PostOp first = ends.front().second;
    Label whole = values.of(first.getSlot()).label;
    whole.shard = -1;
    llvm::BitVector seen(whole.piece < 0 ? 0 : vocabularyShards(values.pieces, whole.piece));
    for (auto [rank, post] : ends) {
      const SlotState &state = values.of(post.getSlot());
      Label wanted = whole;
      wanted.shard = state.label.shard;
      if (!isCargo(state.label, post.getThing()) || state.label != wanted || wanted.shard < 0 ||
          seen.test(wanted.shard))
        return values.tellWrongSend(post);
      seen.set(wanted.shard);
    }
    if (!seen.all())
      return values.tellWrongSend(first);
    for (auto [rank, post] : ends)
      if (Value written = post.writtenSlot()) {
        values.of(written).label = whole;
        values.of(written).writer = post;
      }
    return success();
  }

  /// Which of the members of a collective the rank is.
  static int32_t memberOf(PostOp post) { return llvm::find(post.getPeers(), post.getSelf()) - post.getPeers().begin(); }

  /// The k-th member gives the k-th shard of one and the same version.
  LogicalResult gather(ArrayRef<std::pair<int64_t, PostOp>> ends) {
    PostOp first = ends.front().second;
    Label whole = values.of(first.getShard()).label;
    whole.shard = -1;
    bool isPart = whole.what == What::stats && whole.piece >= 0;
    if (isPart && static_cast<int64_t>(ends.size()) != vocabularyShards(values.pieces, whole.piece))
      return values.tellWrongSend(first);
    for (auto [rank, post] : ends) {
      const SlotState &state = values.of(post.getShard());
      Label wanted = whole;
      wanted.shard = memberOf(post);
      if (state.arriving || !isCargo(state.label, post.getThing()) || state.label != wanted)
        return values.tellWrongSend(post);
    }
    for (auto [rank, post] : ends)
      values.of(post.getSlot()).label = whole;
    return success();
  }
};

struct ProveValues : public pp::impl::ProveValuesBase<ProveValues> {
  void runOnPrograms() override {
    markAllAnalysesPreserved();
    for (auto program : getOperation().getOps<ProgramOp>())
      if (failed(ValueProof(getOperation(), program, getAnalysis<BodyTable>()).prove()))
        signalPassFailure(); // and the next program: each has its own first error
  }
};

} // namespace
