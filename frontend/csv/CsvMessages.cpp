// The messages of a schedule CSV: both ends there, in one order at both ends, and rows that no message can block.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//   rank 0 | 0F0 0SEND_F0 0F1 0SEND_F1          0F0@0  {0SEND_F0 1RECV_F0}  0F1@0 1F0@1  {0SEND_F1 1RECV_F1}  ..
//   rank 1 | 1RECV_F0 1F0 1RECV_F1 ..     ~~>
//
// PyTorch checks none of this: a pair that does not match hangs. Here a SEND and its RECV become one step of one order
// over all ranks, so rows that can be merged cannot deadlock, however little is buffered. PyTorch posts a cell and goes
// on, but the messages of a rank still go one after the other: NCCL runs them on one stream, and a large SEND ends when
// its RECV runs. Two ranks that both post a SEND before the RECV of the other one hang there, and are refused here.
// PyTorch's own lowering appends both cells of a message at once; the rows that it writes can always be merged.
#include "frontend/csv/Csv.h"
#include "llvm/ADT/DenseMap.h"
#include "llvm/ADT/StringExtras.h"
#include <map>

using namespace llvm;
using namespace pp;

namespace {

/// A cell by its place.
struct Place {
  int64_t rank = -1, position = -1;
  bool operator<(const Place &other) const { return position < other.position; }
};

/// The content of a message: the activation that `stage` made, or the gradient of its input.
using Cargo = std::tuple<int64_t, int64_t, int64_t>; // forward, stage that made it, microbatch

class Merger {
public:
  Merger(Source &source, const CsvTable &table, ArrayRef<int64_t> ranks) : source(source), table(table), ranks(ranks) {}

  FailureOr<std::vector<CsvStep>> run() {
    if (failed(findCells()) || failed(checkCells()) || failed(checkWaits()) || failed(checkOrders()) || failed(merge()))
      return failure();
    return std::move(steps);
  }

private:
  Source &source;
  const CsvTable &table;
  ArrayRef<int64_t> ranks; // by stage
  DenseMap<Cargo, Place> units, sends, receives;
  DenseSet<Cargo> arrived;
  std::vector<size_t> heads; // by rank: the first action that has not gone
  std::vector<CsvStep> steps;

  const CsvAction &cell(Place place) const { return table.rows[place.rank].actions[place.position]; }
  int64_t stages() const { return ranks.size(); }

  static Cargo cargoOf(const CsvAction &message) {
    int64_t step = message.isReceive() ? message.isForward() ? -1 : 1 : 0;
    return {message.isForward(), message.stage + step, message.microbatch};
  }
  static int64_t consumerOf(Cargo cargo) { return std::get<1>(cargo) + (std::get<0>(cargo) ? 1 : -1); }
  /// Whether this cargo changes ranks at all.
  bool travels(Cargo cargo) const {
    int64_t consumer = consumerOf(cargo);
    return 0 <= consumer && consumer < stages() && ranks[consumer] != ranks[std::get<1>(cargo)];
  }
  static std::string spell(Cargo cargo, bool send) {
    auto [forward, stage, microbatch] = cargo;
    return std::to_string(send ? stage : consumerOf(cargo)) + (send ? "SEND_" : "RECV_") + (forward ? "F" : "B") +
           std::to_string(microbatch);
  }

  LogicalResult noted(mlir::InFlightDiagnostic error, SMLoc at, const Twine &note) {
    error.attachNote(source.location(at)) << note;
    return error;
  }

  LogicalResult findCells() {
    for (auto [rank, row] : enumerate(table.rows)) {
      if (row.blank.isValid())
        return source.error(row.blank) << "expected an action, got an empty cell; a schedule with messages says what "
                                          "follows what, not when";
      for (auto [position, action] : enumerate(row.actions)) {
        Place place{int64_t(rank), int64_t(position)};
        if (action.kind == CsvAction::F || action.isBackward())
          units.try_emplace({action.kind == CsvAction::F, action.stage, action.microbatch}, place);
        if (action.isMessage() && failed(findMessage(action, place)))
          return failure();
      }
    }
    return success();
  }

