// Reads rank programs as lowering does: the same places of values, the same texts for the runtime, but no code.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "test/fuzz/Load.h"
#include "analysis/Actions.h"
#include "analysis/lives/SlotLives.h"
#include "dialect/nn/Nn.h"
#include "dialect/pipeline/BodyGroups.h"
#include "lowering/Describe.h"

using namespace mlir;
using namespace pp::pipeline;

namespace pp::fuzz {

int32_t KernelTable::add(const OpSpec &spec) {
  std::string key = spec.kernel;
  for (int64_t dim : spec.dims)
    key += " " + std::to_string(dim);
  for (double parameter : spec.params)
    key += " " + std::to_string(parameter);
  for (const std::string &flag : spec.flags)
    key += " " + flag;
  auto [found, isNew] = numbers.try_emplace(key, int32_t(specs.size()));
  if (isNew)
    specs.push_back(spec);
  return found->second;
}

const Kernels *KernelTable::prepare() {
  std::string why;
  if (prepared == specs.size())
    return kernels.get();
  prepared = specs.size();
  if (Kernels::prepare(specs, kernels, why) != PP_OK)
    kernels.reset();
  return kernels.get();
}

/// The calls of a body with the places that plan-bodies gave its values (lowering/Bodies.cpp reads the same).
const BodyCode *Loader::body(func::FuncOp function) {
  auto [found, isNew] = bodies.try_emplace(function.getSymName().str());
  BodyCode &code = found->second;
  if (!isNew)
    return &code;
  FailureOr<BodyGroups> groups = BodyGroups::get(function);
  auto places = groups->argumentPlaces(function);
  std::vector<int32_t> begins = {0}; // a place of its own for each tensor, as slots may lie apart
  for (TupleType payload : groups->pointers)
    begins.push_back(begins.back() + int32_t(payload.size()));
  for (Operation &op : function.front().without_terminator()) {
    for (OpResult result : op.getResults())
      places[result] = bufferOf(result);
    auto kernel = dyn_cast<nn::Kernel>(op);
    if (!kernel) // a view
      continue;
    OpSpec spec{kernel.kernelName().str(), pp::Type::F64, {}, {}, {}};
    llvm::append_range(spec.dims, kernel.dims());
    llvm::append_range(spec.params, kernel.params());
    for (StringRef flag : kernel.flags())
      spec.flags.push_back(flag.str());
    KernelCall &call = code.emplace_back(KernelCall{table.add(spec), {}, {}});
    for (mlir::Value value : kernel.pointers()) {
      auto [pointer, offset] = value ? places.lookup(value) : std::pair<int64_t, int64_t>(-2, 0);
      if (pointer < 0) {
        call.pointers.push_back({pointer == -2 ? -1 : begins.back(), offset});
        continue;
      }
      llvm::SmallVector<int64_t> offsets = payloadOffsets(groups->pointers[size_t(pointer)]);
      int64_t tensor = llvm::upper_bound(llvm::ArrayRef(offsets).drop_back(), offset) - offsets.begin() - 1;
      call.pointers.push_back({begins[size_t(pointer)] + int32_t(tensor), offset - offsets[size_t(tensor)]});
    }
    for (nn::Run run : kernel.lists())
      call.lists.push_back({run.first, run.count});
  }
  return &code;
}

//===-- Dead memory ---------------------------------------------------------------------------------------------===//

/// The bytes that are dead after a segment, without those where another segment still lives.
static std::vector<Range> deadAfter(llvm::ArrayRef<SlotLife> lives, const SlotLife &life, Segment segment,
                                    int64_t base) {
  std::vector<Range> ranges = {{base + life.offset(), base + life.offset() + life.bytes}};
  for (const SlotLife &other : lives) {
    int64_t begin = base + other.offset(), end = begin + other.bytes;
    for (Segment theirs : other.segments) {
      if (theirs.first > segment.last || theirs.last <= segment.last)
        continue;
      std::vector<Range> kept;
      for (Range range : ranges) {
        if (range.begin < std::min(range.end, begin))
          kept.push_back({range.begin, std::min(range.end, begin)});
        if (std::max(range.begin, end) < range.end)
          kept.push_back({std::max(range.begin, end), range.end});
      }
      ranges = kept;
    }
  }
  return ranges;
}

//===-- Rank programs -------------------------------------------------------------------------------------------===//

namespace {

/// One rank's program while it is read.
struct Reader {
  RankOp rank;
  RankCode &code;
  std::string &why;
  llvm::DenseMap<mlir::Value, int64_t> offsets;
  llvm::DenseMap<mlir::Value, int32_t> messages;

