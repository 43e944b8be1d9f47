// Counts what a rank needs beside its arena: by the ops of the bodies that it launches, and by its posts and completes.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//   post reduce_scatter A   + members x own share of A        MPI adds nothing itself: what every member has of a
//   launch ..               its largest sum inside            member's share lies side by side, and is added in the
//   complete A              - members x own share of A        order of the members (runtime/transport/MpiCollective.h);
//                                                             devices with one program: in turns, segment by segment
#include "analysis/lives/Scratch.h"
#include "analysis/Messages.h"
#include "analysis/lives/DeviceScratch.h"
#include "dialect/formula/Formula.h"
#include "runtime/kernels/Facts.h"
#include "llvm/ADT/StringSet.h"
#include "llvm/Support/FormatVariadic.h"
#include <map>
#include <optional>
#include <set>

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;

/// A sum of devices that run the same program goes in segments of about this many bytes.
static constexpr int64_t kSegment = int64_t(64) << 20, kLine = 64;

/// Bytes for members that give each other their runs, one round after the other; `longest` is the longest run of each
/// round.
static int64_t bytesOfTurns(ArrayRef<int64_t> longest, int64_t members) {
  int64_t most = std::max(kSegment / (2 * members) / kLine * kLine, kLine), each = 0, segments = 0;
  for (int64_t run : longest) {
    each = std::max(each, std::min(run, most));
    segments += std::max<int64_t>(1, llvm::divideCeil(run, most));
  }
  return (segments > 1 ? 2 : 1) * each * members;
}

static bool goesInTurns(int64_t bytes, int64_t members, bool inStep) {
  return inStep && (members > 2 || bytes > kSegment / 64);
}

static int64_t bytesOfAllReduce(int64_t bytes, int64_t members, bool inStep) {
  auto even = static_cast<int64_t>(llvm::alignTo(llvm::divideCeil(bytes, members), kLine));
  return goesInTurns(bytes, members, inStep) ? bytesOfTurns(std::min(even, bytes), members) : members * bytes;
}

/// The bytes of a cut value: the largest share of a member, or the longest runs of its rounds.
static int64_t bytesOfScatter(ArrayRef<int64_t> cuts, int64_t members, bool inStep) {
  SmallVector<int64_t> shares(members), longest;
  for (size_t first = 0; first + members < cuts.size(); first += members) {
    longest.push_back(0);
    for (int64_t k = 0; k < members; ++k) {
      int64_t run = cuts[first + k + 1] - cuts[first + k];
      shares[k] += run;
      longest.back() = std::max(longest.back(), run);
    }
  }
  return goesInTurns(cuts.back(), members, inStep) ? bytesOfTurns(longest, members)
                                                   : members * *llvm::max_element(shares);
}

static int64_t bytesOfSum(PostOp post) {
  int64_t members = post.countMembers();
  bool devices = post.getAxesAttr() != nullptr, inStep = devices && post.getPeers().size() == 1;
  if (post.getKind() == PostKind::all_reduce)
    return bytesOfAllReduce(bytesOf(post), members, inStep);
  if (post.getKind() == PostKind::reduce)
    return devices || static_cast<int64_t>(post.getRoot().value_or(0)) == post.getSelf() ? members * bytesOf(post) : 0;
  if (post.getKind() == PostKind::reduce_scatter && post.getCuts())
    return bytesOfScatter(*post.getCuts(), members, inStep);
  return 0;
}

/// Inside a body. Rows of an all_to_all are packed; sections lie as they travel.
static int64_t bytesOfExchange(nn::ExchangeKind kind, const InnerMessage &message) {
  if (kind == nn::ExchangeKind::all_to_all)
    return nn::Exchange(message.op).getCut() == "sections" ? 0 : message.bytes();
  return message.cuts.empty() ? bytesOfAllReduce(message.bytes(), message.members, true)
                              : bytesOfScatter(message.cuts, message.members, true);
}

namespace {

/// Bytes of scratch, which all ops of a rank share, that the op's kernel may need on a CPU with one thread.
int64_t bytesOnCpu(nn::Kernel kernel) {
  if (auto map = dyn_cast<nn::MapOp>(*kernel))
    return nn::scratchOfFormula(map);
  SmallVector<int64_t> dims = kernel.dims();
  SmallVector<double> params = kernel.params();
  return cpuScratch({kernel.kernelName(), dims, params, kernel.elementType().getIntOrFloatBitWidth() / 8});
}

/// The table that rope's kernel reads. A rank has one for each key: ops with equal keys share it.
struct RopeTable {
  std::string key;
  int64_t bytes;

