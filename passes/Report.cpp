// Prints rank programs as CSV and as numbers.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "passes/Report.h"
#include "passes/Actions.h"
#include "passes/SlotLives.h"

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;

static bool isWork(LaunchOp launch) { return launch.getUnit().getPhase() != Phase::U; }

static void printRow(ArrayRef<std::string> cells, llvm::raw_ostream &os) {
  llvm::interleave(cells, os, ",");
  os << "\n";
}

void pp::printTasks(ProgramOp program, llvm::raw_ostream &os) {
  for (auto rank : program.getOps<RankOp>()) {
    std::vector<std::string> cells;
    for (auto launch : rank.getOps<LaunchOp>())
      if (isWork(launch))
        cells.push_back(launch.getUnit().cell());
    printRow(cells, os);
  }
}

/// `2SEND_F1`: the stage at this end of an activation or its gradient, and which way it goes.
static std::string stageMessage(PostOp post) {
  ThingAttr thing = post.getThing();
  CoordAttr coord = thing.getCoord();
  bool forward = thing.getRole() == Role::act, send = post.getKind() == PostKind::send;
  int64_t stage = coord.getIndex() + (send ? 0 : forward ? 1 : -1);
  std::string slice = coord.getSlice() < 0 ? "" : "s" + std::to_string(coord.getSlice()) + ".";
  return slice + std::to_string(stage) + (send ? "SEND_" : "RECV_") + (forward ? "F" : "B") +
         std::to_string(coord.getMicrobatch());
}

static std::string messageCell(PostOp post) {
  ThingAttr thing = post.getThing();
  CoordAttr coord = thing.getCoord();
  bool activation = thing.getRole() == Role::act || thing.getRole() == Role::dact;
  if (activation && coord.isStage())
    return stageMessage(post);
  std::string name = stringifyRole(thing.getRole()).str();
  if (thing.getRole() == Role::stat)
    name = coord.getPart().str();
  else if (!coord.isStage())
    name += "." + coord.getPart().str();
  if (coord.getIndex() >= 0)
    name += "." + std::to_string(coord.getIndex());
  if (coord.getMicrobatch() >= 0)
    name += "." + std::to_string(coord.getMicrobatch());
  char sign = post.getKind() == PostKind::send ? '>' : post.getKind() == PostKind::receive ? '<' : '+';
  std::string peers;
  for (int64_t peer : post.getPeers())
    peers += (peers.empty() ? "" : ":") + std::to_string(peer);
  return name + sign + peers;
}

void pp::printComms(ProgramOp program, llvm::raw_ostream &os) {
  for (auto rank : program.getOps<RankOp>()) {
    std::vector<std::string> cells;
    for (Operation &op : rank.getBody().front()) {
      if (auto post = dyn_cast<PostOp>(op))
        cells.push_back(messageCell(post));
      if (auto launch = dyn_cast<LaunchOp>(op); launch && isWork(launch))
        cells.push_back(launch.getUnit().cell());
    }
    printRow(cells, os);
  }
}

//===-- Numbers -------------------------------------------------------------------------------------------------===//

/// Most values of a role alive at once: slots for weights and gradients, units between F and their last backward for
/// stashes.
static int64_t countAlive(ArrayRef<SlotLife> lives, Role role) {
  std::vector<std::pair<int64_t, int64_t>> events;
  for (const SlotLife &life : lives) {
    if (SlotOp(life.op).getRole() != role)
      continue;
    for (Segment segment : life.segments) {
      events.push_back({segment.first, 1});
      events.push_back({segment.last + 1, -1});
    }
  }
  llvm::sort(events);
  int64_t alive = 0, most = 0;
  for (auto [position, change] : events)
    most = std::max(most, alive += change);
  return most;
}

static int64_t countStashes(RankOp rank) {
  int64_t alive = 0, most = 0;
  for (auto launch : rank.getOps<LaunchOp>()) {
    Phase phase = launch.getUnit().getPhase();
    if (phase == Phase::F)
      most = std::max(most, ++alive);
    else if (phase == Phase::B || phase == Phase::W)
      --alive;
  }
  return most;
}

static void printRank(RankOp rank, const Timeline &timeline, llvm::json::OStream &json) {
  int64_t number = rank.getRank(), units = 0, sent = 0, received = 0, bytes = 0;
  llvm::MapVector<StringRef, std::pair<int64_t, int64_t>> byRole; // messages, bytes
  for (Operation &op : rank.getBody().front()) {
    if (auto launch = dyn_cast<LaunchOp>(op))
      units += isWork(launch);
    auto post = dyn_cast<PostOp>(op);
    if (!post)
      continue;
    received += post.getKind() == PostKind::receive;
    if (post.getKind() != PostKind::send)
      continue;
    int64_t size = payloadOffsets(cast<SlotType>(post.getSlot().getType()).getPayload()).back();
    auto &entry = byRole[stringifyRole(post.getThing().getRole())];
    ++entry.first;
    entry.second += size;
    bytes += size;
    ++sent;
  }
  std::vector<SlotLife> lives = slotLives(rank);
  json.objectBegin();
  json.attribute("rank", number);
  json.attribute("busy", timeline.ranks[number].busy);
  json.attribute("idle", timeline.makespan - timeline.ranks[number].busy);
  json.attributeObject("peak_bytes", [&] {
    for (NamedAttribute entry : rank->getAttrOfType<DictionaryAttr>("peak"))
      json.attribute(entry.getName().getValue(), cast<IntegerAttr>(entry.getValue()).getInt());
  });
  json.attributeObject("peak_values", [&] {
    json.attribute("stash", countStashes(rank));
    json.attribute("weight", countAlive(lives, Role::weight));
    json.attribute("grad", countAlive(lives, Role::grad));
    json.attribute("act", countAlive(lives, Role::act));
    json.attribute("dact", countAlive(lives, Role::dact));
  });
  json.attributeObject("bytes_sent", [&] {
    for (auto [role, entry] : byRole)
      json.attribute(role, entry.second);
    json.attribute("total", bytes);
  });
  json.attributeObject("messages_sent_by_role", [&] {
    for (auto [role, entry] : byRole)
      json.attribute(role, entry.first);
  });
  json.attribute("units", units);
  json.attribute("messages_sent", sent);
  json.attribute("messages_received", received);
  json.objectEnd();
}

void pp::writeStats(ProgramOp program, const Timeline &timeline, llvm::json::OStream &json) {
  json.objectBegin();
  json.attribute("program", program.getSymName());
  json.attribute("ranks", static_cast<int64_t>(program.getRanks()));
  json.attribute("microbatches", static_cast<int64_t>(program.getMicrobatches()));
  json.attribute("makespan", timeline.makespan);
  json.attribute("bubble", timeline.bubble());
  json.attributeArray("per_rank", [&] {
    for (auto rank : program.getOps<RankOp>())
      printRank(rank, timeline, json);
  });
  json.objectEnd();
}

void pp::printStats(ProgramOp program, const Timeline &timeline, llvm::raw_ostream &os) {
  llvm::json::OStream json(os, 2);
  writeStats(program, timeline, json);
  os << "\n";
}
