// Writes rank programs as Chakra execution traces, the input of ASTRA-sim: a file for every rank.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The schema is that of mlcommons/chakra, version 0.0.4 (et_def.proto): a file is a GlobalMetadata, then Nodes, every
// one after its length as a varint. Attributes have the value types that its feeder reads. All dependences are
// data_deps: the feeder of ASTRA-sim looks at no others. A node waits for all that the rank's list puts before it and
// does not let run on: the launch before it and the messages completed since.
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
constexpr int kAllReduce = 0;

Message attribute(StringRef name, ValueField kind, uint64_t value) {
  return Message().text(1, name).number(kind, value);
}

Message attribute(StringRef name, StringRef value) { return Message().text(1, name).text(String, value); }

/// Writes one rank after the other.
class RankWriter {
public:
  RankWriter(ProgramOp program, const Timeline &timeline)
      : program(program), timeline(timeline), perTime(timeline.unitTime ? 1e3 : 1e6),
        symbols(program->getParentOfType<ModuleOp>()) {}
  void write(RankOp rank, llvm::raw_ostream &os);
  /// Groups of ranks other than all of them, from 1.
  const std::map<std::vector<int64_t>, int64_t> &groups() const { return groupNumbers; }

private:
  Message begin(StringRef name, NodeType type);
  void launch(RankOp rank, LaunchOp op, const Span &span);
  void post(RankOp rank, PostOp op);

  ProgramOp program;
  const Timeline &timeline;
  double perTime;
  SymbolTable symbols;
  llvm::raw_ostream *os = nullptr;
  uint64_t last = 0;                           ///< number of the last node of this rank
  SmallVector<uint64_t> before;                ///< what the next node waits for
  llvm::DenseMap<Operation *, uint64_t> nodes; ///< of posts
  std::map<std::vector<int64_t>, int64_t> groupNumbers;
};

} // namespace

static void frame(const Message &message, llvm::raw_ostream &os) {
  llvm::encodeULEB128(message.str().size(), os);
  os << message.str();
}

Message RankWriter::begin(StringRef name, NodeType type) {
  Message node;
  node.number(Id, ++last).text(Name, name).number(Type, type).numbers(DataDeps, before);
  return node;
}

void RankWriter::launch(RankOp rank, LaunchOp op, const Span &span) {
  auto body = symbols.lookup<func::FuncOp>(op.getCallee());
  double flops = body ? flopsOf(body) : 0;
  uint64_t bytes = 0;
  for (ValueRange slots : {ValueRange(op.getInputs()), ValueRange(op.getResults())})
    for (Value slot : slots)
      bytes += slotBytes(slot);
  Message node = begin(op.getUnit().cell(), Compute);
  node.number(StartMicros, std::llround(span.start * perTime));
  node.number(DurationMicros, std::llround((span.end - span.start) * perTime));
  node.text(Attribute, attribute("is_cpu_op", Bool, false).str());
  node.text(Attribute, attribute("num_ops", Int64, int64_t(std::llround(flops))).str());
  node.text(Attribute, attribute("tensor_size", Uint64, bytes).str());
  node.text(Attribute, attribute("task", op.getCallee()).str());
  frame(node, *os);
  before = {last};
}

void RankWriter::post(RankOp rank, PostOp op) {
  bool sends = op.getKind() == PostKind::send, collective = op.isCollective();
  Message node = begin(op.getThing().str(), collective ? Collective : sends ? Send : Receive);
  uint64_t bytes = bytesOf(op);
  node.text(Attribute, attribute("is_cpu_op", Bool, false).str());
  node.text(Attribute, attribute("comm_size", Int64, bytes).str());
  node.text(Attribute, attribute("comm_tag", Int32, timeline.messages.numberOf(op)).str());
  if (collective) {
    node.text(Attribute, attribute("comm_type", Int64, kAllReduce).str());
    if (op.getPeers().size() < static_cast<size_t>(program.getRanks())) {
      int64_t number = groupNumbers.try_emplace(op.getPeers(), groupNumbers.size() + 1).first->second;
      node.text(Attribute, attribute("pg_name", std::to_string(number)).str());
    }
  } else {
    int64_t self = rank.getRank(), peer = op.getPeers()[0];
    node.text(Attribute, attribute("comm_src", Int32, sends ? self : peer).str());
    node.text(Attribute, attribute("comm_dst", Int32, sends ? peer : self).str());
  }
  frame(node, *os);
  nodes[op] = last;
}

void RankWriter::write(RankOp rank, llvm::raw_ostream &stream) {
  os = &stream;
  last = 0;
  before.clear();
  Message head;
  head.text(Version, "0.0.4");
  head.text(MetadataAttribute, attribute("program", program.getSymName()).str());
  head.text(MetadataAttribute, attribute("rank", Int64, rank.getRank()).str());
  frame(head, stream);
  auto span = timeline.ranks[rank.getRank()].spans.begin();
  for (Operation &op : rank.getBody().front()) {
    if (auto its = dyn_cast<LaunchOp>(op))
      launch(rank, its, *span++);
    else if (auto its = dyn_cast<PostOp>(op))
      post(rank, its);
    else if (auto its = dyn_cast<CompleteOp>(op))
      before.push_back(nodes.lookup(its.getRequest().getDefiningOp()));
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
  if (program.getMeshAttr())
    return emitError(program.getLoc(), "`--emit=chakra` has a file for each rank, and cannot describe a `mesh` yet");
  RankWriter writer(program, timeline);
  for (auto rank : program.getOps<RankOp>())
    if (failed(writeFile(prefix + "." + Twine(rank.getRank()) + ".et", program.getLoc(),
                         [&](llvm::raw_ostream &os) { writer.write(rank, os); })))
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