  explicit RopeTable(nn::RopeOp rope) {
    SmallVector<int64_t> dims = rope.dims();
    SmallVector<double> params = rope.params();
    const bool isWide = rope.elementType().isF64(), inTwoRuns = rope.getZigzag() > 0;
    const RopeRows rows(dims[1], dims[4], rope.getStarts() != nullptr, inTwoRuns ? dims[5] : 0);
    bytes = 2 * rows.count * pairsOfRope(dims[3], params) * (isWide ? 8 : 4);
    llvm::raw_string_ostream text(key);
    text << rows.first << " " << rows.count << " " << dims[3] << " " << isWide;
    for (double param : params)
      text << " " << llvm::bit_cast<uint64_t>(param);
  }
};

/// The bodies that ranks launch.
SmallVector<func::FuncOp> bodiesOf(ArrayRef<RankOp> programs) {
  llvm::StringSet<> called;
  for (RankOp program : programs)
    for (auto launch : program.getOps<LaunchOp>())
      called.insert(launch.getCallee());
  SmallVector<func::FuncOp> bodies;
  for (auto function : programs.front()->getParentOfType<ModuleOp>().getOps<func::FuncOp>())
    if (called.contains(function.getName()))
      bodies.push_back(function);
  return bodies;
}

class ScratchCount {
public:
  explicit ScratchCount(ArrayRef<RankOp> programs) {
    for (func::FuncOp function : bodiesOf(programs))
      readBody(function, programs.front()->getParentOfType<ProgramOp>().getMeshAttr());
    sum.kernels += static_cast<int64_t>(llvm::alignTo(most, 64));
    for (RankOp program : programs)
      readMessages(program);
  }

  RankScratch sum;

private:
  int64_t most = 0;
  llvm::StringSet<> tables;
  llvm::StringMap<int64_t> inBodies; ///< the largest sum that a body makes of devices

  void readBody(func::FuncOp function, MeshAttr mesh) {
    int64_t &largest = inBodies[function.getName()];
    function.walk([&](Operation *op) {
      if (auto kernel = dyn_cast<nn::Kernel>(op))
        most = std::max(most, bytesOnCpu(kernel));
      if (auto rope = dyn_cast<nn::RopeOp>(op))
        if (RopeTable table(rope); tables.insert(table.key).second)
          sum.kernels += table.bytes;
      auto exchange = dyn_cast<nn::Exchange>(op);
      if (!exchange || exchange.getKind() == nn::ExchangeKind::all_gather || !mesh) // nothing is added
        return;
      if (FailureOr<InnerMessage> message = innerMessage(exchange, mesh); succeeded(message))
        largest = std::max(largest, bytesOfExchange(exchange.getKind(), *message));
    });
  }

  void readMessages(RankOp program) {
    llvm::DenseMap<Value, int64_t> posted;
    int64_t now = 0;
    for (Operation &op : program.getBody().front()) {
      if (auto launch = dyn_cast<LaunchOp>(op)) {
        LaunchOp other = launch.follower(); // a sum of each may be under way
        int64_t beside = other ? inBodies.lookup(other.getCallee()) : 0;
        sum.messages = std::max(sum.messages, now + inBodies.lookup(launch.getCallee()) + beside);
      } else if (auto post = dyn_cast<PostOp>(op); post && post.isCollective())
        now += posted[post.getRequest()] = bytesOfSum(post);
      else if (auto complete = dyn_cast<CompleteOp>(op))
        now -= posted.lookup(complete.getRequest());
      sum.messages = std::max(sum.messages, now);
    }
  }
};

/// Counts scratch on a GPU. All kernels share one block, and each channel has a communicator, as in
/// runtime/cuda/TransportNccl.cpp.
class DeviceCount {
public:
  explicit DeviceCount(ArrayRef<RankOp> programs) {
    sum.isDevice = true;
    for (func::FuncOp function : bodiesOf(programs))
      readBody(function, programs.front()->getParentOfType<ProgramOp>().getMeshAttr());
    // Scalars, failures and the sums of routers are some hundred bytes each.
    constexpr int64_t small = 4096;
    sum.kernels += static_cast<int64_t>(llvm::alignTo(std::max({own, sum.products, sum.attention}), 256)) + small;
    for (RankOp program : programs)
      for (auto post : program.getOps<PostOp>())
        readPost(post);
    for (auto &[key, lane] : lanes)
      sum.nccl += lane.communicator.bytes() + lane.packed;
    sum.nccl += edges > 0 ? 4 * (edges + 1) : 0; // words of messages by copy engines (runtime/cuda/PeerCopies.h)
    for (RankOp program : programs)
      countAtOnce(program);
  }

