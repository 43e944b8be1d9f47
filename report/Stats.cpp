// Writes what a simulated run of the rank programs comes to, as JSON: time and its causes, memory, traffic.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "analysis/Exchange.h"
#include "analysis/Messages.h"
#include "analysis/lives/RankLives.h"
#include "analysis/lives/Scratch.h"
#include "report/Report.h"
#include "llvm/ADT/MapVector.h"
#include "llvm/ADT/StringSet.h"
#include <cmath>

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;

/// Until the makespan: idle time by cause, and what completes the step in between.
static void printIdle(const RankTimeline &rank, double makespan, llvm::json::OStream &json) {
  double causes[4] = {}, updates = 0;
  for (const Idle &idle : rank.idles)
    causes[static_cast<int>(idle.cause)] += std::max(0.0, std::min(idle.end, makespan) - idle.start);
  for (const Span &span : rank.spans)
    if (!span.isWork())
      updates += std::max(0.0, std::min(span.end, makespan) - span.start);
  json.attributeObject("idle_by_cause", [&] {
    for (IdleCause cause :
         {IdleCause::dependency, IdleCause::headOfLine, IdleCause::communication, IdleCause::imbalance})
      json.attribute(stringifyIdleCause(cause), causes[static_cast<int>(cause)]);
  });
  json.attribute("updates", updates);
  json.attribute("exposed_communication",
                 causes[static_cast<int>(IdleCause::headOfLine)] + causes[static_cast<int>(IdleCause::communication)]);
}

/// When the most bytes are alive, and which.
static void printPeak(const RankTimeline &rank, llvm::json::OStream &json) {
  auto peak =
      llvm::max_element(rank.memory, [](const MemoryPoint &a, const MemoryPoint &b) { return a.total < b.total; });
  if (peak == rank.memory.end())
    return;
  json.attributeObject("peak_at", [&] {
    json.attribute("time", peak->time);
    for (auto [role, bytes] : llvm::enumerate(peak->bytes))
      if (bytes)
        json.attribute(stringifyRole(static_cast<Role>(role)), bytes);
    json.attribute("total", peak->total);
  });
}

static void printCollectives(RankOp rank, llvm::json::OStream &json) {
  std::map<PostKind, int64_t> joined;
  int64_t bytes = 0;
  double chunks = 0; // weights and gradients of whole pieces, as papers on weight passing count
  for (auto post : rank.getOps<PostOp>()) {
    joined[post.getKind()] += post.isCollective();
    int64_t received = bytesReceived(post);
    bytes += received;
    if (post.getThing().getRole() == Role::weight || post.getThing().getRole() == Role::grad)
      chunks += double(received) / bytesOf(post);
  }
  json.attributeObject("collectives_joined", [&] {
    for (auto [kind, count] : joined)
      if (count > 0)
        json.attribute(stringifyPostKind(kind), count);
  });
  json.attribute("bytes_received", bytes);
  json.attribute("chunks_received", chunks);
}

static void printTraffic(RankOp rank, const BodyTable &bodies, llvm::json::OStream &json) {
  int64_t sent = 0, received = 0, bytes = 0, hostBytes = 0;
  llvm::MapVector<StringRef, std::pair<int64_t, int64_t>> byRole; // messages, bytes
  for (auto post : rank.getOps<PostOp>()) {
    int64_t size = bytesOf(post);
    if (post.isHost()) {
      hostBytes += post.getKind() == PostKind::send ? size : 0;
      continue;
    }
    received += post.getKind() == PostKind::receive;
    if (post.getKind() != PostKind::send)
      continue;
    auto &entry = byRole[stringifyRole(post.getThing().getRole())];
    ++entry.first;
    entry.second += size;
    bytes += size;
    ++sent;
  }
  json.attributeObject("bytes_sent", [&] {
    for (auto [role, entry] : byRole)
      json.attribute(role, entry.second);
    json.attribute("total", bytes);
  });
  if (hostBytes)
    json.attribute("bytes_to_and_from_host", hostBytes);
  json.attributeObject("messages_sent_by_role", [&] {
    for (auto [role, entry] : byRole)
      json.attribute(role, entry.first);
  });
  json.attribute("units", llvm::count_if(rank.getOps<LaunchOp>(), [&](LaunchOp launch) {
                   return launch.getUnit().getPhase() != Phase::U && beginsUnit(bodies.of(launch));
                 }));
  json.attribute("messages_sent", sent);
  json.attribute("messages_received", received);
  printCollectives(rank, json);
}