  LogicalResult findMessage(const CsvAction &action, Place place) {
    if (ranks[action.stage] != place.rank)
      return source.error(action.at) << "`" << action.text << "` is in the row of rank " << place.rank << ", but stage "
                                     << action.stage << " runs on rank " << ranks[action.stage];
    Cargo cargo = cargoOf(action);
    int64_t other = action.isSend() ? consumerOf(cargo) : std::get<1>(cargo);
    if (other < 0 || other >= stages())
      return source.error(action.at) << "`" << action.text << "` has no other end: stage " << action.stage << " is the "
                                     << (other < 0 ? "first" : "last") << " of " << stages();
    if (!travels(cargo))
      return source.error(action.at) << "`" << action.text << "` sends nothing: stages " << action.stage << " and "
                                     << other << " are both on rank " << place.rank;
    auto [first, isNew] = (action.isSend() ? sends : receives).try_emplace(cargo, place);
    if (!isNew)
      return noted(source.error(action.at) << "`" << action.text << "` stands twice in this file",
                   cell(first->second).at, "first here");
    return success();
  }

  /// Each unit has the messages that it needs, on its side of them.
  LogicalResult checkCells() {
    for (auto [rank, row] : enumerate(table.rows))
      for (auto [position, action] : enumerate(row.actions)) {
        Place here{int64_t(rank), int64_t(position)};
        bool forward = action.kind == CsvAction::F;
        if (!forward && !action.isBackward())
          continue;
        Cargo made{forward, action.stage, action.microbatch};
        Cargo used{forward, action.stage + (forward ? -1 : 1), action.microbatch};
        int64_t maker = std::get<1>(used);
        if (travels(made) && failed(checkSend(action, here, made)))
          return failure();
        if (0 <= maker && maker < stages() && travels(used) && failed(checkReceive(action, here, used)))
          return failure();
      }
    for (const CsvRow &row : table.rows)
      for (const CsvAction &action : row.actions)
        if (action.isMessage() && failed(checkEnds(action)))
          return failure();
    return success();
  }

  LogicalResult checkEnds(const CsvAction &message) {
    Cargo cargo = cargoOf(message);
    if (message.isSend() && !units.count(cargo))
      return source.error(message.at) << "`" << message.text << "` sends what no unit makes";
    if ((message.isSend() ? receives : sends).count(cargo))
      return success();
    return source.error(message.at) << "`" << message.text << "` has no `" << spell(cargo, !message.isSend())
                                    << "` on rank " << ranks[message.isSend() ? consumerOf(cargo) : std::get<1>(cargo)];
  }

  LogicalResult checkSend(const CsvAction &unit, Place here, Cargo made) {
    auto send = sends.find(made);
    if (send == sends.end())
      return source.error(unit.at) << "`" << unit.text << "` is followed by no `" << spell(made, true) << "`; stage "
                                   << consumerOf(made) << " is on rank " << ranks[consumerOf(made)];
    if (send->second < here)
      return noted(source.error(cell(send->second).at) << "`" << cell(send->second).text << "` sends what has not run",
                   unit.at, "made here");
    return success();
  }

  LogicalResult checkReceive(const CsvAction &unit, Place here, Cargo used) {
    auto receive = receives.find(used);
    if (receive == receives.end())
      return source.error(unit.at) << "`" << unit.text << "` is preceded by no `" << spell(used, false) << "`; stage "
                                   << std::get<1>(used) << " is on rank " << ranks[std::get<1>(used)];
    if (here < receive->second)
      return noted(source.error(unit.at) << "`" << unit.text << "` runs before what it reads is received",
                   cell(receive->second).at, "received here");
    return success();
  }

  /// WAIT_SEND cells are for PyTorch's runtime: ours knows when memory may be written again. They must make sense.
  LogicalResult checkWaits() {
    for (auto [rank, row] : enumerate(table.rows)) {
      DenseSet<Cargo> pending;
      for (const CsvAction &action : row.actions) {
        if (action.isSend())
          pending.insert(cargoOf(action));
        if (action.isWait() && !pending.erase(cargoOf(action)))
          return source.error(action.at) << "`" << action.text << "` waits for a message that rank " << rank
                                         << " has not sent, or has already waited for";
      }
    }
    return success();
  }

