// Runs rank programs in time order: tasks on their ranks' streams, messages on links, waits by cause.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A rank runs its list in order. A launch takes what the cost model says, a post too where the rank moves the bytes
// itself (else nothing), two launches side by side what both take together; a complete waits for its message. A message
// is ready when its last end is posted, and starts as soon as its links are free: of those that wait for a link, the
// one that was ready first. A link carries one message at a time: the sum of what it carries is the same as if they
// shared it, and the order within an edge stays that of its lane. Only a sum over the devices of a rank, whose bytes
// are those of all its gradients, gives way: other messages pass it on its links, and it ends later by what they take.
#include "analysis/Simulate.h"
#include "analysis/Actions.h"
#include "analysis/Optimizer.h"
#include "analysis/lives/SlotLives.h"
#include "llvm/Support/Format.h"
#include <cmath>
#include <map>
#include <queue>
#include <unordered_map>

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;

StringRef pp::stringifyIdleCause(IdleCause cause) {
  static constexpr StringLiteral names[] = {"dependency", "head of line", "communication", "imbalance"};
  return names[static_cast<int>(cause)];
}

double Timeline::span() const {
  double longest = 0;
  for (const RankTimeline &rank : ranks)
    longest = std::max(longest, rank.last - rank.first);
  return longest;
}

double Timeline::bubble() const {
  double busy = 0, all = makespan * ranks.size();
  for (const RankTimeline &rank : ranks)
    busy += rank.busy;
  return all > 0 ? 1 - busy / all : 0;
}

namespace {

class Engine {
public:
  /// Several steps follow each other without a barrier, as Timeline::twoSteps says.
  Engine(ProgramOp program, const Messages &numbers, const CostModel &costs, int64_t steps, Manner manner,
         bool skipsNorm);
  Timeline run();
  /// After run(): what a rank waits for that never comes; null if nothing.
  Operation *stuck() const;

private:
  struct Stream {
    std::vector<Operation *> ops; ///< the whole block: positions count slots too
    size_t next = 0;
    int64_t step = 0;
    double clock = 0;
    bool working = false;             ///< a launch has begun
    SmallVector<LaunchOp, 2> running; ///< those that have not ended
    /// Without overlap: flights that must arrive before the next task, receives to post when the rank waits.
    std::vector<int64_t> sent;
    std::vector<PostOp> late;
    double wire = 0; ///< until when a message takes it
  };
  /// A message that has not arrived.
  struct Message {
    Flight flight;
    SmallVector<int64_t, 2> waiting; ///< ranks in its complete
    Route route;
    SmallVector<int64_t, 2> links;
    bool givesWay = false;
  };
  enum class Kind { resume, release, arrive };
  struct Event {
    double time;
    int64_t order;
    Kind kind;
    int64_t number; ///< of the rank or the flight
    bool operator>(const Event &other) const { return std::tie(time, order) > std::tie(other.time, other.order); }
  };

  void advance(int64_t number);
  bool nextStep(Stream &stream);
  bool isTurnOf(int64_t number, LaunchOp op);
  void end(int64_t number);
  double launch(int64_t number, LaunchOp op);
  double post(int64_t number, PostOp op);
  double enter(int64_t number, PostOp op);
  bool complete(int64_t number, PostOp op);
  bool hasArrived(int64_t number, int64_t flight);
  bool hasSent(int64_t number);
  Route routeOf(int64_t number, PostOp op, int64_t bytes) const;
  int64_t &flightOf(int64_t number, PostOp op) {
    return flights[streams[number].step * numbers.size() + numbers.numberOf(op) - 1];
  }
  void begin(int64_t number, PostOp op);
  void startReady();
  bool start(int64_t flight);
  bool isBlocked(int64_t flight, bool oneByOne) const;
  void take(int64_t flight);
  void arrive(int64_t flight);
  void wake(int64_t number, int64_t flight);
  void idle(int64_t number, double from, double to, IdleCause cause, int64_t flight);
  void push(double time, Kind kind, int64_t number) { events.push({time, order++, kind, number}); }
  bool isLate(PostOp op) const { return !overlap && op.getKind() == PostKind::receive && !op.isHost(); }
  bool isSkipped(PostOp op) const {
    return skipsNorm && steps > 1 && op.getThing().getRole() == Role::stat && op.isCollective();
  }

