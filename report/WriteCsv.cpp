// Prints rank programs as CSV, a row for each rank: all that they do, or what a schedule of PyTorch can say.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "analysis/Actions.h"
#include "analysis/BodyTable.h"
#include "report/Report.h"

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;

static bool isWork(LaunchOp launch) { return launch.getUnit().getPhase() != Phase::U; }

/// A unit where it begins; of a part of an attention of another rank's unit, the slices of keys too: `s3.0F1[0to1]`.
static std::string cellOf(LaunchOp launch, BodyAttr body) {
  if (isPart(body) && body.getCut().getKind() == CutKind::part) {
    ArrayRef<int64_t> slices = body.getCut().getKeys().front().getSlices();
    return launch.getUnit().cell() + "[" + KeysAttr::get(body.getContext(), slices, /*home=*/false).label() + "]";
  }
  return beginsUnit(body) ? launch.getUnit().cell() : "";
}

static void printRow(ArrayRef<std::string> cells, llvm::raw_ostream &os) {
  llvm::interleave(cells, os, ",");
  os << "\n";
}

void pp::printTasks(ProgramOp program, llvm::raw_ostream &os) {
  BodyTable bodies(program->getParentOfType<ModuleOp>());
  for (auto rank : program.getOps<RankOp>()) {
    std::vector<std::string> cells;
    for (auto launch : rank.getOps<LaunchOp>())
      if (std::string cell = cellOf(launch, bodies.of(launch)); isWork(launch) && !cell.empty())
        cells.push_back(cell);
    printRow(cells, os);
  }
}

/// `SEND_F1` and the stage at this end of an activation or its gradient: whose it is, and which way it goes.
static std::string stageMessage(PostOp post, StringRef verb) {
  ThingAttr thing = post.getThing();
  CoordAttr coord = thing.getCoord();
  bool forward = thing.getRole() == Role::act, receives = post.getKind() == PostKind::receive;
  int64_t stage = coord.getIndex() + (!receives ? 0 : forward ? 1 : -1);
  std::string slice = coord.getSlice() < 0 ? "" : "s" + std::to_string(coord.getSlice()) + ".";
  return slice + std::to_string(stage) + verb.str() + (forward ? "F" : "B") + std::to_string(coord.getMicrobatch());
}

static bool isStageMessage(PostOp post) {
  Role role = post.getThing().getRole();
  return (role == Role::act || role == Role::dact) && post.getThing().getCoord().isStage();
}

/// A stage and one next to it; not the part that stands before the first stage or after the last.
static bool isBetweenStages(PostOp post, const Pieces &pieces) {
  int64_t piece = pieces.find(post.getThing().getCoord());
  int64_t reader = piece + (post.getThing().getRole() == Role::act ? 1 : -1);
  return isStageMessage(post) && reader >= 0 && reader < pieces.size() && pieces.op(reader).getCoord().isStage();
}

static std::string messageCell(PostOp post, const Pieces &pieces) {
  ThingAttr thing = post.getThing();
  CoordAttr coord = thing.getCoord();
  if (isBetweenStages(post, pieces))
    return stageMessage(post, post.getKind() == PostKind::send ? "SEND_" : "RECV_");
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
  std::string peers = post.isHost() ? "host" : "";
  if (AxesAttr axes = post.getAxesAttr()) { // `grad.0+data`, and `weight.0*data` of what is gathered
    sign = post.getKind() == PostKind::all_gather ? '*' : '+';
    for (Axis axis : axes.getAxes())
      peers += (peers.empty() ? "" : ":") + stringifyAxis(axis).str();
    return name + sign + peers;
  }
  for (int64_t peer : post.isHost() ? ArrayRef<int64_t>() : post.getPeers())
    peers += (peers.empty() ? "" : ":") + std::to_string(peer);
  return name + sign + peers;
}