/// Prints the exchanges of a device with others of its rank inside units, by phase: their number in the step, and the
/// bytes that come to the device. Prints nothing if there are none.
static void printExchanges(RankOp rank, llvm::json::OStream &json) {
  auto program = rank->getParentOfType<ProgramOp>();
  SymbolTable symbols(program->getParentOfType<ModuleOp>());
  std::map<std::string, std::map<std::string, std::pair<int64_t, int64_t>>> byPhase;
  llvm::StringMap<SmallVector<InnerMessage>> known;
  for (auto launch : rank.getOps<LaunchOp>()) {
    auto [found, isNew] = known.try_emplace(launch.getCallee());
    if (isNew)
      found->second = innerMessages(symbols.lookup<func::FuncOp>(launch.getCallee()), program.getMeshAttr());
    for (InnerMessage &message : found->second) {
      std::string kind = (message.op.getAxes().str() + "." + nn::stringifyExchangeKind(message.op.getKind())).str();
      auto &entry = byPhase[stringifyPhase(launch.getUnit().getPhase()).str()][kind];
      ++entry.first;
      entry.second += message.received();
    }
  }
  if (byPhase.empty())
    return;
  json.attributeObject("exchanges", [&] {
    for (auto &[phase, kinds] : byPhase)
      json.attributeObject(phase, [&] {
        for (auto &[kind, entry] : kinds)
          json.attributeArray(kind, [&] {
            json.value(entry.first);
            json.value(entry.second);
          });
      });
  });
}

/// If experts are cut over devices: prints the rows that come to one device's experts from a microbatch if every expert
/// is chosen equally often, and the rows for which there is room.
static void printExpertRows(RankOp rank, llvm::json::OStream &json) {
  SymbolTable symbols(rank->getParentOfType<ModuleOp>());
  int64_t balanced = 0, planned = 0;
  llvm::StringSet<> known;
  for (auto launch : rank.getOps<LaunchOp>())
    if (auto body = symbols.lookup<func::FuncOp>(launch.getCallee()); body && known.insert(body.getName()).second)
      for (auto product : body.getOps<nn::ExpertLinearOp>())
        if (cast<RankedTensorType>(product.getCounts().getType()).getRank() > 1) {
          int64_t rows = cast<RankedTensorType>(product.getX().getType()).getDimSize(1);
          planned = std::max(planned, rows);
          balanced = std::max<int64_t>(balanced,
                                       std::llround(static_cast<double>(rows) * product.getFilled().convertToDouble()));
        }
  if (planned > 0)
    json.attributeArray("expert_rows", [&] {
      json.value(balanced);
      json.value(planned);
    });
}

static void printRank(RankOp rank, const BodyTable &bodies, const Timeline &timeline, llvm::json::OStream &json) {
  const RankTimeline &record = timeline.ranks[rank.getRank()];
  RankLives lives(rank, bodies);
  json.objectBegin();
  json.attribute("rank", static_cast<int64_t>(rank.getRank()));
  json.attribute("busy", record.busy);
  json.attribute("idle", timeline.makespan - record.busy);
  json.attribute("span", record.last - record.first);
  printIdle(record, timeline.makespan, json);
  json.attributeObject("peak_bytes", [&] {
    for (NamedAttribute entry : rank.getPeakAttr())
      json.attribute(entry.getName().getValue(), cast<IntegerAttr>(entry.getValue()).getInt());
  });
  RankScratch outside = scratchOf(rank);
  json.attributeObject("outside_bytes", [&] { // the arena; `kernels` is one block, which its parts use in turn
    for (auto [part, bytes] : outside.parts())
      json.attribute(part, bytes);
    json.attribute("total", outside.total());
  });
  if (outside.isDevice) {
    json.attribute("nccl_multiprocessors", outside.multiprocessors);
    json.attribute("nccl_multiprocessors_of_collectives", outside.multiprocessorsOfCollectives);
  }
  printPeak(record, json);
  for (bool slots : {false, true})
    json.attributeObject(slots ? "peak_slots" : "peak_values", [&] {
      if (!slots)
        json.attribute("stash", lives.mostStashes());
      for (Role role : {Role::weight, Role::grad, Role::act, Role::dact})
        json.attribute(stringifyRole(role), slots ? lives.mostSlots(role) : lives.mostValues(role));
    });
  printTraffic(rank, bodies, json);
  printExchanges(rank, json);
  printExpertRows(rank, json);
  json.objectEnd();
}

