// Prices by a profile that an emitted program has written: the means of its tasks and messages.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// runtime/files/Profile.h says what the file holds. Here a rank's own thread moves the bytes: between threads whoever
// posts last copies, so that a post takes the rank's time; under MPI a message is there some time after its last post.
#include "analysis/Fingerprint.h"
#include "analysis/costs/Costs.h"
#include "dialect/Input.h"
#include "llvm/Support/FormatVariadic.h"
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

/// Behind the kind of a message among the devices of one rank.
constexpr const char *kOverMesh = " over the mesh";

class MeasuredCosts : public CostModel {
public:
  explicit MeasuredCosts(StringRef path) : path(path) {}
  LogicalResult read(ProgramOp program);

  double of(int64_t rank, LaunchOp launch) const override { return find(rank, launch).value_or(0) + dispatch; }

  Route route(PostKind kind, ArrayRef<int64_t> ranks, int64_t bytes) const override {
    Route route = CostModel::route(kind, ranks, bytes);
    MessageTimes times = timesOf(kindOf(kind, ranks), bytes);
    route.post = times.post + 2 * dispatch; // of the post and of its complete
    route.lastPost = times.lastPost + 2 * dispatch;
    (threads ? route.wake : route.latency) = times.arrival;
    return route;
  }

private:
  static std::string kindOf(PostKind kind, ArrayRef<int64_t> ranks) {
    StringRef name = kind == PostKind::send || kind == PostKind::receive ? "p2p" : stringifyPostKind(kind);
    return name.str() + (isOverMesh(kind, ranks) ? kOverMesh : "");
  }

  /// The time of this task on this rank, else on any other; else, of a whole backward, of its two halves; else, in
  /// another order of the same schedule, of any task of its phase on this rank.
  std::optional<double> find(int64_t rank, LaunchOp launch) const {
    StringRef task = launch.getCallee();
    if (auto time = find(rank, task))
      return time;
    auto [piece, rest] = task.split(".B");
    auto inputs = find(rank, (piece + ".I").str()), weights = find(rank, (piece + ".W" + rest).str());
    if (piece.size() < task.size() && inputs && weights)
      return *inputs + *weights;
    Phase phase = launch.getUnit().getPhase();
    return isSameSchedule || phase == Phase::U ? find(rank, ("phase " + stringifyPhase(phase)).str()) : std::nullopt;
  }

  std::optional<double> find(int64_t rank, StringRef task) const {
    for (int64_t on : {rank, int64_t(-1)})
      if (auto found = tasks.find({on, task.str()}); found != tasks.end())
        return found->second.first / found->second.second;
    return std::nullopt;
  }

  /// The measured times for this size; else times on the line through the two nearest sizes.
  MessageTimes timesOf(const std::string &kind, int64_t bytes) const {
    auto sizes = messages.find(kind);
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

  LogicalResult readText(ProgramOp program, StringRef text);
  LogicalResult readNumbers(ProgramOp program, const llvm::json::Object &root);
  std::string addTask(const llvm::json::Object &entry, int64_t ranks);
  std::string addMessage(const llvm::json::Object &entry);
  LogicalResult check(ProgramOp program);

  StringRef path;
  bool threads = false, isSameSchedule = true;
  double dispatch = 0;
  std::map<std::pair<int64_t, std::string>, std::pair<double, double>> tasks; ///< sum and weight
  std::map<std::string, std::map<int64_t, MessageTimes>> messages;            ///< by kind, then bytes
};

} // namespace

/// "expected X for `KEY`, got Y".
static std::string refused(const llvm::json::Object &entry, StringRef key, const Twine &expected) {
  const llvm::json::Value *value = entry.get(key);
  return "expected " + expected.str() + " for `" + key.str() + "`, got " +
         (value ? llvm::formatv("{0}", *value).str() : "nothing");
}

/// Seconds that a run can have measured. Absent: `otherwise`, where there is that.
static std::string readTime(const llvm::json::Object &entry, StringRef key, std::optional<double> otherwise,
                            double &time) {
  const llvm::json::Value *value = entry.get(key);
  std::optional<double> found = value ? value->getAsNumber() : otherwise;
  time = found.value_or(0);
  return isQuantity(found) ? "" : refused(entry, key, "a time of at least 0");
}

/// Every entry is needed: a task without a time would be simulated as if it took none. Returns what is wrong, if so.
std::string MeasuredCosts::addTask(const llvm::json::Object &entry, int64_t ranks) {
  auto rank = entry.getInteger("rank"), count = entry.getInteger("count");
  auto task = entry.getString("task"), phase = entry.getString("phase");
  if (!rank || *rank < 0 || *rank >= ranks)
    return refused(entry, "rank", "a rank from 0 to " + Twine(ranks - 1));
  if (!task)
    return refused(entry, "task", "a name");
  if (!phase || !symbolizePhase(*phase))
    return refused(entry, "phase", "`F`, `B`, `I`, `W`, `R` or `U`");
  if (!count || *count < 1)
    return refused(entry, "count", "an int of at least 1");
  double mean = 0;
  if (std::string why = readTime(entry, "mean", std::nullopt, mean); !why.empty())
    return why;
  if (tasks.count({*rank, task->str()}))
    return "task `" + task->str() + "` of rank " + std::to_string(*rank) + " is there twice";
  auto times = static_cast<double>(*count);
  for (const auto &key : {std::pair(*rank, task->str()), std::pair(int64_t(-1), task->str()),
                          std::pair(*rank, "phase " + phase->str())}) {
    tasks[key].first += mean * times;
    tasks[key].second += times;
  }
  return "";
}

