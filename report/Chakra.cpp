// Writes rank programs as Chakra execution traces, the input of ASTRA-sim: a file for every device.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The schema is that of mlcommons/chakra, version 0.0.4 (et_def.proto): a file is a GlobalMetadata, then Nodes, every
// one after its length as a varint. Attributes have the value types that its feeder reads. All dependences are
// data_deps: the feeder of ASTRA-sim looks at no others. A node waits for all that the rank's list puts before it and
// does not let run on: the launch before it and the messages completed since.
//
// On a mesh the devices of a rank have the same nodes; peers and groups are devices. A launch whose body exchanges
// values is a chain of nodes: the kernels up to an exchange, the exchange as a collective of its group, the kernels
// behind it. Kernels that overlap with an exchange wait for what it waits for, and who follows waits for both. The
// nodes of kernels share the launch's time by their flops. A cluster's costs and a profile's count exchanges as part of
// a task, so these durations then hold the time of exchanges, too.
//
// ASTRA-sim runs all_reduce, all_gather, reduce_scatter and all_to_all. It refuses the schema's reduce, and its
// broadcast moves no byte. Both are therefore chains of sends and receives along their ring, in pieces, so that all
// devices of the chain send at once. A device cannot send to itself: a copy between a device and its host memory is a
// node of the CPU, which runs beside kernels and messages for as long as the copy takes.
#include "analysis/Messages.h"
#include "report/Names.h"
#include "report/Output.h"
#include "report/Pictures.h"
#include "llvm/Support/JSON.h"
#include "llvm/Support/LEB128.h"
#include <cmath>
#include <map>

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;

namespace {

/// Protocol Buffers' wire format, as much of it as these messages need.
class Message {
public:
  Message &number(int field, uint64_t value) {
    put(static_cast<uint64_t>(field) << 3);
    return put(value);
  }
  Message &text(int field, StringRef value) {
    put(static_cast<uint64_t>(field) << 3 | 2).put(value.size());
    bytes += value;
    return *this;
  }
  /// Zero or more numbers, packed.
  Message &numbers(int field, ArrayRef<uint64_t> values) {
    Message packed;
    for (uint64_t value : values)
      packed.put(value);
    return values.empty() ? *this : text(field, packed.bytes);
  }
  StringRef str() const { return bytes; }

private:
  Message &put(uint64_t value) {
    llvm::raw_string_ostream os(bytes);
    llvm::encodeULEB128(value, os);
    return *this;
  }
  std::string bytes;
};

// Fields of GlobalMetadata, Node and AttributeProto, and the numbers of node types.
enum MetadataField { Version = 1, MetadataAttribute = 2 };
enum NodeField { Id = 1, Name = 2, Type = 3, DataDeps = 5, StartMicros = 6, DurationMicros = 7, Attribute = 10 };
enum ValueField { Int32 = 7, Int64 = 9, Uint64 = 13, Bool = 27, String = 29 };
enum NodeType { Compute = 4, Send = 5, Receive = 6, Collective = 7 };

/// Those numbers of a CollectiveCommType that ASTRA-sim runs.
enum CollectiveType { AllReduce = 0, AllGather = 2, AllToAll = 6, ReduceScatter = 7 };

CollectiveType typeOf(PostKind kind) {
  return kind == PostKind::all_gather ? AllGather : kind == PostKind::reduce_scatter ? ReduceScatter : AllReduce;
}

CollectiveType typeOf(nn::ExchangeKind kind) {
  return kind == nn::ExchangeKind::all_gather       ? AllGather
         : kind == nn::ExchangeKind::reduce_scatter ? ReduceScatter
         : kind == nn::ExchangeKind::all_to_all     ? AllToAll
                                                    : AllReduce;
}

/// A chain is cut into at most so many pieces, none of them smaller.
constexpr uint64_t kMostPieces = 16, kLeastBytes = 1 << 16;

Message attribute(StringRef name, ValueField kind, uint64_t value) {
  return Message().text(1, name).number(kind, value);
}

Message attribute(StringRef name, StringRef value) { return Message().text(1, name).text(String, value); }

/// The work of a body up to its next exchange, which is null behind the last one.
struct Stretch {
  double flops = 0;
  bool computes = false;
  bool overlaps = false; ///< with the exchange before it
  std::optional<InnerMessage> exchange;
};

/// Writes one device after the other.
class DeviceWriter {
public:
  DeviceWriter(ProgramOp program, const Timeline &timeline);
  void write(int64_t device, llvm::raw_ostream &os);
  int64_t devices() const { return mesh ? mesh.devicesOfRank() * ranks.size() : ranks.size(); }
  /// Groups of devices other than all of them, from 1.
  const std::map<std::vector<int64_t>, int64_t> &groups() const { return groupNumbers; }

private:
  Message begin(StringRef name, NodeType type);
  void launch(LaunchOp op, const Span &span);
  void post(PostOp op);
  void chain(PostOp op);
  void copy(PostOp op);
  uint64_t message(const std::string &name, NodeType type, int64_t peer, uint64_t bytes, uint64_t tag);
  void collective(StringRef name, CollectiveType type, uint64_t bytes, uint64_t tag, ArrayRef<int64_t> members);
  ArrayRef<Stretch> stretchesOf(LaunchOp op);
  int64_t rankOf(int64_t device) const {
    return mesh ? device / mesh.stride(Axis::pipeline) % mesh.sizeOf(Axis::pipeline) : device;
  }
  /// The device of this rank that lies in line with the one that is written.
  int64_t deviceOf(int64_t rank) const {
    return mesh ? device + (rank - rankOf(device)) * mesh.stride(Axis::pipeline) : rank;
  }
  std::vector<int64_t> line(ArrayRef<int64_t> starts, AxesAttr axes) const;

