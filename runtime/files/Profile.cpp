// Sums up the events of all ranks: each task body and each size of message, over the steps of usual length.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "runtime/files/Profile.h"
#include "runtime/files/Draft.h"
#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

namespace pp {
namespace {

using Json = nlohmann::ordered_json;
using Samples = std::vector<double>;

double median(Samples &samples) {
  auto middle = samples.begin() + int64_t(samples.size() / 2);
  std::nth_element(samples.begin(), middle, samples.end());
  return *middle;
}

double mean(const Samples &samples) {
  double sum = 0;
  for (double sample : samples)
    sum += sample;
  return sum / double(samples.size());
}

/// Ops that are alike: the kernel, its type, dims and flags.
using OpKey = std::tuple<std::string, Type, std::vector<int64_t>, std::vector<std::string>>;

/// One end of a message in one step: when it was posted and when it was waited for, on the clock of rank 0.
struct End {
  Trace::Event post, wait;
};

/// Messages of one size are summed up together.
struct Size {
  std::string kind;
  bool overMesh = false; ///< among the devices of one rank
  int64_t bytes = 0;
  bool operator<(const Size &other) const {
    return std::tie(kind, overMesh, bytes) < std::tie(other.kind, other.overMesh, other.bytes);
  }
};

struct MessageSamples {
  int64_t count = 0;
  Samples post, lastPost, arrival;
};

class Summary {
public:
  Summary(const Mesh &mesh, const std::vector<RankTrace> &devices)
      : mesh(mesh), devices(devices), numbers(numberMessages(devices)) {
    chooseSteps();
    for (size_t device = 0; device < devices.size(); ++device)
      collect(device);
    for (const auto &[which, ends] : messages)
      if (ends.size() > 1)
        summarize(ends, sizes[sizeOf[which.second]]);
  }

  Json json() {
    Json out;
    out["steps"] = steps.size();
    out["of_steps"] = allSteps;
    out["warm_up"] = profileWarmUp;
    if (!steps.empty())
      out["seconds"] = mean(seconds);
    out["dispatch"] = events ? std::max(0.0, double(rest) * 1e-9 / double(events)) : 0;
    out["tasks"] = Json::array();
    for (auto &[key, samples] : tasks) {
      auto &[rank, task, phase] = key;
      Json entry = {{"task", task}, {"phase", phase}, {"rank", rank}, {"count", samples.size()}};
      entry["median"] = median(samples);
      entry["mean"] = mean(samples);
      out["tasks"].push_back(entry);
    }
    out["messages"] = Json::array();
    for (auto &[size, its] : sizes) {
      Json entry = {{"kind", size.kind}};
      if (size.overMesh)
        entry["mesh"] = true;
      entry["bytes"] = size.bytes;
      entry["count"] = its.count;
      for (auto [name, samples] :
           {std::pair("post", &its.post), {"last_post", &its.lastPost}, {"arrival", &its.arrival}})
        if (!samples->empty())
          entry[name] = mean(*samples);
      out["messages"].push_back(entry);
    }
    if (!ops.empty())
      out["ops"] = listOps();
    return out;
  }

private:
  Json listOps() const;
  void chooseSteps();
  void collect(size_t device);
  void collect(size_t device, int64_t step, const Trace::Event &event, std::vector<End> &open);
  void summarize(const std::vector<End> &ends, MessageSamples &into);

