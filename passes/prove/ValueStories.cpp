// Reports wrong values of a program: one error for each, with the places of the wrong and of the right value.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "dialect/pipeline/Ranges.h"
#include "passes/prove/Values.h"

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;

int64_t pp::rankOf(Operation *op) { return op->getParentOfType<RankOp>().getRank(); }

static std::string onRank(Operation *op) { return "rank " + std::to_string(rankOf(op)); }

/// `F(0, 2)` in back quotes; for what an update consists of, its name too: `norm` of `U(0)`.
std::string Values::nameOf(LaunchOp launch) const {
  std::string unit = "`" + launch.getUnit().str() + "`";
  BodyAttr body = bodies.of(launch);
  bool isStep = body && body.getPhase() == Phase::U && (!body.isUpdate() || body.getShard() >= 0);
  return isStep ? "`" + body.task() + "` of " + unit : unit;
}

/// ` and 3 more` where a sum lacks, or loses, not one term only.
static std::string andMore(int64_t count) { return count > 1 ? " and " + std::to_string(count - 1) + " more" : ""; }

/// Names the one at fault: a launch, the rank that posts, or the ranks that join a collective.
std::string Values::subject(Operation *op) const {
  if (auto launch = dyn_cast<LaunchOp>(op))
    return nameOf(launch) + " on " + onRank(op);
  auto post = cast<PostOp>(op);
  if (!post.isCollective())
    return onRank(op);
  std::string text;
  llvm::raw_string_ostream os(text);
  os << "the " << post.jointName() << " over ranks ";
  llvm::interleaveComma(post.getPeers(), os);
  return text;
}

//===-- What the program looks like -----------------------------------------------------------------------------===//

/// Whether a launch has the slot for itself: it holds no value before and after.
static bool isScratch(SlotOp slot) {
  auto launch = slot->hasOneUse() ? dyn_cast<LaunchOp>(*slot->user_begin()) : LaunchOp();
  return launch && launch.getScratch() == slot.getSlot();
}

Values::Values(ProgramOp program, const BodyTable &bodies)
    : program(program), bodies(bodies), pieces(program), sharers(pieces.size()), updates(program.countUpdates()) {
  for (int64_t piece = 0; piece < pieces.size(); ++piece)
    if (int64_t primary = pieces.primary(piece); primary >= 0)
      sharers[primary].push_back(piece);
  for (int64_t piece = 0; piece < pieces.size(); ++piece) {
    auto shards = static_cast<int64_t>(pieces.shards(piece).size());
    summed.emplace_back(shards + 1);
    for (int64_t shard = -1; shard < shards && program.sumMembers() > 1 && pieces.trains(piece); ++shard)
      summed.back()[shard + 1] = pieces.summedTensors(piece, shard) > 0;
  }
  norms.push_back(0);
  for (int64_t piece = 0; piece < pieces.size(); ++piece)
    norms.push_back(norms.back() + std::max<int64_t>(1, pieces.shards(piece).size()));
  std::vector<Value> known;
  for (auto rank : program.getOps<RankOp>())
    for (auto slot : rank.getOps<SlotOp>())
      if (!isScratch(slot))
        known.push_back(slot);
  numbers.reserve(known.size());
  for (Value slot : known)
    numbers.try_emplace(slot, numbers.size());
  slots.resize(known.size());
  for (auto rank : program.getOps<RankOp>())
    for (auto launch : rank.getOps<LaunchOp>())
      if (BodyAttr body = bodies.of(launch); body && body.isStep())
        steps = std::max<int32_t>(steps, body.getCut().getSteps());
}

int32_t Values::unitsOfStep() const {
  ProgramOp op = program;
  return op.getMicrobatches() * std::max<int64_t>(op.getSlices(), 1);
}

int32_t Values::unitNumber(CoordAttr coord) const {
  ProgramOp op = program;
  return (coord.getMicrobatch() * std::max<int64_t>(op.getSlices(), 1) + std::max<int64_t>(coord.getSlice(), 0)) *
         steps;
}

