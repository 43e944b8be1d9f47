// Prices by a cluster's figures: tasks by the flops and bytes of their ops, messages by the links on their way.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// An op takes as long as its flops at the device's peak or its bytes at the memory's speed, whichever is longer, both
// at the efficiency of its kind, and a kernel's start. Attention takes both, one behind the other. (cuDNN's does so on
// an H100: 1 / speed measured at 1024, 4096 and 16384 tokens is a line over 1 / tokens, and its slope is its bytes at
// 0.85 of the memory's speed; bench/RESULTS.md.) The tiles of a product are computed in waves, one tile on each
// multiprocessor, and the last wave takes as long as a full one.
//
// Two ranks of a node have a way of their own out of and into each device, and each device one to its host memory and
// one back; between nodes a message takes a NIC at both ends, which the ranks of the node share. NCCL makes a ring of
// ranks for each NIC that the members have on a node: these rings share the bytes that leave the node.
//
// If figures of devices are lists, an op takes as long as on the slowest device of its rank.
//
// On a mesh a rank stands for its first device. A message between nodes loads a NIC as often as devices of the rank use
// that NIC for copies of it. A sum over n devices, g of them on a node, is a reduce-scatter and an all-gather: each
// brings B (n - 1) / n, and on a node of N devices N / g groups share the NICs; of the latency at most 2 log2 n steps.
// What devices exchange inside a unit takes as long, and the ops behind it that do not overlap (PlanWaits.cpp) wait.
//
// The products of experts are one for each expert, of its share of the rows: one with few rows takes as long as its
// matrix is read.
#include "analysis/Actions.h"
#include "analysis/Messages.h"
#include "analysis/costs/Costs.h"
#include "analysis/costs/ExpertLoad.h"
#include "analysis/costs/Figures.h"
#include "analysis/lives/DeviceScratch.h"
#include "dialect/nn/Bytes.h"
#include "llvm/ADT/StringMap.h"
#include <cmath>
#include <limits>
#include <map>

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;

namespace {

class ClusterCosts : public CostModel {
public:
  ClusterCosts(ProgramOp program, DictionaryAttr cluster, const ExpertLoad &load)
      : cluster(cluster), load(load), mesh(program.getMeshAttr()) {
    ranksPerNode = cluster.getAs<IntegerAttr>("ranks_per_node").getInt();
    nics = figure("between", "nics", 1);
    if (mesh)
      countCopies();
    llvm::SetVector<DictionaryAttr> all;
    for (int64_t rank = 0; rank < static_cast<int64_t>(program.getRanks()); ++rank) {
      kinds.push_back(kindsOf(program, rank));
      all.insert(kinds.back().begin(), kinds.back().end());
    }
    for (auto function : program->getParentOfType<ModuleOp>().getOps<func::FuncOp>()) {
      Body &body = bodies[function.getName()];
      for (DictionaryAttr kind : all) {
        SmallVector<OpTime> &times = body.times[kind];
        for (Operation &op : function.getOps()) {
          auto kernel = dyn_cast<nn::Kernel>(op);
          times.push_back({kernel ? secondsOf(kernel, kind) : 0, 0, 0, {}, op.hasAttr(kOverlapsAttr)});
        }
      }
      body.messages = innerMessages(function, mesh);
    }
  }

  mutable bool fails = false; ///< an error was said

  double of(int64_t rank, LaunchOp launch) const override { return timesOf(rank, launch, {}).length(); }

  BesideTimes ofBoth(int64_t rank, LaunchOp first, LaunchOp second) const override {
    return first.getBeside() && !first.getBeside()->empty() ? timesOf(rank, first, second)
                                                            : CostModel::ofBoth(rank, first, second);
  }

  SmallVector<OpTime> opTimes(int64_t rank, StringRef name) const override {
    auto found = bodies.find(name);
    if (found == bodies.end() || found->second.times.begin()->second.empty())
      return {};
    SmallVector<OpTime> times;
    for (DictionaryAttr kind : kinds[rank])
      for (auto [i, time] : llvm::enumerate(ArrayRef(found->second.times.find(kind)->second).drop_back())) {
        if (i == times.size())
          times.push_back(time);
        times[i].compute = std::max(times[i].compute, time.compute);
      }
    for (const InnerMessage &message : found->second.messages) {
      Operation *op = nn::Exchange(message.op);
      times[std::distance(op->getBlock()->begin(), op->getIterator())] = timeOf(rank, message);
    }
    return times;
  }