/// The exchanges of devices inside the unit, with equal neighbours counted: `{ar.tensor*2 ag.tensor}`.
static std::string exchangesOf(LaunchOp launch, const SymbolTable &symbols) {
  SmallVector<std::pair<std::string, int64_t>> runs;
  if (auto body = symbols.lookup<func::FuncOp>(launch.getCallee()))
    body.walk([&](nn::Exchange exchange) {
      std::string name = exchange.getKind() == nn::ExchangeKind::all_reduce   ? "ar"
                         : exchange.getKind() == nn::ExchangeKind::all_gather ? "ag"
                         : exchange.getKind() == nn::ExchangeKind::all_to_all ? "aa"
                                                                              : "rs";
      for (nn::Axis axis : exchange.getAxes().getAxes())
        name += "." + nn::stringifyAxis(axis).str();
      if (runs.empty() || runs.back().first != name)
        runs.push_back({name, 0});
      ++runs.back().second;
    });
  std::string text;
  for (auto &[name, count] : runs)
    text += (text.empty() ? "" : " ") + name + (count > 1 ? "*" + std::to_string(count) : "");
  return text.empty() ? text : "{" + text + "}";
}

void pp::printComms(ProgramOp program, llvm::raw_ostream &os) {
  auto module = program->getParentOfType<ModuleOp>();
  BodyTable bodies(module);
  SymbolTable symbols(module);
  Pieces pieces(program);
  for (auto rank : program.getOps<RankOp>()) {
    std::vector<std::string> cells;
    for (Operation &op : rank.getBody().front()) {
      if (auto post = dyn_cast<PostOp>(op); post && !post.getSlot().getDefiningOp<SlotOp>().getHost())
        cells.push_back(messageCell(post, pieces));
      auto launch = dyn_cast<LaunchOp>(op);
      if (std::string cell = launch && isWork(launch) ? cellOf(launch, bodies.of(launch)) : ""; !cell.empty())
        cells.push_back(cell + exchangesOf(launch, symbols));
    }
    printRow(cells, os);
  }
}

//===-- PyTorch ---------------------------------------------------------------------------------------------------===//

namespace {

/// Writes what PyTorch's reader takes. Its schedules know stages, each on one rank, microbatches, and messages between
/// a stage and the next one; the optimizer's step is not part of them.
class TorchWriter {
public:
  TorchWriter(ProgramOp program, TorchForm form) : program(program), pieces(program), form(form) {}

  LogicalResult write(llvm::raw_ostream &os) {
    placed.resize(pieces.size());
    for (auto rank : program.getOps<RankOp>())
      if (failed(findStages(rank)))
        return failure();
    std::vector<std::vector<std::string>> rows;
    for (auto rank : program.getOps<RankOp>())
      if (failed(writeRank(rank, rows.emplace_back())))
        return failure();
    for (const std::vector<std::string> &row : rows)
      printRow(row, os);
    return success();
  }

private:
  ProgramOp program;
  Pieces pieces;
  TorchForm form;
  std::vector<LaunchOp> placed; // by stage: its first unit

  static int64_t rankOf(Operation *op) { return op->getParentOfType<RankOp>().getRank(); }

  LogicalResult findStages(RankOp rank) {
    for (auto launch : rank.getOps<LaunchOp>()) {
      if (!isWork(launch))
        continue;
      LaunchOp &first = placed[pieces.find(launch.getUnit().getCoord())];
      first = first ? first : launch;
      if (launch.getUnit().getPhase() == Phase::R)
        return emitError(launch.getLoc())
               << "`" << launch.getUnit().str() << "`: a schedule of PyTorch has no recompute" << withLoops(launch);
      if (rankOf(first) == rankOf(launch))
        continue;
      auto error = emitError(launch.getLoc())
                   << "`" << launch.getUnit().str() << "` runs on rank " << rankOf(launch)
                   << "; in a schedule of PyTorch a stage runs on one rank" << withLoops(launch);
      error.attachNote(first.getLoc()) << "`" << first.getUnit().str() << "` runs on rank " << rankOf(first)
                                       << withLoops(first);
      return error;
    }
    return success();
  }

  bool isTied(CoordAttr coord) {
    ArrayAttr weights = pieces.op(pieces.find(coord)).getWeightsAttr();
    return weights && llvm::any_of(weights, [](Attribute weight) { return cast<WeightAttr>(weight).getTied(); });
  }

  /// The norm of the gradients and the shares of tied weights belong to the optimizer's step.
  bool isUpdate(PostOp post) {
    Role role = post.getThing().getRole();
    if (role == Role::stat)
      return true;
    return (role == Role::weight || role == Role::grad) && isTied(post.getThing().getCoord());
  }