int64_t Values::missingInNorm(const Terms &norm) const {
  for (int64_t piece = 0; piece < pieces.size(); ++piece)
    for (int32_t term = norms[piece]; pieces.trains(piece) && term < norms[piece + 1]; ++term)
      if (!norm.contains(term))
        return piece;
  return -1;
}

std::optional<int32_t> Values::missingInGradient(int64_t piece, int64_t update, const Terms &sum) const {
  int32_t each = unitCount() / updates;
  for (int32_t use = 0; use <= static_cast<int32_t>(sharers[piece].size()); ++use)
    if (auto term = sum.firstMissing(use * unitCount() + update * each, use * unitCount() + (update + 1) * each))
      return term;
  return std::nullopt;
}

std::optional<int32_t> Values::strangeInGradient(int64_t piece, int64_t update, const Terms &sum) const {
  int32_t each = unitCount() / updates;
  for (int32_t use = 0; use <= static_cast<int32_t>(sharers[piece].size()); ++use) {
    int32_t begin = use * unitCount();
    if (auto term = sum.firstOf(begin, begin + update * each))
      return term;
    if (auto term = sum.firstOf(begin + (update + 1) * each, begin + unitCount()))
      return term;
  }
  return std::nullopt;
}

SlotOp Values::findSlot(llvm::function_ref<bool(const SlotState &)> holds) const {
  ProgramOp op = program;
  for (auto rank : op.getOps<RankOp>())
    for (auto slot : rank.getOps<SlotOp>())
      if (auto found = numbers.find(slot); found != numbers.end() && holds(slots[found->second]))
        return slot;
  return {};
}

LaunchOp Values::findLaunch(llvm::function_ref<bool(LaunchOp)> is) const {
  ProgramOp op = program;
  for (auto rank : op.getOps<RankOp>())
    for (auto launch : rank.getOps<LaunchOp>())
      if (is(launch))
        return launch;
  return {};
}

//===-- Notes ---------------------------------------------------------------------------------------------------===//

/// `.. made here by F(0, 1) on rank 0`: how the slot came to what it holds.
void Values::noteWriter(InFlightDiagnostic &error, Value slot, StringRef subject) const {
  Operation *writer = of(slot).writer;
  if (!writer) {
    error.attachNote(slot.getLoc()) << subject << " is there when the step begins";
    return;
  }
  auto &note = error.attachNote(writer->getLoc()) << subject;
  if (auto launch = dyn_cast<LaunchOp>(writer))
    note << (of(slot).label.isSum() ? " was last added to here, by " : " was made here, by ") << nameOf(launch)
         << " on " << onRank(writer);
  else if (auto post = cast<PostOp>(writer); post.getKind() == PostKind::receive)
    note << " came to " << onRank(writer) << " here, from rank " << post.getPeers().front();
  else
    note << " comes from the " << post.jointName() << (post.getAxes() ? " over replicas" : "") << " that "
         << onRank(writer) << " joined here";
  note << withLoops(writer);
}

bool Values::makes(LaunchOp launch, const Label &label) const {
  Phase phase = launch.getUnit().getPhase();
  CoordAttr coord = launch.getUnit().getCoord();
  bool fits = false;
  switch (label.what) {
  case What::act:
    fits = phase == Phase::F;
    break;
  case What::kept:
    fits = phase == Phase::F;
    break;
  case What::stash:
    fits = phase == Phase::F || phase == Phase::R;
    break;
  case What::dact:
    fits = phase == Phase::B || phase == Phase::I;
    break;
  case What::kv: { // by the piece that attends them, or the one before
    auto isKeys = [](Value slot) { return slot.getDefiningOp<SlotOp>().getRole() == Role::kv; };
    int64_t piece = pieces.find(coord);
    return phase == Phase::F && (piece == label.piece || piece + 1 == label.piece) &&
           coord.getMicrobatch() == label.microbatch && coord.getSlice() == label.slice &&
           llvm::any_of(launch.getResults(), isKeys);
  }
  case What::dkv: // begun by the last slice that saw these keys
    fits = phase == Phase::B || phase == Phase::I;
    return fits && pieces.find(coord) == label.piece && coord.getMicrobatch() == label.microbatch &&
           coord.getSlice() > label.slice;
  case What::state:
    fits = phase == Phase::F;
    break;
  case What::dstate: // by the slice that went on from this state
    return (phase == Phase::B || phase == Phase::I) && pieces.find(coord) == label.piece &&
           coord.getMicrobatch() == label.microbatch && coord.getSlice() == label.slice + 1;
  case What::pending:
    fits = phase == Phase::I;
    break;
  case What::grad:
    fits = phase == Phase::B || phase == Phase::W;
    break;
  case What::fresh:
    return bodies.of(launch) && bodies.of(launch).getVariant() == BodyVariant::tie_fresh &&
           pieces.find(coord) == pieces.primary(label.piece);
  default:
    break;
  }
  return fits && pieces.find(coord) == pieces.makerOf(label.piece) && coord.getMicrobatch() == label.microbatch &&
         coord.getSlice() == label.slice;
}