  RankScratch sum;

private:
  /// A lane: from, to and channel; or channel, members and axes.
  using Key = std::tuple<int64_t, int64_t, int64_t, const void *>;
  struct Lane {
    Communicator communicator;
    int64_t packed = 0; ///< rows of an exchange that do not lie together
  };
  int64_t own = 0;   ///< the most that one of our kernels needs
  int64_t edges = 0; ///< messages between two ranks
  llvm::StringSet<> tables;
  std::map<Key, Lane> lanes;
  llvm::StringMap<std::set<Key>> inBodies; ///< channels of what a body exchanges, one after the other

  void readBody(func::FuncOp function, MeshAttr mesh) {
    int64_t squares = 0; // one call may do all of a body
    function.walk([&](Operation *op) {
      if (auto kernel = dyn_cast<nn::Kernel>(op)) {
        nn::DeviceScratch its = nn::deviceScratchOf(kernel);
        sum.products = std::max(sum.products, its.products);
        sum.attention = std::max(sum.attention, its.attention);
        own = std::max(own, its.kernels);
        squares += isa<nn::SumSquaresOp>(op) ? its.kernels : 0;
      }
      if (auto rope = dyn_cast<nn::RopeOp>(op))
        if (RopeTable table(rope); tables.insert(table.key).second)
          sum.kernels += static_cast<int64_t>(llvm::alignTo(table.bytes, 256));
      if (auto exchange = dyn_cast<nn::Exchange>(op); exchange && mesh)
        if (FailureOr<InnerMessage> message = innerMessage(exchange, mesh); succeeded(message))
          readExchange(exchange.getKind(), *message, inBodies[function.getName()]);
    });
    own = std::max(own, squares);
  }

  void readExchange(nn::ExchangeKind kind, const InnerMessage &message, std::set<Key> &used) {
    if (message.members < 2)
      return;
    const Key key = {-1, message.members, message.channel, nullptr};
    used.insert(key);
    Lane &lane = lanes[key];
    lane.communicator.members = message.members;
    lane.communicator.exchanges |= kind == nn::ExchangeKind::all_to_all;
    lane.communicator.shares |= kind == nn::ExchangeKind::all_gather || kind == nn::ExchangeKind::reduce_scatter;
    if (kind == nn::ExchangeKind::all_to_all)
      lane.packed = std::max(lane.packed, bytesOfExchange(kind, message));
  }

  /// The channel of a message; nothing for one that does not leave the device.
  std::optional<Key> keyOf(PostOp post) {
    if (post.isHost() || (post.isCollective() && post.countMembers() < 2))
      return std::nullopt;
    int64_t channel = post.getChannel().value_or(0), self = post.getSelf(), peer = post.getPeers().front();
    bool sends = post.getKind() == PostKind::send;
    if (!post.isCollective())
      return Key(sends ? self : peer, sends ? peer : self, channel, nullptr);
    const void *axes = post.getAxesAttr() ? post.getAxesAttr().getAsOpaquePointer() : nullptr;
    const void *peers = post.getPeersAttr().getAsOpaquePointer();
    int64_t group = groups.try_emplace({peers, axes}, groups.size()).first->second;
    return Key(-2, group, channel, nullptr);
  }

  void readPost(PostOp post) {
    std::optional<Key> key = keyOf(post);
    if (!key)
      return;
    Communicator &its = lanes[*key].communicator;
    its.isEdge = !post.isCollective();
    edges += its.isEdge;
    if (post.isCollective())
      its.members = post.countMembers();
    its.shares |= post.getKind() == PostKind::all_gather || post.getKind() == PostKind::reduce_scatter;
  }