  ProgramOp program;
  const Timeline &timeline;
  MeshAttr mesh; ///< null: each rank is one device
  double perTime;
  SymbolTable symbols;
  SmallVector<RankOp> ranks;
  llvm::raw_ostream *os = nullptr;
  int64_t device = 0;
  uint64_t last = 0;                                           ///< number of the last node of this device
  uint64_t exchanges = 0;                                      ///< so far
  SmallVector<uint64_t> before;                                ///< what the next node waits for
  llvm::DenseMap<int64_t, PostOp> firstEnds;                   ///< of copies, by number of the message
  llvm::DenseMap<Operation *, SmallVector<uint64_t, 2>> nodes; ///< of posts: the last ones
  llvm::DenseMap<int64_t, double> copyTimes;                   ///< by number of the message
  llvm::StringMap<std::vector<Stretch>> stretches;             ///< by body
  std::map<std::vector<int64_t>, int64_t> groupNumbers;
};

} // namespace

static void frame(const Message &message, llvm::raw_ostream &os) {
  llvm::encodeULEB128(message.str().size(), os);
  os << message.str();
}

DeviceWriter::DeviceWriter(ProgramOp program, const Timeline &timeline)
    : program(program), timeline(timeline), mesh(program.getMeshAttr()), perTime(timeline.unitTime ? 1e3 : 1e6),
      symbols(program->getParentOfType<ModuleOp>()), ranks(llvm::to_vector(program.getOps<RankOp>())) {
  for (const Flight &flight : timeline.flights)
    if (PostOp post = flight.posts.front(); post.isHost())
      copyTimes[timeline.messages.numberOf(post)] = flight.end - flight.start;
}

Message DeviceWriter::begin(StringRef name, NodeType type) {
  Message node;
  node.number(Id, ++last).text(Name, name).number(Type, type).numbers(DataDeps, before);
  return node;
}

/// These devices and those that differ from them on the axes, ascending.
std::vector<int64_t> DeviceWriter::line(ArrayRef<int64_t> starts, AxesAttr axes) const {
  std::vector<int64_t> members(starts);
  if (axes) {
    members.clear();
    for (int64_t start : starts)
      llvm::append_range(members, mesh.line(start, axes.getAxes()));
  }
  llvm::sort(members);
  return members;
}

ArrayRef<Stretch> DeviceWriter::stretchesOf(LaunchOp op) {
  auto [known, isNew] = stretches.try_emplace(op.getCallee());
  std::vector<Stretch> &all = known->second;
  if (!isNew)
    return all;
  all.emplace_back();
  if (auto body = symbols.lookup<func::FuncOp>(op.getCallee()))
    body.walk([&](Operation *inner) {
      if (auto exchange = dyn_cast<nn::Exchange>(inner)) {
        if (FailureOr<InnerMessage> message = innerMessage(exchange, mesh); succeeded(message)) {
          all.back().exchange = *message;
          all.emplace_back();
        }
      } else if (auto kernel = dyn_cast<nn::Kernel>(inner)) {
        bool overlaps = inner->hasAttr(kOverlapsAttr);
        if (all.back().computes && all.back().overlaps && !overlaps)
          all.emplace_back();
        all.back().flops += kernel.flops();
        all.back().computes = true;
        all.back().overlaps = overlaps;
      }
    });
  if (all.size() == 1) // a launch is a node, if it computes or not
    all.back().computes = true;
  return all;
}