  const Messages &numbers;
  const CostModel &costs;
  int64_t steps;
  bool overlap, skipsNorm;
  bool records; ///< what ran when; of several steps only their time is asked
  /// In lockstep: the number of tasks of a `together` that have not ended, by step and number, and the ranks that wait
  /// for them.
  std::map<std::pair<int64_t, int64_t>, int64_t> joints;
  std::vector<int64_t> early;
  Timeline timeline;
  std::vector<Stream> streams;
  std::unordered_map<int64_t, Message> messages; ///< under way, by their places in timeline.flights
  std::vector<int64_t> flights; ///< by step and number of the message: in timeline.flights, -1 until an end is posted
  int64_t begun = 0;            ///< messages
  llvm::StringMap<int64_t> links;
  std::vector<double> freeFrom; ///< by link
  std::vector<int64_t> giving;  ///< by link: the flight there that gives way, or -1
  std::vector<int64_t> ready;   ///< flights that wait for their links, in order
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events;
  int64_t order = 0;
  double now = 0;
};

} // namespace

static std::optional<int64_t> jointOf(LaunchOp op) { return op ? op.getJoint() : std::nullopt; }

Engine::Engine(ProgramOp program, const Messages &numbers, const CostModel &costs, int64_t steps, Manner manner,
               bool skipsNorm)
    : numbers(numbers), costs(costs), steps(steps), overlap(manner.overlap), skipsNorm(skipsNorm), records(steps == 1),
      flights(steps * numbers.size(), -1) {
  timeline.unitTime = costs.isUnitTime();
  timeline.units = costs.str();
  for (auto rank : program.getOps<RankOp>()) {
    Stream &stream = streams.emplace_back();
    for (Operation &op : rank.getBody().front()) {
      stream.ops.push_back(&op);
      if (auto joint = jointOf(dyn_cast<LaunchOp>(op)); joint && manner.lockstep)
        for (int64_t step = 0; step < steps; ++step)
          ++joints[{step, *joint}];
    }
    push(0, Kind::resume, streams.size() - 1);
  }
  timeline.ranks.resize(streams.size());
  timeline.flights.resize(records ? numbers.size() : 0);
}

Timeline Engine::run() {
  while (!events.empty()) {
    Event event = events.top();
    events.pop();
    now = event.time;
    if (event.kind == Kind::resume)
      advance(event.number);
    else if (event.kind == Kind::arrive)
      arrive(event.number);
    startReady();
  }
  timeline.flights.resize(records ? begun : 0);
  for (auto [number, stream] : llvm::enumerate(streams))
    timeline.step = std::max(timeline.step, stream.clock);
  for (auto [number, stream] : llvm::enumerate(streams)) {
    for (Idle &idle : timeline.ranks[number].idles) // waits for what completes the step, with no work left to wait for
      if (idle.cause == IdleCause::dependency && idle.start >= timeline.ranks[number].last)
        idle.cause = IdleCause::imbalance;
    idle(number, stream.clock, timeline.step, IdleCause::imbalance, -1);
  }
  return std::move(timeline);
}

//===-- Streams -------------------------------------------------------------------------------------------------===//

void Engine::advance(int64_t number) {
  Stream &stream = streams[number];
  RankTimeline &record = timeline.ranks[number];
  stream.clock = now;
  end(number);
  while (stream.next < stream.ops.size() || nextStep(stream)) {
    Operation *op = stream.ops[stream.next];
    double cost = 0;
    if (auto sent = dyn_cast<PostOp>(op)) {
      cost = post(number, sent);
      idle(number, now, now + cost, IdleCause::communication, flightOf(number, sent));
    }
    if (auto done = dyn_cast<CompleteOp>(op); done && !complete(number, done.getRequest().getDefiningOp<PostOp>()))
      return;
    auto task = dyn_cast<LaunchOp>(op);
    if (task && (!hasSent(number) || !isTurnOf(number, task)))
      return;
    if (task)
      cost = launch(number, task);
    stream.clock = now + cost;
    size_t passed = task && task.follower() ? 2 : 1;
    stream.next += passed;
    if (records)
      record.times.insert(record.times.end(), passed, stream.clock);
    if (cost > 0)
      return push(stream.clock, Kind::resume, number);
    end(number);
  }
}