  /// Channels with a message under way, at their most, and those of collectives. A body has one exchange under way at a
  /// time, and so has the one beside it.
  void countAtOnce(RankOp program) {
    std::map<Key, int64_t> open;
    size_t most = 0, mostJoint = 0;
    for (Operation &op : program.getBody().front()) {
      if (auto post = dyn_cast<PostOp>(op)) {
        if (std::optional<Key> key = keyOf(post))
          ++open[*key];
      } else if (auto complete = dyn_cast<CompleteOp>(op)) {
        std::optional<Key> key = keyOf(complete.getRequest().getDefiningOp<PostOp>());
        if (key && --open[*key] == 0)
          open.erase(*key);
      }
      size_t inside = 0;
      if (auto launch = dyn_cast<LaunchOp>(op)) {
        std::set<Key> used = inBodies.lookup(launch.getCallee());
        inside = !used.empty();
        if (LaunchOp other = launch.follower())
          if (std::set<Key> others = inBodies.lookup(other.getCallee()); !others.empty()) {
            used.insert(others.begin(), others.end());
            inside = std::min<size_t>(used.size(), inside + 1);
          }
      }
      most = std::max(most, open.size() + inside);
      auto isJoint = [](const auto &each) { return std::get<0>(each.first) < 0; };
      mostJoint = std::max(mostJoint, static_cast<size_t>(llvm::count_if(open, isJoint)) + inside);
    }
    auto keep = [](int64_t &held, size_t channels) {
      held = std::max(held, kBlocksOfMessage * static_cast<int64_t>(channels));
    };
    keep(sum.multiprocessors, most);
    keep(sum.multiprocessorsOfCollectives, mostJoint);
  }

  std::map<std::pair<const void *, const void *>, int64_t> groups; ///< by members
};

} // namespace

SmallVector<std::pair<StringRef, int64_t>> RankScratch::parts() const {
  SmallVector<std::pair<StringRef, int64_t>> all = {{"kernels", kernels}, {"messages", messages}};
  if (isDevice)
    all = {{"kernels", kernels}, {"products", products}, {"attention", attention}, {"nccl", nccl}};
  if (targetWeights > 0)
    all.push_back({"target_weights", targetWeights});
  return all;
}

std::string pp::formatBytes(int64_t bytes) {
  static constexpr StringLiteral kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double amount = bytes;
  size_t unit = 0;
  for (; amount >= 1024 && unit + 1 < std::size(kUnits); ++unit)
    amount /= 1024;
  return llvm::formatv(unit == 0 ? "{0:f0} {1}" : "{0:f2} {1}", amount, kUnits[unit]).str();
}

std::string RankScratch::str() const {
  std::string text = "of kernels " + formatBytes(kernels), users,
              weights = targetWeights > 0 ? ", of weights of targets " + formatBytes(targetWeights) : "";
  if (!isDevice)
    return text + ", of messages " + formatBytes(messages) + weights;
  if (products > 0)
    users += ", products of cuBLASLt up to " + formatBytes(products);
  if (attention > 0)
    users += ", attention of cuDNN up to " + formatBytes(attention);
  if (!users.empty())
    text += " (" + users.substr(2) + ", in turn)";
  return text + ", of NCCL " + formatBytes(nccl) + weights;
}

/// Those of a step and of an evaluation lie in one place.
static int64_t targetWeightsOf(ArrayRef<RankOp> programs) {
  int64_t most = 0;
  for (RankOp program : programs) {
    int64_t bytes = 0;
    for (auto slot : program.getOps<SlotOp>())
      if (BindingAttr binding = slot.getBindingAttr(); binding && binding.getKind() == BindingKind::targets)
        bytes += 4 * cast<RankedTensorType>(slot.getSlot().getType().getPayload().getType(0)).getNumElements();
    most = std::max(most, bytes);
  }
  DictionaryAttr train = programs.front()->getParentOfType<ProgramOp>().getTrainAttr();
  return train && train.get("documents") ? most : 0;
}

RankScratch pp::scratchOf(RankOp rank, RankOp forward) {
  SmallVector<RankOp, 2> programs = {rank};
  if (forward)
    programs.push_back(forward);
  RankScratch onHost = ScratchCount(programs).sum;
  onHost.targetWeights = targetWeightsOf(programs);
  if (rank->getParentOfType<ProgramOp>().getTarget() != "cuda")
    return onHost;
  RankScratch onDevice = DeviceCount(programs).sum;
  onDevice.messages = onHost.messages;
  onDevice.targetWeights = onHost.targetWeights;
  return onDevice;
}