void DeviceWriter::launch(LaunchOp op, const Span &span) {
  uint64_t bytes = 0;
  for (ValueRange slots : {ValueRange(op.getInputs()), ValueRange(op.getResults())})
    for (Value slot : slots)
      bytes += slotBytes(slot);
  ArrayRef<Stretch> parts = stretchesOf(op);
  double flops = 0, start = span.start,
         nodesOfKernels = llvm::count_if(parts, [](auto &part) { return part.computes; });
  for (const Stretch &part : parts)
    flops += part.flops;
  SmallVector<uint64_t> beforeExchange;
  for (const Stretch &part : parts) {
    if (part.computes) {
      uint64_t exchange = last;
      if (part.overlaps)
        before = beforeExchange;
      double share = flops > 0 ? part.flops / flops : 1 / nodesOfKernels, time = share * (span.end - span.start);
      Message node = begin(op.getUnit().cell(), Compute);
      node.number(StartMicros, std::llround(start * perTime)).number(DurationMicros, std::llround(time * perTime));
      node.text(Attribute, attribute("is_cpu_op", Bool, false).str());
      node.text(Attribute, attribute("num_ops", Int64, int64_t(std::llround(part.flops))).str());
      node.text(Attribute, attribute("tensor_size", Uint64, std::llround(share * double(bytes))).str());
      node.text(Attribute, attribute("task", op.getCallee()).str());
      frame(node, *os);
      before = {last};
      if (part.overlaps)
        before.push_back(exchange);
      start += time;
    }
    if (part.exchange) {
      std::vector<int64_t> members = line(device, part.exchange->axes);
      beforeExchange = before;
      size_t block = llvm::find(members, device) - members.begin(), size = part.exchange->members;
      collective(part.exchange->str(), typeOf(nn::Exchange(part.exchange->op).getKind()), part.exchange->bytes(),
                 timeline.messages.size() + ++exchanges, ArrayRef(members).slice(block / size * size, size));
      before = {last};
    }
  }
}

void DeviceWriter::collective(StringRef name, CollectiveType type, uint64_t bytes, uint64_t tag,
                              ArrayRef<int64_t> members) {
  Message node = begin(name, Collective);
  node.text(Attribute, attribute("is_cpu_op", Bool, false).str());
  node.text(Attribute, attribute("comm_size", Int64, bytes).str());
  node.text(Attribute, attribute("comm_tag", Int32, tag).str());
  node.text(Attribute, attribute("comm_type", Int64, type).str());
  if (members.size() < static_cast<size_t>(devices())) {
    int64_t number = groupNumbers.try_emplace(members, groupNumbers.size() + 1).first->second;
    node.text(Attribute, attribute("pg_name", std::to_string(number)).str());
  }
  frame(node, *os);
}

uint64_t DeviceWriter::message(const std::string &name, NodeType type, int64_t peer, uint64_t bytes, uint64_t tag) {
  Message node = begin(name, type);
  node.text(Attribute, attribute("is_cpu_op", Bool, false).str());
  node.text(Attribute, attribute("comm_size", Int64, bytes).str());
  node.text(Attribute, attribute("comm_tag", Int32, tag).str());
  node.text(Attribute, attribute("comm_src", Int32, type == Send ? device : peer).str());
  node.text(Attribute, attribute("comm_dst", Int32, type == Send ? peer : device).str());
  frame(node, *os);
  return last;
}

/// A broadcast or a reduce, piece by piece: what comes from the device before this one in the ring goes to the next.
void DeviceWriter::chain(PostOp op) {
  SmallVector<int64_t> ring = op.ringOrder();
  size_t place = llvm::find(ring, op.getSelf()) - ring.begin();
  uint64_t bytes = bytesOf(op), tag = timeline.messages.numberOf(op), sent = 0, received = 0, begun = 0;
  uint64_t pieces = ring.size() > 2 ? std::clamp<uint64_t>(bytes / kLeastBytes, 1, kMostPieces) : 1;
  std::string name = op.getThing().str();
  SmallVector<uint64_t> atPost = before;
  for (uint64_t piece = 1; piece <= pieces; ++piece, tag += timeline.messages.size()) {
    uint64_t size = bytes * piece / pieces - begun;
    begun += size;
    if (place > 0) {
      before = received ? SmallVector<uint64_t>{received} : atPost;
      received = message(name, Receive, deviceOf(ring[place - 1]), size, tag);
    }
    if (place + 1 < ring.size()) {
      before = sent ? SmallVector<uint64_t>{sent} : atPost;
      if (received)
        before.push_back(received);
      sent = message(name, Send, deviceOf(ring[place + 1]), size, tag);
    }
  }
  before = atPost;
  for (uint64_t end : {received, sent})
    if (end)
      nodes[op].push_back(end);
}