  Route route(PostKind kind, ArrayRef<int64_t> ranks, int64_t bytes) const override {
    if (isOverMesh(kind, ranks))
      return routeOverReplicas(kind == PostKind::all_reduce ? 2 : 1, ranks.front(), bytes);
    Route route;
    llvm::StringMap<Load> loads; // by link
    Ring ring = ringOf(kind, ranks.size());
    for (size_t i = 0; i < ring.hops; ++i)
      cross(ranks[i], ranks[(i + 1) % ranks.size()], ranks, ring.volume, bytes, route, loads);
    route.latency *= ring.steps;
    for (auto &load : loads)
      route.transfer = std::max(route.transfer, load.getValue().seconds);
    for (const std::string &link : route.links)
      route.volumes.push_back(loads[link].volume);
    return route;
  }

private:
  struct Body {
    /// By kind of device, the times of the body's ops, the terminator too; without exchanges inside.
    llvm::DenseMap<DictionaryAttr, SmallVector<OpTime>> times;
    SmallVector<InnerMessage> messages;
  };

  /// The times of a launch and, if there is one, of another launch in turn with it.
  const BesideTimes &timesOf(int64_t rank, LaunchOp first, LaunchOp second) const {
    auto keyOf = [](Attribute attribute) { return attribute ? attribute.getAsOpaquePointer() : nullptr; };
    auto [found, isNew] = known.try_emplace({rank, keyOf(first.getCalleeAttr()),
                                             keyOf(second ? second.getCalleeAttr() : FlatSymbolRefAttr()),
                                             keyOf(second ? first.getBesideAttr() : DenseI64ArrayAttr())});
    if (!isNew)
      return found->second;
    SmallVector<OpTime> times = opTimes(rank, first.getCallee());
    found->second = second ? runInTurns(*first.getBeside(), times, opTimes(rank, second.getCallee()))
                           : BesideTimes{{0, 0}, {runAlone(times), 0}};
    return found->second;
  }

  /// The load of one message on a link: how many times its bytes pass the link, and the time of that.
  struct Load {
    double volume = 0, seconds = 0;
  };

  /// The cost of a reduce-scatter or an all-gather among devices: once, and for each byte of the whole.
  struct Way {
    double latency = 0, perByte = 0;
    bool crosses = false;
  };

  /// The devices that exchange something with the first one of the rank.
  SmallVector<int64_t> lineOf(int64_t rank, const InnerMessage &message) const {
    SmallVector<int64_t> members = mesh.line(firstOf(rank), message.axes.getAxes());
    members.truncate(message.members);
    return members;
  }

  Way wayAlong(ArrayRef<int64_t> members) const {
    const auto count = static_cast<double>(members.size());
    const auto near = static_cast<double>(llvm::count_if(
        members, [&](int64_t device) { return device / ranksPerNode == members.front() / ranksPerNode; }));
    bool crosses = near < count;
    double inside = near > 1 ? 1 / figure("inside", "bandwidth", 1) : 0;
    double allNics = static_cast<double>(nics) * figure("between", "bandwidth", 1);
    double between = crosses ? static_cast<double>(ranksPerNode) / near / allNics : 0;
    double steps = std::min(count - 1, 2 * std::ceil(std::log2(count)));
    double hop = std::max(near > 1 ? figure("inside", "latency", 0) : 0, crosses ? figure("between", "latency", 0) : 0);
    return {steps * hop, (count - 1) / count * std::max(inside, between), crosses};
  }

  OpTime timeOf(int64_t rank, const InnerMessage &message) const {
    Way way = wayAlong(lineOf(rank, message));
    double times = nn::Exchange(message.op).getKind() == nn::ExchangeKind::all_reduce ? 2 : 1;
    return {0, times * way.perByte * static_cast<double>(message.bytes()), times * way.latency, message.axes};
  }