/// In lockstep a rank waits for the tasks of all `together`s before.
bool Engine::isTurnOf(int64_t number, LaunchOp op) {
  std::optional<int64_t> joint = jointOf(op);
  if (!joint || joints.empty() || joints.begin()->first >= std::pair(streams[number].step, *joint))
    return true;
  early.push_back(number);
  return false;
}

void Engine::end(int64_t number) {
  Stream &stream = streams[number];
  for (LaunchOp launch : std::exchange(stream.running, {})) {
    std::optional<int64_t> joint = jointOf(launch);
    auto it = joint ? joints.find({stream.step, *joint}) : joints.end();
    if (it == joints.end() || --it->second > 0)
      continue;
    joints.erase(it);
    for (int64_t other : std::exchange(early, {})) {
      idle(other, streams[other].clock, now, IdleCause::dependency, -1);
      push(now, Kind::resume, other);
    }
  }
}

bool Engine::nextStep(Stream &stream) {
  if (stream.ops.empty() || ++stream.step >= steps)
    return false;
  stream.next = 0;
  return true;
}

/// Runs a launch, with the one beside it; returns their time.
double Engine::launch(int64_t number, LaunchOp op) {
  RankTimeline &record = timeline.ranks[number];
  Stream &stream = streams[number];
  LaunchOp other = op.follower();
  BesideTimes times = other ? costs.ofBoth(number, op, other) : BesideTimes{{0, 0}, {costs.of(number, op), 0}};
  stream.running = {op};
  if (other)
    stream.running.push_back(other);
  for (auto [i, launch] : llvm::enumerate(stream.running)) {
    Span span = {launch, now + times.begin[i], now + times.end[i]};
    if (span.isWork() && span.end > span.start) { // what computes nothing is no work
      record.first = stream.working ? record.first : now;
      stream.working = true;
      record.busy += i == 0 ? times.length() : 0;
      record.last = std::max(record.last, span.end);
      timeline.makespan = std::max(timeline.makespan, span.end);
    }
    if (records)
      record.spans.push_back(span);
  }
  if (records && other && times.begin[1] < times.end[0] && times.begin[0] < times.end[1])
    record.spans.end()[-2].lane = 1, record.spans.back().lane = 2;
  return times.length();
}

//===-- Messages ------------------------------------------------------------------------------------------------===//

/// The route from sender to receiver, or between the members. If a rank sends to itself, one end is its host memory.
Route Engine::routeOf(int64_t number, PostOp op, int64_t bytes) const {
  if (op.isCollective())
    return costs.route(op.getKind(), op.ringOrder(), bytes);
  bool sends = op.getKind() == PostKind::send;
  int64_t peer = op.isHost() ? kHost : op.getPeers().front();
  bool starts = op.isHost() ? sends != op.getSlot().getDefiningOp<SlotOp>().getHost() : sends;
  return costs.route(PostKind::send, {starts ? number : peer, starts ? peer : number}, bytes);
}

/// Makes the message's flight at its first end.
void Engine::begin(int64_t number, PostOp op) {
  int64_t &index = flightOf(number, op);
  if (index >= 0)
    return;
  index = begun++;
  Message &message = messages[index];
  message.flight.posted = now;
  message.flight.bytes = bytesOf(op);
  message.route = routeOf(number, op, message.flight.bytes);
  message.givesWay = isOverMesh(op);
  for (const std::string &name : message.route.links) {
    auto [link, isNew] = links.insert({name, links.size()});
    if (isNew) {
      timeline.links.emplace_back().name = name;
      freeFrom.push_back(0);
      giving.push_back(-1);
    }
    message.links.push_back(link->second);
  }
  message.flight.link = message.links.empty() ? -1 : message.links.front();
}

/// Posts a message; returns the time that this takes on the rank.
double Engine::post(int64_t number, PostOp op) {
  if (isSkipped(op))
    return 0;
  begin(number, op);
  if (!isLate(op))
    return enter(number, op);
  streams[number].late.push_back(op);
  return 0;
}