/// To host memory or back: it begins when both ends are posted.
void DeviceWriter::copy(PostOp op) {
  int64_t number = timeline.messages.numberOf(op);
  auto [first, isFirst] = firstEnds.try_emplace(number, op);
  if (isFirst)
    return;
  Message node = begin(op.getThing().str(), Compute);
  node.number(DurationMicros, std::llround(copyTimes.lookup(number) * perTime));
  node.text(Attribute, attribute("is_cpu_op", Bool, true).str());
  node.text(Attribute, attribute("num_ops", Int64, 0).str());
  node.text(Attribute, attribute("tensor_size", Uint64, bytesOf(op)).str());
  frame(node, *os);
  nodes[op] = nodes[first->second] = {last};
}

void DeviceWriter::post(PostOp op) {
  if (op.isHost())
    return copy(op);
  if (op.getRoot())
    return chain(op);
  uint64_t bytes = bytesOf(op), tag = timeline.messages.numberOf(op);
  if (op.isCollective()) {
    SmallVector<int64_t> members;
    for (int64_t rank : op.getPeers())
      members.push_back(deviceOf(rank));
    collective(op.getThing().str(), typeOf(op.getKind()), bytes, tag, line(members, op.getAxesAttr()));
    nodes[op] = {last};
    return;
  }
  NodeType type = op.getKind() == PostKind::send ? Send : Receive;
  nodes[op] = {message(op.getThing().str(), type, deviceOf(op.getPeers()[0]), bytes, tag)};
}

void DeviceWriter::write(int64_t number, llvm::raw_ostream &stream) {
  os = &stream;
  device = number;
  last = exchanges = 0;
  before.clear();
  firstEnds.clear();
  RankOp rank = ranks[rankOf(device)];
  Message head;
  head.text(Version, "0.0.4");
  head.text(MetadataAttribute, attribute("program", program.getSymName()).str());
  head.text(MetadataAttribute, attribute("rank", Int64, rank.getRank()).str());
  if (mesh)
    head.text(MetadataAttribute, attribute("device", Int64, device).str());
  frame(head, stream);
  auto span = timeline.ranks[rank.getRank()].spans.begin();
  for (Operation &op : rank.getBody().front()) {
    if (auto its = dyn_cast<LaunchOp>(op))
      launch(its, *span++);
    else if (auto its = dyn_cast<PostOp>(op))
      post(its);
    else if (auto its = dyn_cast<CompleteOp>(op))
      llvm::append_range(before, nodes.lookup(its.getRequest().getDefiningOp()));
  }
}

static LogicalResult writeFile(const Twine &path, Location loc, llvm::function_ref<void(llvm::raw_ostream &)> fill) {
  std::string why;
  auto filled = [&](llvm::raw_pwrite_stream &os) {
    fill(os);
    return success();
  };
  if (succeeded(writeOutput(path.str(), why, filled)))
    return success();
  return emitError(loc, "cannot write `") << path << "`: " << why;
}

LogicalResult pp::writeChakra(ProgramOp program, const Timeline &timeline, StringRef prefix) {
  DeviceWriter writer(program, timeline);
  for (int64_t device = 0; device < writer.devices(); ++device)
    if (failed(writeFile(prefix + "." + Twine(device) + ".et", program.getLoc(),
                         [&](llvm::raw_ostream &os) { writer.write(device, os); })))
      return failure();
  if (writer.groups().empty())
    return success();
  return writeFile(prefix + ".groups.json", program.getLoc(), [&](llvm::raw_ostream &os) {
    llvm::json::Object groups;
    for (const auto &[members, number] : writer.groups())
      groups[std::to_string(number)] = llvm::json::Array(members);
    os << llvm::json::Value(std::move(groups)) << "\n";
  });
}