/// No slot holds the value: it is overwritten, not made yet, or made on another rank.
void Values::noteMaker(InFlightDiagnostic &error, LaunchOp maker, StringRef name, LaunchOp reader) const {
  auto &note = error.attachNote(maker.getLoc()) << name;
  if (maker->getBlock() != reader->getBlock())
    note << " is made here, by " << nameOf(maker) << " on " << onRank(maker) << ", and has not come to "
         << onRank(reader);
  else if (maker->isBeforeInBlock(reader))
    note << " was made here, by " << nameOf(maker) << ", and is overwritten by now";
  else
    note << " is made only here, by " << nameOf(maker);
  note << withLoops(maker);
}

/// Notes where the wanted value is: in another slot, on another rank, or still to be made.
void Values::noteWhereIs(InFlightDiagnostic &error, Label wanted, LaunchOp reader) const {
  int64_t rank = rankOf(reader);
  SlotOp here, elsewhere;
  here = findSlot([&](const SlotState &state) { return state.label == wanted && !state.arriving; });
  std::string name = wanted.str(pieces);
  if (here && rankOf(here) != rank)
    elsewhere = here;
  if (elsewhere)
    here = findSlot([&](const SlotState &state) {
      return state.label == wanted && !state.arriving && state.writer && rankOf(state.writer) == rank;
    });
  if (here && here != elsewhere)
    noteWriter(error, here, name + " is in another slot of rank " + std::to_string(rank) + ": it");
  else if (elsewhere)
    noteWriter(error, elsewhere,
               name + " is on " + onRank(elsewhere) + " and has not come to rank " + std::to_string(rank) + ": it");
  else if (LaunchOp maker = findLaunch([&](LaunchOp launch) { return makes(launch, wanted); }))
    noteMaker(error, maker, name, reader);
}

std::string Values::termName(const Label &sum, int32_t term) const {
  if (sum.what == What::norm)
    return pieces.describe(llvm::upper_bound(norms, term) - norms.begin() - 1);
  if (sum.what == What::dkv || sum.isPart())
    return "slice " + std::to_string(term);
  ProgramOp op = program;
  int32_t unit = term % unitCount() / steps, use = term / unitCount(), slices = std::max<int64_t>(op.getSlices(), 1);
  std::string name = "microbatch " + std::to_string(unit / slices);
  if (slices > 1)
    name += ", slice " + std::to_string(unit % slices);
  return use == 0 ? name : name + " from the tied weights of " + pieces.describe(sharers[sum.piece][use - 1]);
}

//===-- Stories -------------------------------------------------------------------------------------------------===//

