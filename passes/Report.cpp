// Prints rank programs as CSV.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "passes/Report.h"
#include "passes/Actions.h"

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