  const Mesh &mesh;
  const std::vector<RankTrace> &devices;
  std::vector<std::vector<int64_t>> numbers;
  std::map<std::tuple<int32_t, std::string, std::string>, Samples> tasks; ///< by rank, task and phase
  std::map<size_t, int64_t> units; ///< nanoseconds of the units of the step that is read, on one device
  std::map<std::pair<int64_t, int64_t>, std::vector<End>> messages; ///< by step and number
  std::map<int64_t, Size> sizeOf;                                   ///< of a message
  std::map<Size, MessageSamples> sizes;
  std::map<OpKey, std::pair<int64_t, double>> ops; ///< how many, and the seconds of all
  std::set<int64_t> steps;                         ///< that are summed up
  Samples seconds;                                 ///< that these took
  size_t allSteps = 0;                             ///< after the warm-up
  int64_t rest = 0, events = 0;                    ///< nanoseconds beside the events, and the events
};

/// The middle half of the steps by what they took: a mean over these is not moved by a step in which the machine did
/// something else, and, unlike medians of tasks, means add up to the step.
void Summary::chooseSteps() {
  std::map<int64_t, std::pair<int64_t, int64_t>> spans; // first begin and last end
  for (const RankTrace &device : devices)
    for (const Trace::Event &event : device.events)
      if (event.kind == Trace::Kind::Step) {
        int64_t start = event.start + device.shift, stop = event.stop + device.shift;
        auto [span, isNew] = spans.try_emplace(event.number, start, stop);
        span->second = {std::min(span->second.first, start), std::max(span->second.second, stop)};
      }
  std::vector<std::pair<int64_t, int64_t>> byLength;
  for (const auto &[step, span] : spans)
    byLength.push_back({span.second - span.first, step});
  byLength.erase(byLength.begin(), byLength.begin() + std::min<int64_t>(profileWarmUp, int64_t(byLength.size())));
  std::sort(byLength.begin(), byLength.end());
  allSteps = byLength.size();
  for (size_t i = allSteps / 4; i < allSteps - allSteps / 4; ++i) {
    steps.insert(byLength[i].second);
    seconds.push_back(double(byLength[i].first) * 1e-9);
  }
}

/// A device's events are in order, and a step's own comes after all of the step. What is exchanged inside a task is
/// part of the task's time.
void Summary::collect(size_t device) {
  const std::vector<MessageSpec> &specs = devices[device].program->messages;
  std::vector<Trace::Event> pending;
  std::vector<End> open(numbers[device].size());
  for (Trace::Event event : devices[device].events) {
    event.start += devices[device].shift;
    event.stop += devices[device].shift;
    if (event.kind != Trace::Kind::Step) {
      bool isMessage = event.kind == Trace::Kind::Post || event.kind == Trace::Kind::Wait;
      if (!isMessage || !specs.at(size_t(event.number)).inside)
        pending.push_back(event);
      continue;
    }
    if (steps.count(event.number)) {
      rest += event.stop - event.start;
      for (const Trace::Event &its : pending)
        collect(device, event.number, its, open);
      for (auto [number, time] : std::exchange(units, {})) {
        const UnitSpec &unit = devices[device].program->units.at(number);
        tasks[{mesh.rankOf(int32_t(device)), unit.task, unit.phase}].push_back(double(time) * 1e-9);
      }
    }
    pending.clear();
  }
}

void Summary::collect(size_t device, int64_t step, const Trace::Event &event, std::vector<End> &open) {
  const RankProgram &program = *devices[device].program;
  auto number = size_t(event.number);
  if (event.kind == Trace::Kind::Op) {
    const OpSpec &op = program.ops.at(number);
    auto &[count, sum] = ops[{op.kernel, op.type, op.dims, op.flags}];
    ++count;
    sum += double(event.stop - event.start) * 1e-9;
    return;
  }
  rest -= event.stop - event.start;
  ++events;
  if (event.kind == Trace::Kind::Unit) {
    units[number] += event.stop - event.start; // a turn of it, where it runs beside another
  } else if (event.kind == Trace::Kind::Post) {
    open.at(number).post = event;
  } else {
    open.at(number).wait = event;
    const MessageSpec &message = program.messages[number];
    messages[{step, numbers[device][number]}].push_back(open[number]);
    std::string kind(message.isCollective() ? kindName(message.kind) : "p2p");
    sizeOf[numbers[device][number]] = {kind, message.oneText, message.bytes};
  }
}

Json Summary::listOps() const {
  double all = 0;
  for (const auto &[key, samples] : tasks)
    for (double sample : samples)
      all += sample;
  std::vector<const decltype(ops)::value_type *> sorted;
  for (const auto &op : ops)
    sorted.push_back(&op);
  std::stable_sort(sorted.begin(), sorted.end(), [](auto *a, auto *b) { return a->second.second > b->second.second; });
  Json list = Json::array();
  for (const auto *op : sorted) {
    const auto &[kernel, type, dims, flags] = op->first;
    auto [count, sum] = op->second;
    Json entry = {{"kernel", kernel}, {"type", std::string(elementName(type))}, {"dims", dims}, {"flags", flags}};
    entry["count"] = count;
    entry["mean"] = sum / double(count);
    entry["share"] = all > 0 ? sum / all : 0;
    list.push_back(entry);
  }
  return list;
}

void Summary::summarize(const std::vector<End> &ends, MessageSamples &into) {
  auto last = std::max_element(ends.begin(), ends.end(),
                               [](const End &a, const End &b) { return a.post.start < b.post.start; });
  auto seconds = [](int64_t from, int64_t to) { return double(to - from) * 1e-9; };
  ++into.count;
  into.lastPost.push_back(seconds(last->post.start, last->post.stop));
  for (auto end = ends.begin(); end != ends.end(); ++end) {
    if (end != last)
      into.post.push_back(seconds(end->post.start, end->post.stop));
    if (end != last && end->wait.start < last->post.start)
      into.arrival.push_back(std::max(0.0, seconds(last->post.stop, end->wait.stop)));
  }
}

/// The kinds of op that took longest.
void printOps(const Json &ops, int64_t steps) {
  constexpr size_t most = 10;
  printf("the longest of %zu kinds of op, over all ranks\n share  calls/step   us/call  op\n", ops.size());
  for (size_t i = 0; i < std::min(most, ops.size()); ++i) {
    const Json &op = ops[i];
    std::string name = text(op["kernel"].get<std::string>(), " ", op["type"].get<std::string>());
    for (const Json &dim : op["dims"])
      name += text(" ", dim.get<int64_t>());
    for (const Json &flag : op["flags"])
      name += text(" ", flag.get<std::string>());
    printf("%5.1f%% %11.1f %9.1f  %s\n", 100 * op["share"].get<double>(),
           double(op["count"].get<int64_t>()) / double(steps), 1e6 * op["mean"].get<double>(), name.c_str());
  }
}

} // namespace

Status writeProfile(const std::string &path, const Program &program, std::string_view transport,
                    const std::vector<RankTrace> &devices) {
  Json json = {{"program", program.name},
               {"schedule", program.schedule},
               {"ranks", program.ranks},
               {"transport", std::string(transport)},
               {"made_from", Json::parse(program.fingerprint)}};
  json.update(Summary(program.mesh, devices).json());
  std::string whole = json.dump(1) + "\n";
  Draft draft;
  PP_TRY(draft.open(path));
  fwrite(whole.data(), 1, whole.size(), draft.file());
  if (json.contains("ops"))
    printOps(json["ops"], json["steps"].get<int64_t>());
  return draft.finish(); // it knows whether all was written
}

} // namespace pp