static void printLinks(const Timeline &timeline, llvm::json::OStream &json) {
  json.attributeArray("links", [&] {
    for (const LinkLoad &link : timeline.links)
      json.object([&] {
        json.attribute("name", link.name);
        json.attribute("messages", link.messages);
        json.attribute("bytes", link.bytes);
        json.attribute("busy", link.busy);
        if (link.chunks > 0)
          json.attribute("chunks", link.chunks);
      });
  });
}

/// Each kind of op of a step, over all ranks, the longest in all first.
static void printOps(ProgramOp program, const CostModel &costs, llvm::json::OStream &json) {
  SymbolTable symbols(program->getParentOfType<ModuleOp>());
  std::map<std::tuple<std::string, std::string, std::vector<int64_t>, std::vector<std::string>>,
           std::pair<int64_t, double>>
      kinds;
  for (auto rank : program.getOps<RankOp>()) {
    llvm::MapVector<StringRef, int64_t> launched;
    for (auto launch : rank.getOps<LaunchOp>())
      ++launched[launch.getCallee()];
    for (auto [name, count] : launched) {
      SmallVector<OpTime> times = costs.opTimes(static_cast<int64_t>(rank.getRank()), name);
      if (times.empty())
        continue;
      for (auto [op, time] : llvm::zip(symbols.lookup<func::FuncOp>(name).getOps(), times))
        if (auto kernel = dyn_cast<nn::Kernel>(op)) {
          std::string type;
          llvm::raw_string_ostream(type) << kernel.elementType();
          SmallVector<int64_t> dims = kernel.dims();
          std::vector<std::string> flags;
          for (StringRef flag : kernel.flags())
            flags.push_back(flag.str());
          auto &[number, seconds] = kinds[{kernel.kernelName().str(), type, {dims.begin(), dims.end()}, flags}];
          number += count;
          seconds += static_cast<double>(count) * time.compute;
        }
    }
  }
  if (kinds.empty())
    return;
  std::vector<const decltype(kinds)::value_type *> sorted;
  for (const auto &kind : kinds)
    sorted.push_back(&kind);
  llvm::stable_sort(sorted, [](auto *a, auto *b) { return a->second.second > b->second.second; });
  json.attributeArray("ops", [&] {
    for (const auto *kind : sorted)
      json.object([&] {
        const auto &[kernel, type, dims, flags] = kind->first;
        json.attribute("kernel", kernel);
        json.attribute("type", type);
        json.attributeArray("dims", [&] { llvm::for_each(dims, [&](int64_t dim) { json.value(dim); }); });
        json.attributeArray("flags", [&] { llvm::for_each(flags, [&](StringRef flag) { json.value(flag); }); });
        json.attribute("count", kind->second.first);
        json.attribute("mean", kind->second.second / static_cast<double>(kind->second.first));
      });
  });
}

static void writeStats(ProgramOp program, const Timeline &timeline, const CostModel *costs, llvm::json::OStream &json) {
  BodyTable bodies(program->getParentOfType<ModuleOp>());
  json.objectBegin();
  json.attribute("program", program.getSymName());
  json.attribute("ranks", static_cast<int64_t>(program.getRanks()));
  if (MeshAttr mesh = program.getMeshAttr()) // all below is of one device of a rank
    json.attribute("devices", static_cast<int64_t>(program.getRanks()) * mesh.devicesOfRank());
  json.attribute("microbatches", static_cast<int64_t>(program.getMicrobatches()));
  json.attribute("makespan", timeline.makespan);
  json.attribute("bubble", timeline.bubble());
  json.attribute("time", timeline.unitTime ? "units" : "seconds");
  if (!timeline.units.empty())
    json.attribute("unit_of_time", timeline.units);
  json.attribute("span", timeline.span());
  json.attribute("step", timeline.step);
  json.attribute("two_steps_without_barrier", timeline.twoSteps);
  json.attribute("barrier_cost", timeline.barrierCost());
  if (timeline.period > 0) {
    json.attribute("period", timeline.period);
    json.attribute("period_with_barrier", timeline.barrierPeriod);
  }
  json.attributeArray("per_rank", [&] {
    for (auto rank : program.getOps<RankOp>())
      printRank(rank, bodies, timeline, json);
  });
  printLinks(timeline, json);
  if (costs)
    printOps(program, *costs, json);
  json.objectEnd();
}

void pp::writeStats(ProgramOp program, const Timeline &timeline, llvm::json::OStream &json) {
  ::writeStats(program, timeline, nullptr, json);
}

void pp::printStats(ProgramOp program, const Timeline &timeline, const CostModel &costs, llvm::raw_ostream &os) {
  llvm::json::OStream json(os, 2);
  ::writeStats(program, timeline, &costs, json);
  os << "\n";
}