  bool refuse(const std::string &reason) {
    why = "rank " + std::to_string(rank.getRank()) + ": " + reason;
    return false;
  }

  bool addSlot(SlotOp slot) {
    int64_t base = slot.getHost() ? hostBegin(rank) : 0; // host memory follows the arena, as in lowering
    int64_t end = base + int64_t((slot.getHost() ? rank.getHostBytes() : rank.getArenaBytes()).value_or(0));
    offsets[slot.getSlot()] = base + int64_t(slot.getOffset().value_or(0));
    TupleType payload = slot.getSlot().getType().getPayload();
    for (auto [begin, type] : llvm::zip(slot.tensorOffsets(), payload.getTypes()))
      if (base + begin + tensorBytes(cast<RankedTensorType>(type)) > end)
        return refuse("`" + slot.getLabel().str() + "` lies outside the arena");
    return true;
  }

  bool addLaunch(LaunchOp launch, func::FuncOp function, const BodyCode *body) {
    FailureOr<BodyGroups> groups = BodyGroups::get(function);
    Step step;
    step.name = launch.getUnit().str();
    step.body = body;
    llvm::SmallVector<mlir::Value> slots(launch.getInputs());
    llvm::append_range(slots, launch.getResults());
    if (slots.size() != groups->pointers.size())
      return refuse("`" + step.name + "` hands over another number of slots than its body takes");
    for (auto [slot, payload] : llvm::zip(slots, groups->pointers)) {
      if (cast<SlotType>(slot.getType()).getPayload() != payload)
        return refuse("`" + step.name + "` hands over a slot of another type than its body takes");
      llvm::append_range(step.places, slot.getDefiningOp<SlotOp>().tensorOffsets());
    }
    int64_t scratch = 0, needed = function->getAttrOfType<IntegerAttr>(kScratchAttr).getInt();
    if (mlir::Value slot = launch.getScratch()) {
      step.places.push_back(offsets.lookup(slot));
      scratch = slotBytes(slot);
    }
    if (scratch < needed)
      return refuse("`" + step.name + "` has too little scratch");
    code.steps.push_back(std::move(step));
    return true;
  }

  Range rangeOf(mlir::Value slot) {
    if (!slot)
      return {};
    int64_t begin = offsets.lookup(slot);
    return {begin, begin + slotBytes(slot)};
  }

  /// Messages go from one run of bytes to another: a slot whose tensors lie apart has none.
  bool isOneRun(SlotOp slot) {
    int64_t host = int64_t(rank.getHostBytes().value_or(0));
    int64_t bytes = host ? hostBegin(rank) + host : int64_t(rank.getArenaBytes().value_or(0));
    return !slot.getPlaces() && rangeOf(slot.getSlot()).end <= int64_t(llvm::alignTo(bytes, kAlignment));
  }

  /// Whether a member has room for all that it must give or take of a whole in shards.
  bool fitsCuts(const Step &step) {
    auto [shard, whole] = std::minmax<int64_t>({step.read.bytes(), step.written.bytes()});
    int64_t needed = 0, self = int64_t(rank.getRank());
    auto member = size_t(llvm::count_if(step.group, [&](int64_t each) { return each < self; }));
    for (size_t piece = member; piece + 1 < step.cuts.size(); piece += step.group.size())
      needed += step.cuts[piece + 1] - step.cuts[piece];
    return step.cuts.empty() || (needed <= shard && step.cuts.back() <= whole);
  }