  LogicalResult checkMessage(PostOp post) {
    auto refuse = [&] {
      return emitError(post.getLoc()) << "`" << post.getThing().str() << "` goes from rank "
                                      << (post.getKind() == PostKind::send ? rankOf(post) : post.getPeers().front())
                                      << " to rank "
                                      << (post.getKind() == PostKind::send ? post.getPeers().front() : rankOf(post));
    };
    if (!isStageMessage(post))
      return refuse() << "; a schedule of PyTorch sends activations and their gradients only" << withLoops(post);
    bool forward = post.getThing().getRole() == Role::act, sends = post.getKind() == PostKind::send;
    int64_t stage = pieces.find(post.getThing().getCoord()), reader = stage + (forward ? 1 : -1);
    int64_t here = sends ? stage : reader, there = sends ? reader : stage;
    if (rankOf(placed[here]) != rankOf(post) || rankOf(placed[there]) != post.getPeers().front())
      return refuse() << "; in a schedule of PyTorch it goes from where stage " << stage << " runs, rank "
                      << rankOf(placed[stage]) << ", to where stage " << reader << " runs, rank "
                      << rankOf(placed[reader]) << withLoops(post);
    return success();
  }

  /// The units of one `together` are one cell, at the place of the first.
  static std::string unitCell(LaunchOp launch) {
    auto joint = launch.getJointAttr();
    if (!joint)
      return launch.getUnit().cell();
    std::string cell;
    for (auto member : cast<RankOp>(launch->getParentOp()).getOps<LaunchOp>()) {
      if (member.getJointAttr() != joint)
        continue;
      if (cell.empty() && member != launch)
        return "";
      cell += (cell.empty() ? "(" : ";") + member.getUnit().cell();
    }
    return cell + ")OVERLAP_F_B";
  }

  LogicalResult writeRank(RankOp rank, std::vector<std::string> &row) {
    llvm::DenseMap<int64_t, int64_t> contributions;
    for (Operation &op : rank.getBody().front()) {
      if (auto launch = dyn_cast<LaunchOp>(op); launch && isWork(launch))
        writeUnit(launch, contributions, row);
      auto complete = dyn_cast<CompleteOp>(op);
      auto post = complete ? complete.getRequest().getDefiningOp<PostOp>() : dyn_cast<PostOp>(op);
      if (!post || isUpdate(post))
        continue;
      if (failed(checkMessage(post)))
        return failure();
      bool sends = post.getKind() == PostKind::send;
      if (form.messages && !complete)
        row.push_back(stageMessage(post, sends ? "SEND_" : "RECV_"));
      else if (form.messages && sends && form.waits)
        row.push_back(stageMessage(post, "WAIT_SEND_"));
    }
    return success();
  }

  void writeUnit(LaunchOp launch, llvm::DenseMap<int64_t, int64_t> &contributions, std::vector<std::string> &row) {
    if (std::string cell = unitCell(launch); !cell.empty())
      row.push_back(cell);
    Phase phase = launch.getUnit().getPhase();
    int64_t stage = launch.getUnit().getCoord().getIndex();
    bool adds = phase == Phase::B || phase == Phase::W;
    bool last = adds && ++contributions[stage] == static_cast<int64_t>(program.getMicrobatches());
    if (!form.messages || !last)
      return;
    row.push_back(std::to_string(stage) + "REDUCE_GRAD"); // there PyTorch divides by the number of microbatches
    if (form.waits)
      row.push_back(std::to_string(stage) + "WAIT_REDUCE_GRAD");
  }
};

} // namespace

LogicalResult pp::checkTorch(ProgramOp program) {
  if (program.getSlices() > 0)
    return emitError(program.getLoc()) << "a schedule of PyTorch has no slices, and this one has "
                                       << program.getSlices();
  for (auto piece : program.getOps<PieceOp>())
    if (!piece.getCoord().isStage())
      return emitError(piece.getLoc()) << "`" << piece.getCoord().str()
                                       << "` is a part of the model; a schedule of PyTorch has stages only";
  return success();
}

LogicalResult pp::exportTorch(ProgramOp program, TorchForm form, llvm::raw_ostream &os) {
  return TorchWriter(program, form).write(os);
}