  /// The devices of a rank that have the same weights scatter or gather so many bytes, or (`ways` is 2) both: a sum.
  Route routeOverReplicas(double ways, int64_t rank, int64_t bytes) const {
    SmallVector<int64_t> members = mesh.line(firstOf(rank), {Axis::context, Axis::data});
    const auto count = static_cast<double>(members.size());
    Way way = wayAlong(members);
    Route route;
    route.latency = ways * way.latency;
    route.transfer = ways * static_cast<double>(bytes) * way.perByte;
    for (StringRef side : {" out", " in"}) {
      route.links.push_back((way.crosses ? nicOf(rank) : "rank " + std::to_string(rank)) + side.str());
      route.volumes.push_back(ways * (count - 1) / count);
    }
    return route;
  }

  static double figureOf(DictionaryAttr kind, StringRef option, StringRef label, double otherwise) {
    auto figures = kind.getAs<DictionaryAttr>(option);
    auto value = figures ? figures.getAs<FloatAttr>(label) : FloatAttr();
    return value ? value.getValueAsDouble() : otherwise;
  }
  /// A figure of a link, which is no list.
  double figure(StringRef option, StringRef label, double otherwise) const {
    return figureOf(cluster, option, label, otherwise);
  }

  double secondsOf(nn::Kernel kernel, DictionaryAttr kind) const {
    auto figure = [&](StringRef option, StringRef label, double otherwise) {
      return figureOf(kind, option, label, otherwise);
    };
    auto product = dyn_cast<nn::Product>(kernel.getOperation());
    Value expertWeights = product ? product.expertWeights() : Value();
    bool attention = isa<nn::Attends>(kernel.getOperation());
    std::string type;
    llvm::raw_string_ostream(type) << kernel.elementType();
    double peak = figure("device", product || attention ? StringRef(type) : "f32", 0);
    if (peak == 0) // loops where only the speed of products is known, sums of another type
      for (StringRef other : {StringRef(type), StringRef("bf16"), StringRef("f16"), StringRef("f32"), StringRef("f64")})
        peak = peak == 0 ? figure("device", other, 0) : peak;
    double bandwidth = figure("device", "bandwidth", 0) * figure("efficiency", "bandwidth", 1);
    double launch = figure("device", "launch", 0), bytes = nn::bytesOf(kernel) / bandwidth;
    auto flopsAt = [&](double efficiency) { return kernel.flops() / (peak * efficiency); };
    double gemm = figure("efficiency", "gemm", 1);
    if (expertWeights)
      return launch +
             secondsOfExperts(kernel, expertWeights, flopsAt(figure("efficiency", "grouped", gemm)), bytes, bandwidth);
    if (attention) { // who says how fast our own is on a GPU has cuDNN for the rest, which writes more bytes
      double efficiency = figure("efficiency", "attention", 1), own = figure("efficiency", "masked", 0);
      if (own == 0)
        return launch + bytes + flopsAt(efficiency);
      if (nn::isServedByCudnn(kernel))
        return launch + bytes + 2 * static_cast<double>(nn::deviceScratchOf(kernel).attention) / bandwidth +
               flopsAt(efficiency);
      return launch + bytes + flopsAt(kernel.elementType().getIntOrFloatBitWidth() == 16 ? own : efficiency);
    }
    double flops = product ? flopsAt(gemm) * wavesOver(kernel, figure("device", "multiprocessors", 0)) : flopsAt(1);
    return launch + std::max(flops, bytes);
  }

  /// The time of all waves of a product's tiles over that of the same work spread evenly, with the tiles that suit it
  /// best; 1 if nobody says how many multiprocessors there are. Tiles are as cuBLASLt's kernels for Hopper have them;
  /// where there are few, it splits the sum: at most 4. (A model, which the step of a GPT-2 fits: no product of few
  /// tiles was timed alone.)
  static double wavesOver(nn::Kernel kernel, double multiprocessors) {
    auto type = dyn_cast<RankedTensorType>(kernel->getResult(0).getType());
    if (multiprocessors == 0 || !type || type.getRank() < 2)
      return 1;
    int64_t columns = type.getDimSize(type.getRank() - 1), rows = type.getNumElements() / columns;
    double least = std::numeric_limits<double>::infinity();
    for (auto [height, width] : {std::pair(128, 128), {128, 192}, {192, 128}, {128, 256}, {256, 128}}) {
      auto tiles = static_cast<double>(llvm::divideCeil(rows, height) * llvm::divideCeil(columns, width));
      least = std::min(least, std::ceil(tiles / multiprocessors) * height * width);
    }
    return std::min(4.0, least * multiprocessors / static_cast<double>(rows * columns));
  }