  bool addPost(PostOp post, int32_t number, int64_t ranks) {
    Step step;
    step.kind = post.isCollective()                ? Step::Kind::Joint
                : post.getKind() == PostKind::send ? Step::Kind::Send
                                                   : Step::Kind::Receive;
    step.offset = rangeOf(post.getSlot()).begin;
    step.shard = post.getShard() ? rangeOf(post.getShard()).begin : -1;
    step.read = rangeOf(post.readSlot());
    step.written = rangeOf(post.writtenSlot());
    if (auto cuts = post.getCuts())
      step.cuts = cuts->vec();
    if (post.isCollective())
      step.joint = {int(post.getKind()), int64_t(post.getRoot().value_or(-1))};
    step.name = post.getThing().str();
    step.peer = post.getPeers().front();
    step.channel = int64_t(post.getChannel().value_or(0));
    step.group = post.getPeers().vec();
    step.message = messages[post.getRequest()] = number;
    for (mlir::Value slot : {mlir::Value(post.getSlot()), post.getShard()})
      if (slot && !isOneRun(slot.getDefiningOp<SlotOp>()))
        return refuse("`" + step.name + "` is no run of bytes in the arena");
    if (!fitsCuts(step))
      return refuse("`" + step.name + "` is cut for another group");
    for (int64_t peer : step.group)
      if (peer < 0 || peer >= ranks)
        return refuse("`" + step.name + "` goes to a rank that does not exist");
    code.steps.push_back(std::move(step));
    return true;
  }

  bool addComplete(CompleteOp complete) {
    Step step;
    step.kind = Step::Kind::Complete;
    step.message = messages.lookup(complete.getRequest());
    code.steps.push_back(std::move(step));
    return true;
  }

  /// Hangs what dies on the steps: `stepAt` gives the steps done when the op at a position of the list is. What a
  /// launch hands on is not dead before it.
  void addDeaths(llvm::ArrayRef<size_t> stepAt) {
    for (bool host : {false, true}) {
      std::vector<SlotLife> lives = slotLives(rank, host);
      for (const SlotLife &life : lives)
        for (Segment segment : life.segments)
          if (size_t(segment.last) < stepAt.size() && stepAt[segment.last] > 0 && life.bytes > 0 && !life.heir.slot)
            llvm::append_range(code.steps[stepAt[segment.last] - 1].dead,
                               deadAfter(lives, life, segment, host ? hostBegin(rank) : 0));
    }
  }
};

} // namespace

bool Loader::loadRank(RankOp rank, ProgramOp program, const Program &whole, RankCode &code, std::string &why) {
  SymbolTable symbols(program->getParentOfType<ModuleOp>());
  Reader reader{rank, code, why, llvm::DenseMap<mlir::Value, int64_t>(), llvm::DenseMap<mlir::Value, int32_t>()};
  RankText text(rank);
  Pieces pieces(program);
  code.tables.arenaBytes = int64_t(rank.getArenaBytes().value_or(0));
  std::vector<size_t> stepAt;
  for (Operation &op : rank.getBody().front()) {
    bool fine = true;
    if (auto slot = dyn_cast<SlotOp>(op)) {
      fine = reader.addSlot(slot) && succeeded(text.addSlot(slot, pieces));
    } else if (auto launch = dyn_cast<LaunchOp>(op)) {
      auto function = symbols.lookup<func::FuncOp>(launch.getCallee());
      fine = reader.addLaunch(launch, function, body(function));
      text.addUnit(launch, 0);
    } else if (auto post = dyn_cast<PostOp>(op)) {
      fine = reader.addPost(post, text.addMessage(post), int64_t(program.getRanks()));
    } else if (auto complete = dyn_cast<CompleteOp>(op)) {
      fine = reader.addComplete(complete);
    }
    if (!fine)
      return false;
    stepAt.push_back(code.steps.size());
  }
  reader.addDeaths(stepAt);
  code.tables.rank = int32_t(rank.getRank());
  if (Status status = readRankProgram(text.take(), whole, code.tables); !status.ok())
    return reader.refuse(status.message());
  return true;
}

bool Loader::load(ModuleOp module, Code &code, std::string &why) {
  code = {};
  for (auto program : module.getOps<ProgramOp>()) {
    FailureOr<std::string> text = describeProgram(program);
    if (failed(text) || !readProgram(*text, code.program).ok()) {
      why = "its description cannot be read";
      return false;
    }
    for (auto rank : program.getOps<RankOp>())
      if (!loadRank(rank, program, code.program, code.ranks.emplace_back(), why))
        return false;
  }
  return true;
}

} // namespace pp::fuzz