LogicalResult Values::tellWrongRead(LaunchOp launch, Value slot, Label wanted) const {
  const SlotState &state = of(slot);
  auto error = emitError(launch.getLoc()) << subject(launch) << " reads ";
  Label old = state.label;
  bool isPlain = updates == 1 && state.label.version >= 0 && wanted.version >= 0;
  old.version = isPlain ? wanted.version : old.version;
  if (state.arriving) {
    error << wanted.str(pieces) << " before it has arrived" << withLoops(launch);
    bool isSum = cast<PostOp>(state.arriving).isCollective();
    error.attachNote(state.arriving->getLoc())
        << "its " << (isSum ? cast<PostOp>(state.arriving).jointName() : "receive")
        << " is posted here, and is complete only after the read" << withLoops(state.arriving);
  } else if (state.label.what == What::nothing) {
    error << wanted.str(pieces) << " from a slot that nothing has written" << withLoops(launch);
    noteWhereIs(error, wanted, launch);
  } else if (old == wanted) {
    error << state.label.str(pieces)
          << (wanted.version ? ", which should be updated by now"
                             : "; a step works with the weights that it began with")
          << withLoops(launch);
    noteWriter(error, slot, wanted.version ? "the old one" : "the new one");
  } else {
    error << state.label.str(pieces) << " where it needs " << wanted.str(pieces) << withLoops(launch);
    noteWriter(error, slot, state.label.str(pieces));
    noteWhereIs(error, wanted, launch);
  }
  return failure();
}

LogicalResult Values::tellMissing(LaunchOp launch, Value grad, int32_t term) const {
  Label sum = of(grad).label;
  int64_t rank = rankOf(launch);
  auto error = emitError(launch.getLoc())
               << subject(launch) << " lacks the gradient of " << termName(sum, term)
               << andMore((wholeGradient(sum.piece) / updates - termsOf(of(grad)).size()) / steps) << withLoops(launch);
  int32_t use = term / unitCount(), unit = term % unitCount();
  Label part = sum;
  part.piece = use == 0 ? sum.piece : sharers[sum.piece][use - 1];
  part.what = use == 0 ? What::grad : What::share;
  SlotOp left = findSlot([&](const SlotState &state) {
    return state.label == part && !state.taken && &state != &of(grad) && termsOf(state).contains(unit);
  });
  if (left) {
    std::string where = onRank(left), name = "grad(" + pieces.name(part.piece) + ")";
    noteWriter(error, left, "a share with it is left on " + where + ", which");
    if (rankOf(left) != rank)
      error.attachNote(launch.getLoc()) << "`move " << name << " from " << rankOf(left) << " to " << rank
                                        << "` before would bring it";
    return failure();
  }
  LaunchOp maker = findLaunch([&](LaunchOp other) {
    Label made = part;
    ProgramOp op = program;
    made.what = What::grad;
    made.microbatch = unit / steps / std::max<int64_t>(op.getSlices(), 1);
    made.slice = op.getSlices() ? unit / steps % op.getSlices() : -1;
    return makes(other, made);
  });
  if (maker)
    error.attachNote(maker.getLoc()) << "it is made here, by " << nameOf(maker) << " on " << onRank(maker)
                                     << withLoops(maker);
  return failure();
}

LogicalResult Values::tellChunkLacks(LaunchOp launch, Value sum, int32_t slice) const {
  const Label &label = of(sum).label;
  auto error = emitError(launch.getLoc()) << subject(launch) << " reads " << label.str(pieces)
                                          << " without the part of slice " << slice << withLoops(launch);
  noteWriter(error, sum, "it");
  LaunchOp maker = findLaunch([&](LaunchOp other) {
    CoordAttr coord = other.getUnit().getCoord();
    return makes(other, label) && coord.getSlice() == slice;
  });
  if (maker)
    error.attachNote(maker.getLoc()) << "`" << maker.getUnit().str() << "` adds it here, on " << onRank(maker)
                                     << withLoops(maker);
  return failure();
}

LogicalResult Values::tellWrongParts(LaunchOp launch, int32_t slice, StringRef how) const {
  return emitError(launch.getLoc()) << subject(launch) << " merges parts of its attention that have the keys of slice "
                                    << slice << " " << how << withLoops(launch);
}

LogicalResult Values::tellNormLacks(LaunchOp launch, Value norm, int64_t piece) const {
  auto error = emitError(launch.getLoc()) << subject(launch) << " clips by a norm without the gradient of "
                                          << pieces.describe(piece) << withLoops(launch);
  SlotOp holder = findSlot([&](const SlotState &state) {
    return state.label.what == What::norm && &state != &of(norm) && termsOf(state).contains(norms[piece]);
  });
  if (holder)
    noteWriter(error, holder, "a sum with it is on " + onRank(holder) + ", which");
  return failure();
}