  /// Seconds in which each expert multiplies its share of the rows; nobody reads the matrix of an expert without rows.
  /// If experts are cut over devices, it is the time of the slowest device: the others wait for it.
  double secondsOfExperts(nn::Kernel kernel, Value weights, double flops, double bytes, double bandwidth) const {
    auto filled = kernel->getAttrOfType<FloatAttr>("filled");
    auto type = cast<RankedTensorType>(weights.getType());
    bool isGradient = weights.getDefiningOp() == kernel.getOperation();
    bool adds = isGradient && !cast<nn::InPlace>(kernel.getOperation()).getRequiredTies().empty();
    double matrices =
        (adds ? 2 : 1) * static_cast<double>(type.getNumElements()) * type.getElementTypeBitWidth() / 8 / bandwidth;
    double rows = (bytes - matrices) * (filled ? filled.getValueAsDouble() : 1);
    int64_t own = type.getDimSize(0);
    double longest = 0, each = matrices / static_cast<double>(own);
    auto counts = cast<RankedTensorType>(kernel->getOperand(2).getType());
    int64_t devices = counts.getRank() > 1 ? counts.getDimSize(0) : 1;
    FailureOr<SmallVector<double>> shares = load.of(own * devices, kernel.getLoc());
    fails |= failed(shares);
    for (int64_t device = 0; device < devices && succeeded(shares); ++device) {
      double seconds = 0;
      for (double share : ArrayRef(*shares).slice(device * own, own))
        if (share *= static_cast<double>(devices); share > 0)
          seconds += std::max(share * flops, share * rows + each);
      longest = std::max(longest, seconds);
    }
    return longest;
  }

  /// Adds the links from one rank of these to another to the route.
  void cross(int64_t from, int64_t to, ArrayRef<int64_t> ranks, double volume, double bytes, Route &route,
             llvm::StringMap<Load> &loads) const {
    if (from == kHost || to == kHost) {
      const int64_t rank = std::max(from, to);
      route.links.push_back("rank " + std::to_string(rank) + (to == kHost ? " to host" : " from host"));
      Load &load = loads[route.links.back()] = {volume, 0};
      for (DictionaryAttr kind : kinds[rank]) {
        route.latency = std::max(route.latency, figureOf(kind, "host", "latency", 0));
        load.seconds = std::max(load.seconds, volume * bytes / figureOf(kind, "host", "bandwidth", 1));
      }
      return;
    }
    bool inside = firstOf(from) / ranksPerNode == firstOf(to) / ranksPerNode;
    volume *= inside || !mesh ? 1 : static_cast<double>(copiesOnNic[from]);
    StringRef option = inside ? "inside" : "between";
    route.latency = std::max(route.latency, figure(option, "latency", 0));
    for (auto [rank, way] : {std::pair(from, " out"), std::pair(to, " in")}) {
      SmallVector<std::string> names =
          inside ? SmallVector<std::string>{"rank " + std::to_string(rank)} : nicsOnNodeOf(rank, ranks);
      double share = volume / static_cast<double>(names.size());
      for (const std::string &name : names) {
        Load &load = loads[name + way];
        if (load.volume == 0)
          route.links.push_back(name + way);
        load.volume += share;
        load.seconds += share * bytes / figure(option, "bandwidth", 1);
      }
    }
  }

  /// The NICs that these ranks have on the node of one of them.
  SmallVector<std::string> nicsOnNodeOf(int64_t rank, ArrayRef<int64_t> ranks) const {
    SmallVector<std::string> names;
    for (int64_t other : ranks)
      if (other != kHost && firstOf(other) / ranksPerNode == firstOf(rank) / ranksPerNode &&
          !llvm::is_contained(names, nicOf(other)))
        names.push_back(nicOf(other));
    return names;
  }