/// The rank is ready for its end of the message.
double Engine::enter(int64_t number, PostOp op) {
  int64_t index = flightOf(number, op);
  Message &message = messages.at(index);
  Flight &flight = message.flight;
  const double cost = message.route.post, lastCost = message.route.lastPost; // `start` may end the message
  if (!overlap && op.getKind() != PostKind::receive && !op.isHost())
    streams[number].sent.push_back(index);
  bool first = op.getKind() == PostKind::send; // of a send and its receive; members in ascending order
  size_t place = op.isCollective() ? llvm::lower_bound(flight.ranks, number) - flight.ranks.begin()
                 : first           ? 0
                                   : flight.ranks.size();
  flight.posts.insert(flight.posts.begin() + place, op);
  flight.ranks.insert(flight.ranks.begin() + place, number);
  if (flight.posts.size() < (op.isCollective() ? op.getPeers().size() : 2))
    return cost;
  flight.ready = now;
  if (!ready.empty() || !start(index))
    ready.push_back(index);
  return lastCost;
}

void Engine::startReady() {
  llvm::erase_if(ready, [&](int64_t flight) { return start(flight); });
}

bool Engine::isBlocked(int64_t index, bool oneByOne) const {
  const Message &message = messages.at(index);
  auto isTaken = [&](int64_t link) { return message.givesWay ? giving[link] >= 0 : freeFrom[link] > now; };
  auto isBusy = [&](int64_t rank) { return oneByOne && streams[rank].wire > now; };
  return llvm::any_of(message.links, isTaken) || llvm::any_of(message.flight.ranks, isBusy);
}

/// Its links carry it from now on.
void Engine::take(int64_t index) {
  Message &message = messages.at(index);
  Flight &flight = message.flight;
  const Route &route = message.route;
  double behind = 0; // others, for one that gives way
  SmallVector<int64_t, 2> passed;
  for (auto [number, volume] : llvm::zip_equal(message.links, route.volumes)) {
    LinkLoad &link = timeline.links[number];
    ++link.messages;
    link.bytes += std::llround(volume * flight.bytes);
    Role role = PostOp(flight.posts.front()).getThing().getRole();
    link.chunks += role == Role::weight || role == Role::grad ? volume : 0;
    link.busy += route.lastPost + route.transfer;
    if (message.givesWay) {
      behind = std::max(behind, freeFrom[number] - now);
      giving[number] = index;
      continue;
    }
    freeFrom[number] = now + route.transfer;
    if (giving[number] >= 0 && !llvm::is_contained(passed, giving[number]))
      passed.push_back(giving[number]);
  }
  flight.start = now;
  flight.end = now + behind + route.lastPost + route.transfer + route.latency;
  for (int64_t sum : passed)
    messages.at(sum).flight.end += route.transfer;
}

/// False where a link is not free.
bool Engine::start(int64_t index) {
  Message &message = messages.at(index);
  Flight &flight = message.flight;
  const double latency = message.route.latency, transfer = message.route.transfer; // `arrive` ends the message
  bool oneByOne = !overlap && !PostOp(flight.posts.front()).isCollective();
  if (isBlocked(index, oneByOne))
    return false;
  for (int64_t rank : oneByOne ? ArrayRef<int64_t>(flight.ranks) : ArrayRef<int64_t>())
    streams[rank].wire = now + transfer;
  take(index);
  if (flight.end == now)
    arrive(index);
  else
    push(flight.end, Kind::arrive, index);
  if (latency > 0 && transfer > 0)
    push(now + transfer, Kind::release, index);
  return true;
}

void Engine::arrive(int64_t index) {
  Message &message = messages.at(index);
  if (message.flight.end > now) // others have passed it
    return push(message.flight.end, Kind::arrive, index);
  for (int64_t link : message.givesWay ? ArrayRef<int64_t>(message.links) : ArrayRef<int64_t>())
    giving[link] = -1;
  for (int64_t number : message.waiting)
    wake(number, index);
  if (records)
    timeline.flights[index] = std::move(message.flight);
  messages.erase(index);
}

bool Engine::complete(int64_t number, PostOp op) {
  if (isSkipped(op))
    return true;
  int64_t flight = flightOf(number, op);
  std::vector<PostOp> &late = streams[number].late;
  if (auto it = llvm::find(late, op); it != late.end()) {
    late.erase(it);
    enter(number, op);
  }
  return hasArrived(number, flight);
}