/// Every message has a last post; where a run saw no other post or no wait of it, their times are left out.
std::string MeasuredCosts::addMessage(const llvm::json::Object &entry) {
  auto kind = entry.getString("kind");
  auto bytes = entry.getInteger("bytes");
  MessageTimes times;
  if (!kind || (*kind != "p2p" && !symbolizePostKind(*kind)))
    return refused(entry, "kind", "`p2p` or the name of a collective");
  if (!bytes || *bytes < 0)
    return refused(entry, "bytes", "an int of at least 0");
  if (entry.get("mesh") && !entry.getBoolean("mesh"))
    return refused(entry, "mesh", "true or false");
  for (auto [name, time] :
       {std::pair("post", &times.post), {"last_post", &times.lastPost}, {"arrival", &times.arrival}}) {
    auto otherwise = time == &times.lastPost ? std::nullopt : std::optional(0.0);
    if (std::string why = readTime(entry, name, otherwise, *time); !why.empty())
      return why;
  }
  std::string name = kind->str() + (entry.getBoolean("mesh").value_or(false) ? kOverMesh : "");
  if (!messages[name].try_emplace(*bytes, times).second)
    return "messages of kind `" + name + "` and " + std::to_string(*bytes) + " bytes are there twice";
  return "";
}

LogicalResult MeasuredCosts::readNumbers(ProgramOp program, const llvm::json::Object &root) {
  if (std::string why = readTime(root, "dispatch", 0, dispatch); !why.empty())
    return program.emitError() << "`" << path << "`: " << why;
  auto transport = root.getString("transport");
  if (!transport || (*transport != "threads" && *transport != "mpi"))
    return program.emitError() << "`" << path << "`: " << refused(root, "transport", "\"threads\" or \"mpi\"");
  threads = *transport == "threads";
  const llvm::json::Object &made = *root.getObject("made_from");
  auto schedule = made.getString("schedule");
  auto own = program.getTrain().getAs<StringAttr>("schedule");
  isSameSchedule = !schedule || !own || *schedule == own.getValue();
  int64_t ranks = made.getInteger("ranks").value_or(static_cast<int64_t>(program.getRanks()));
  for (StringRef list : {"tasks", "messages"})
    for (auto [number, value] : llvm::enumerate(*root.getArray(list))) {
      const llvm::json::Object *entry = value.getAsObject();
      std::string why = !entry ? "expected an object" : list == "tasks" ? addTask(*entry, ranks) : addMessage(*entry);
      if (!why.empty())
        return program.emitError() << "`" << path << "`, `" << list << "[" << number << "]`: " << why << ", in "
                                   << llvm::formatv("{0}", value).str();
    }
  bool nothing = dispatch == 0 && llvm::all_of(tasks, [](const auto &entry) { return entry.second.first == 0; });
  if (nothing)
    return program.emitError() << "`" << path << "` says that no task takes any time";
  return success();
}

LogicalResult MeasuredCosts::readText(ProgramOp program, StringRef text) {
  FailureOr<llvm::json::Value> value = parseJsonFile(path, text, program.getContext());
  if (failed(value))
    return failure();
  auto *root = value->getAsObject();
  if (!root || !root->getArray("tasks") || !root->getArray("messages"))
    return program.emitError() << "`" << path << "` is not a profile; an emitted program writes one with `--profile`";
  if (std::string why = differenceFrom(program, *root, /*inOrder=*/false); !why.empty())
    return program.emitError() << "`" << path << "` " << why;
  return readNumbers(program, *root);
}

/// Everything that the program does must have been seen.
LogicalResult MeasuredCosts::check(ProgramOp program) {
  for (auto rank : program.getOps<RankOp>()) {
    int64_t number = rank.getRank();
    for (auto launch : rank.getOps<LaunchOp>())
      if (!find(number, launch)) {
        auto error = launch.emitError() << "`" << path << "` has no time of task `" << launch.getCallee() << "`, ";
        if (!isSameSchedule)
          return error << "which the schedule of its run does not have";
        return error << "nor of any " << stringifyPhase(launch.getUnit().getPhase()) << " on rank " << number;
      }
    for (auto post : rank.getOps<PostOp>())
      if (std::string kind = kindOf(post.getKind(), post.getPeers()); !messages.count(kind))
        return post.emitError() << "`" << path << "` has no time of a message of kind `" << kind << "`";
  }
  return success();
}

LogicalResult MeasuredCosts::read(ProgramOp program) {
  std::string why;
  std::unique_ptr<llvm::MemoryBuffer> buffer = readInput(path, why);
  if (!buffer)
    return program.emitError() << "costs are units, cluster or a profile; cannot read `" << path << "`: " << why;
  return success(succeeded(readText(program, buffer->getBuffer())) && succeeded(check(program)));
}

std::unique_ptr<CostModel> pp::makeMeasuredCosts(ProgramOp program, StringRef path) {
  auto costs = std::make_unique<MeasuredCosts>(path);
  if (failed(costs->read(program)))
    return nullptr;
  return costs;
}