  int64_t firstOf(int64_t rank) const { return mesh ? rank * mesh.stride(Axis::pipeline) : rank; }
  int64_t numberOfNic(int64_t device) const { return device % ranksPerNode * nics / ranksPerNode; }

  std::string nicOf(int64_t rank) const {
    std::string name = "node " + std::to_string(firstOf(rank) / ranksPerNode);
    return nics == 1 ? name : name + " nic " + std::to_string(numberOfNic(firstOf(rank)));
  }

  /// Counts the devices of each rank that share the NIC of the first one.
  void countCopies() {
    int64_t stride = mesh.stride(Axis::pipeline), ranks = mesh.sizeOf(Axis::pipeline);
    copiesOnNic.assign(ranks, 0);
    for (int64_t device = 0; device < ranks * mesh.devicesOfRank(); ++device) {
      int64_t rank = device / stride % ranks, first = firstOf(rank);
      copiesOnNic[rank] += device / ranksPerNode == first / ranksPerNode && numberOfNic(device) == numberOfNic(first);
    }
  }

  DictionaryAttr cluster;
  ExpertLoad load;
  MeshAttr mesh; ///< null: each rank is one device
  int64_t ranksPerNode, nics;
  std::vector<SmallVector<DictionaryAttr>> kinds; ///< by rank: of its devices
  llvm::StringMap<Body> bodies;
  /// Known times by rank, both bodies and their turns.
  mutable std::map<std::tuple<int64_t, const void *, const void *, const void *>, BesideTimes> known;
  std::vector<int64_t> copiesOnNic;
};

} // namespace

/// The figure of the cluster that a program from a text lacks; the frontend requires all figures.
static std::string lackOf(ProgramOp program, DictionaryAttr cluster) {
  for (StringRef name : {"name", "ranks_per_node", "device"})
    if (!cluster.contains(name))
      return name.str();
  auto device = cluster.getAs<DictionaryAttr>("device");
  if (!device.contains("bandwidth"))
    return "device.bandwidth";
  if (llvm::none_of(ArrayRef<StringRef>{"f32", "bf16", "f16", "f64"},
                    [&](StringRef type) { return device.contains(type); }))
    return "device.f32";
  int64_t devices = program.getRanks() * (program.getMeshAttr() ? program.getMeshAttr().devicesOfRank() : 1);
  int64_t perNode = cluster.getAs<IntegerAttr>("ranks_per_node").getInt();
  for (auto [option, isUsed] : {std::pair("inside", devices > 1 && perNode > 1), {"between", devices > perNode}}) {
    auto link = cluster.getAs<DictionaryAttr>(option);
    if (isUsed && (!link || !link.contains("bandwidth")))
      return std::string(option) + ".bandwidth";
  }
  auto host = cluster.getAs<DictionaryAttr>("host");
  return host && !host.contains("bandwidth") ? "host.bandwidth" : "";
}

std::unique_ptr<CostModel> pp::makeClusterCosts(ProgramOp program, StringRef experts) {
  auto cluster = program.getClusterAttr();
  if (!cluster) {
    program.emitError("costs by cluster need one: `cluster NAME` in `train`, or --cluster=NAME");
    return nullptr;
  }
  if (std::string lacks = lackOf(program, cluster); !lacks.empty()) {
    program.emitError() << "costs by cluster need `" << lacks << "`, and the program's `cluster` has none";
    return nullptr;
  }
  for (auto rank : program.getOps<RankOp>())
    for (auto post : rank.getOps<PostOp>())
      if (post.isHost() && !cluster.contains("host")) {
        emitError(post.getLoc()) << "`" << post.getThing().str() << "` goes to host memory, and cluster `"
                                 << cluster.getAs<StringAttr>("name").getValue() << "` has no `host` that says how fast"
                                 << withLoops(post);
        return nullptr;
      }
  FailureOr<ExpertLoad> load = ExpertLoad::read(experts, program.getLoc());
  if (failed(load))
    return nullptr;
  auto model = std::make_unique<ClusterCosts>(program, cluster, *load);
  return model->fails ? nullptr : std::move(model);
}