LogicalResult Values::tellTwice(Operation *op, Value first, Value second, int32_t term) const {
  const Label &sum = of(first).label;
  auto error = emitError(op->getLoc()) << subject(op) << " adds the gradient of " << termName(sum, term) << " twice"
                                       << withLoops(op);
  noteWriter(error, first, "one term");
  if (of(second).label.isSum() && of(second).label.what == sum.what && first != second)
    noteWriter(error, second, "the other");
  return failure();
}

LogicalResult Values::tellStrange(LaunchOp launch, Value grad, int32_t term) const {
  const Label &sum = of(grad).label;
  auto error = emitError(launch.getLoc())
               << nameOf(launch) << " on " << onRank(launch) << " uses `grad(" << pieces.name(sum.piece)
               << ")`, which has " << termName(sum, term) << " of another update" << withLoops(launch);
  noteWriter(error, grad, "the gradient");
  return failure();
}

LogicalResult Values::tellLost(Operation *op, Value slot) const {
  const SlotState &state = of(slot);
  auto error = emitError(op->getLoc()) << subject(op) << " writes over the gradient of "
                                       << termName(state.label, termsOf(state).front())
                                       << andMore(termsOf(state).size()) << ", which nothing has taken"
                                       << withLoops(op);
  noteWriter(error, slot,
             state.label.what == What::dkv ? state.label.str(pieces)
                                           : "`grad(" + pieces.name(state.label.piece) + ")`");
  return failure();
}

LogicalResult Values::tellWrongSend(PostOp send) const {
  const SlotState &state = of(send.readSlot());
  bool collective = send.isCollective();
  StringRef joint = send.jointName();
  auto error = emitError(send.getLoc()) << onRank(send);
  if (state.label.what == What::nothing || (state.arriving && !collective)) {
    error << (collective ? " joins the " + joint + " of `" : llvm::Twine(" sends `")).str() << send.getThing().str()
          << "` before " << (state.arriving && !collective ? "it has arrived" : "anything has written it")
          << withLoops(send);
    return failure();
  }
  error << (collective ? " gives " : " sends ") << state.label.str(pieces)
        << (collective ? " to the " + joint + " of `" : llvm::Twine(" as `")).str() << send.getThing().str() << "`"
        << withLoops(send);
  noteWriter(error, send.readSlot(), state.label.str(pieces));
  return failure();
}

LogicalResult Values::tellSummedTwice(PostOp post) const {
  const SlotState &state = of(post.getSlot());
  auto error = emitError(post.getLoc()) << onRank(post) << " sums `" << post.getThing().str() << "` over "
                                        << textOf(post.getAxesAttr()) << ", and its replicas have done so before"
                                        << withLoops(post);
  noteWriter(error, post.getSlot(), state.label.str(pieces));
  return failure();
}

LogicalResult Values::tellAtEnd(SlotOp slot, Label wanted) const {
  const SlotState &state = of(slot);
  std::string name = wanted.str(pieces);
  auto error = emitError(slot.getLoc()) << "when the step ends, ";
  Label old = wanted;
  old.version -= updates;
  if (state.label.what == What::nothing) {
    error << "nothing has written " << name << " on " << onRank(slot) << " for the trainer";
  } else if (state.label == wanted) {
    bool isNorm = wanted.what == What::norm;
    int64_t lacks = isNorm ? norms[missingInNorm(termsOf(state))]
                           : missingInGradient(wanted.piece, updates - 1, termsOf(state))
                                 .value_or(strangeInGradient(wanted.piece, updates - 1, termsOf(state)).value_or(0));
    error << name << " on " << onRank(slot) << " lacks " << termName(wanted, lacks);
  } else if (state.label == old) {
    error << onRank(slot) << " still holds " << old.str(pieces) << " as the step found it, and the next step reads it";
    SlotOp updated = findSlot([&](const SlotState &other) { return other.label == wanted; });
    if (updated)
      noteWriter(error, updated, "the new one on " + onRank(updated));
  } else {
    error << onRank(slot) << " holds " << state.label.str(pieces) << " where " << name << " belongs";
    noteWriter(error, slot, state.label.str(pieces));
  }
  return failure();
}