/// The rank goes on when it has.
bool Engine::hasArrived(int64_t number, int64_t flight) {
  auto under = messages.find(flight);
  if (under != messages.end())
    under->second.waiting.push_back(number);
  return under == messages.end();
}

/// While it waits, the other end of what it has posted to receive may send: Megatron posts both together.
bool Engine::hasSent(int64_t number) {
  Stream &stream = streams[number];
  for (; !stream.sent.empty(); stream.sent.pop_back()) {
    if (!messages.count(stream.sent.back()))
      continue;
    for (PostOp op : std::exchange(stream.late, {}))
      enter(number, op);
    if (!hasArrived(number, stream.sent.back()))
      return false;
  }
  return true;
}

Operation *Engine::stuck() const {
  for (const Stream &stream : streams)
    if (stream.next < stream.ops.size())
      return stream.ops[stream.next];
  return nullptr;
}

void Engine::wake(int64_t number, int64_t index) {
  const Flight &flight = messages.at(index).flight;
  double wake = messages.at(index).route.wake;
  double since = streams[number].clock;
  IdleCause early = !streams[number].working ? IdleCause::imbalance : IdleCause::dependency;
  idle(number, since, flight.ready, early, index);
  idle(number, std::max(since, flight.ready), flight.start, IdleCause::headOfLine, index);
  idle(number, std::max(since, flight.start), flight.end + wake, IdleCause::communication, index);
  push(now + wake, Kind::resume, number);
}

void Engine::idle(int64_t number, double from, double to, IdleCause cause, int64_t flight) {
  if (records && to > from)
    timeline.ranks[number].idles.push_back({from, to, cause, flight});
}

/// Above, microseconds are no int of 64 bits.
static constexpr double kLongestStep = 1e12;

/// The time in which the norm of all gradients travels in front of a step; 0 if the step itself waits for it.
static double normOf(const Timeline &timeline) {
  for (const Flight &flight : timeline.flights)
    if (PostOp post = flight.posts.front(); post.isCollective() && post.getThing().getRole() == Role::stat &&
                                            !Optimizer(post->getParentOfType<ProgramOp>()).hasBarrier())
      return flight.end - flight.ready;
  return 0;
}

FailureOr<Timeline> pp::simulate(ProgramOp program, const CostModel &costs, Manner manner) {
  Messages messages(program);
  auto stepsOf = [&](int64_t steps, bool skipsNorm) {
    return Engine(program, messages, costs, steps, manner, skipsNorm).run();
  };
  bool hasBarrier = Optimizer(program).hasBarrier();
  Engine one(program, messages, costs, /*steps=*/1, manner, /*skipsNorm=*/false);
  Timeline timeline = one.run();
  if (Operation *op = one.stuck()) {
    auto post = isa<CompleteOp>(op) ? cast<CompleteOp>(op).getRequest().getDefiningOp<PostOp>() : PostOp();
    return emitError(op->getLoc()) << "rank " << op->getParentOfType<RankOp>().getRank() << " waits for ever before `"
                                   << describeInstant(post ? post : op)
                                   << "`: without overlap no task begins before what was sent has arrived"
                                   << withLoops(op);
  }
  if (!(timeline.step <= kLongestStep)) {
    std::string text;
    llvm::raw_string_ostream(text) << llvm::format("takes %g %s; the limit is %g", timeline.step,
                                                   costs.isUnitTime() ? "units" : "seconds", kLongestStep);
    return emitError(program.getLoc()) << "with these costs a step " << text;
  }
  timeline.twoSteps = stepsOf(2, /*skipsNorm=*/hasBarrier).step;
  if (manner.periods) {
    timeline.period = stepsOf(4, /*skipsNorm=*/false).step - stepsOf(3, /*skipsNorm=*/false).step;
    timeline.barrierPeriod = timeline.step + normOf(timeline);
  }
  timeline.messages = std::move(messages);
  for (auto [rank, record] : llvm::zip(program.getOps<RankOp>(), timeline.ranks))
    record.memory = memoryCurve(rank, record.times);
  return timeline;
}