  /// An error unless, between two ranks, the k-th message sent is the k-th received.
  LogicalResult checkOrders() {
    std::map<std::pair<int64_t, int64_t>, std::array<std::vector<const CsvAction *>, 2>> lanes; // received, sent
    for (const CsvRow &row : table.rows)
      for (const CsvAction &action : row.actions)
        if (action.isMessage()) {
          Cargo cargo = cargoOf(action);
          lanes[{ranks[std::get<1>(cargo)], ranks[consumerOf(cargo)]}][action.isSend()].push_back(&action);
        }
    for (auto &[ends, lane] : lanes)
      for (auto [k, receive, send] : enumerate(lane[0], lane[1]))
        if (cargoOf(*send) != cargoOf(*receive))
          return noted(source.error(receive->at)
                           << "`" << receive->text << "` is the " << (k + 1) << getOrdinalSuffix(k + 1)
                           << " message that rank " << ends.second << " expects from rank " << ends.first
                           << ", and rank " << ends.first << " sends `" << send->text << "` in that place",
                       send->at, "sent here");
    return success();
  }

  //===-- One order ---------------------------------------------------------------------------------------------===//

  bool skips(const CsvAction &action) const {
    return !action.isUnit() && (!action.isMessage() || arrived.contains(cargoOf(action)));
  }

  /// The next action of a rank, null at the end of its row.
  const CsvAction *head(int64_t rank) {
    const std::vector<CsvAction> &actions = table.rows[rank].actions;
    while (heads[rank] < actions.size() && skips(actions[heads[rank]]))
      ++heads[rank];
    return heads[rank] < actions.size() ? &actions[heads[rank]] : nullptr;
  }

  /// The place of the other end of a message.
  Place partner(const CsvAction &message) const {
    return (message.isSend() ? receives : sends).lookup(cargoOf(message));
  }
  int64_t partnerRank(const CsvAction &message) const { return partner(message).rank; }

  bool advance(int64_t rank) {
    const CsvAction *next = head(rank);
    if (!next)
      return false;
    if (next->isUnit()) {
      CsvStep step{rank, {}};
      do
        step.actions.push_back(&table.rows[rank].actions[heads[rank]++]);
      while (next->joint >= 0 && heads[rank] < table.rows[rank].actions.size() &&
             table.rows[rank].actions[heads[rank]].joint == next->joint);
      steps.push_back(std::move(step));
      return true;
    }
    const CsvAction *other = head(partnerRank(*next));
    if (!other || !other->isMessage() || cargoOf(*other) != cargoOf(*next))
      return false;
    arrived.insert(cargoOf(*next));
    steps.push_back({-1, {next->isSend() ? next : other}});
    return true;
  }

  LogicalResult merge() {
    heads.assign(table.rows.size(), 0);
    for (bool moved = true; moved;) {
      moved = false;
      for (int64_t rank = 0; rank < int64_t(table.rows.size()); ++rank)
        while (advance(rank))
          moved = true;
    }
    for (int64_t rank = 0; rank < int64_t(table.rows.size()); ++rank)
      if (head(rank))
        return reportCycle(rank);
    return success();
  }

  /// Every rank that is left waits at a message for a rank that waits; following them leads round a cycle.
  LogicalResult reportCycle(int64_t rank) {
    DenseSet<int64_t> seen;
    while (seen.insert(rank).second)
      rank = partnerRank(*head(rank));
    const CsvAction *first = head(rank);
    auto error = source.error(first->at) << "deadlock: rank " << rank << " waits at `" << first->text << "` for `"
                                         << cell(partner(*first)).text << "` of rank " << partnerRank(*first);
    for (int64_t next = partnerRank(*first); next != rank; next = partnerRank(*head(next))) {
      const CsvAction *waits = head(next);
      error.attachNote(source.location(waits->at)) << "rank " << next << " waits here for `"
                                                   << cell(partner(*waits)).text << "` of rank " << partnerRank(*waits);
    }
    error.attachNote(source.location(first->at)) << "a send waits for its receive, as a large message does over NCCL; "
                                                    "the messages of two ranks need one order in both rows";
    return error;
  }
};

} // namespace

FailureOr<std::vector<CsvStep>> pp::mergeRows(Source &source, const CsvTable &table, ArrayRef<int64_t> ranks) {
  return Merger(source, table, ranks).run();
}
