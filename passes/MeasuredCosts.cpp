// Prices by a profile that an emitted program has written: the means of its tasks and messages.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// runtime/Profile.h says what the file holds. Here a rank's own thread moves the bytes: between threads whoever posts
// last copies, so that a post takes the rank's time; under MPI a message is there some time after its last post.
#include "mlir/Support/FileUtilities.h"
#include "passes/Costs.h"
#include "llvm/Support/JSON.h"
#include "llvm/Support/MemoryBuffer.h"
#include <map>

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;

namespace {

/// Means in seconds.
struct MessageTimes {
  double post = 0, lastPost = 0, arrival = 0;
  MessageTimes plus(const MessageTimes &other, double factor) const {
    return {post + factor * other.post, lastPost + factor * other.lastPost, arrival + factor * other.arrival};
  }
};

class MeasuredCosts : public CostModel {
public:
  LogicalResult read(ProgramOp program, StringRef path);

  double of(int64_t rank, LaunchOp launch) const override { return find(rank, launch).value_or(0) + dispatch; }

  Route route(PostKind kind, ArrayRef<int64_t> ranks, int64_t bytes) const override {
    Route route = CostModel::route(kind, ranks, bytes);
    MessageTimes times = timesOf(kind, bytes);
    route.post = times.post + 2 * dispatch; // of the post and of its complete
    route.lastPost = times.lastPost + 2 * dispatch;
    (threads ? route.wake : route.latency) = times.arrival;
    return route;
  }

private:
  static StringRef kindOf(PostKind kind) {
    return kind == PostKind::send || kind == PostKind::receive ? "p2p" : stringifyPostKind(kind);
  }

  /// Of this task on this rank, on any other, or of any task of its phase on this rank.
  std::optional<double> find(int64_t rank, LaunchOp launch) const {
    std::string task = launch.getCallee().str(), phase = stringifyPhase(launch.getUnit().getPhase()).str();
    for (const auto &key : {std::pair(rank, task), std::pair(int64_t(-1), task), std::pair(rank, "phase " + phase)})
      if (auto found = tasks.find(key); found != tasks.end())
        return found->second.first / found->second.second;
    return std::nullopt;
  }

  /// As measured for this size, else on the line between (or through) the two nearest.
  MessageTimes timesOf(PostKind kind, int64_t bytes) const {
    auto sizes = messages.find(kindOf(kind).str());
    if (sizes == messages.end())
      return {};
    auto above = sizes->second.lower_bound(bytes);
    if (above != sizes->second.end() && above->first == bytes)
      return above->second;
    if (sizes->second.size() == 1)
      return sizes->second.begin()->second;
    if (above == sizes->second.end())
      --above;
    if (above == sizes->second.begin())
      ++above;
    auto below = std::prev(above);
    double share = double(bytes - below->first) / double(above->first - below->first);
    MessageTimes times = below->second.plus(above->second, share).plus(below->second, -share);
    return {std::max(times.post, 0.0), std::max(times.lastPost, 0.0), std::max(times.arrival, 0.0)};
  }

  LogicalResult readText(ProgramOp program, StringRef path, StringRef text);
  void addTask(const llvm::json::Object &entry);
  LogicalResult check(ProgramOp program, StringRef path);

  bool threads = false;
  double dispatch = 0;
  std::map<std::pair<int64_t, std::string>, std::pair<double, double>> tasks; ///< sum and weight
  std::map<std::string, std::map<int64_t, MessageTimes>> messages;            ///< by kind, then bytes
};

} // namespace

void MeasuredCosts::addTask(const llvm::json::Object &entry) {
  int64_t rank = entry.getInteger("rank").value_or(0);
  std::string task = entry.getString("task").value_or("").str();
  std::string phase = "phase " + entry.getString("phase").value_or("").str();
  double mean = entry.getNumber("mean").value_or(0), count = entry.getNumber("count").value_or(1);
  for (const auto &key : {std::pair(rank, task), std::pair(int64_t(-1), task), std::pair(rank, phase)}) {
    tasks[key].first += mean * count;
    tasks[key].second += count;
  }
}

LogicalResult MeasuredCosts::readText(ProgramOp program, StringRef path, StringRef text) {
  llvm::Expected<llvm::json::Value> value = llvm::json::parse(text);
  if (!value)
    return program.emitError() << "`" << path << "` is no JSON: " << llvm::toString(value.takeError());
  auto *root = value->getAsObject();
  auto *tasks = root ? root->getArray("tasks") : nullptr, *messages = root ? root->getArray("messages") : nullptr;
  if (!tasks || !messages)
    return program.emitError() << "`" << path << "` is no profile; `--profile` of an emitted program writes one";
  threads = root->getString("transport") == StringRef("threads");
  dispatch = root->getNumber("dispatch").value_or(0);
  for (const llvm::json::Value &entry : *tasks)
    if (auto *object = entry.getAsObject())
      addTask(*object);
  for (const llvm::json::Value &entry : *messages)
    if (auto *object = entry.getAsObject())
      this->messages[object->getString("kind").value_or("").str()][object->getInteger("bytes").value_or(0)] = {
          object->getNumber("post").value_or(0), object->getNumber("last_post").value_or(0),
          object->getNumber("arrival").value_or(0)};
  return success();
}

/// Everything that the program does must have been seen.
LogicalResult MeasuredCosts::check(ProgramOp program, StringRef path) {
  for (auto rank : program.getOps<RankOp>()) {
    int64_t number = rank.getRank();
    for (auto launch : rank.getOps<LaunchOp>())
      if (!find(number, launch))
        return launch.emitError() << "`" << path << "` has no time of task `" << launch.getCallee() << "`, nor of any "
                                  << stringifyPhase(launch.getUnit().getPhase()) << " on rank " << number;
    for (auto post : rank.getOps<PostOp>())
      if (!messages.count(kindOf(post.getKind()).str()))
        return post.emitError() << "`" << path << "` has no time of a message of kind `" << kindOf(post.getKind())
                                << "`";
  }
  return success();
}

LogicalResult MeasuredCosts::read(ProgramOp program, StringRef path) {
  std::string message;
  std::unique_ptr<llvm::MemoryBuffer> buffer = openInputFile(path, &message);
  if (!buffer)
    return program.emitError() << "costs are units, cluster or a profile: " << message;
  return success(succeeded(readText(program, path, buffer->getBuffer())) && succeeded(check(program, path)));
}

std::unique_ptr<CostModel> pp::makeMeasuredCosts(ProgramOp program, StringRef path) {
  auto costs = std::make_unique<MeasuredCosts>();
  if (failed(costs->read(program, path)))
    return nullptr;
  return costs;
}
