// Writes proved rank programs as JSON for drivers in other languages: `pp.program/1` (report/PROGRAM.md).
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "analysis/Proof.h"
#include "report/program/Canonical.h"
#include "report/program/Lists.h"
#include "llvm/ADT/StringExtras.h"

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;
namespace json = llvm::json;

//===-- Pieces --------------------------------------------------------------------------------------------------===//

static json::Value placeOf(PlaceAttr place) {
  if (!place)
    return nullptr;
  return json::Object{{"ranks", json::Array(place.getRanks())}, {"layout", stringifyLayout(place.getLayout())}};
}

json::Array ProgramLists::writePieces() {
  json::Array all;
  for (int64_t number = 0; number < pieces.size(); ++number) {
    PieceOp op = pieces.op(number);
    json::Array ends;
    json::Value layers = nullptr, recompute = again.contains(number);
    int64_t first = -1, last = -1;
    for (Attribute part : op.getParts()) {
      int64_t layer = cast<IntegerAttr>(cast<ArrayAttr>(part)[1]).getInt();
      if (layer < 0)
        ends.push_back(cast<StringAttr>(cast<ArrayAttr>(part)[0]).getValue());
      else
        first = first < 0 ? layer : first, last = layer;
    }
    if (first >= 0)
      layers = json::Array{first, last};
    if (ArrayAttr parts = op.getRecomputeAttr(); parts && again.contains(number))
      recompute =
          json::Array(llvm::map_range(parts.getAsRange<StringAttr>(), [](StringAttr part) { return part.getValue(); }));
    bool isStage = op.getCoord().isStage();
    if (!isStage)
      needs.insert("parts");
    if (op.getVocabulary())
      needs.insert("vocabulary");
    if (pieces.isReplicated(number))
      needs.insert("replicas");
    if (pieces.isSharded(number) || pieces.homesAreShards(number))
      needs.insert("shards");
    all.push_back(
        json::Object{{"name", op.getSymName()},
                     {"kind", isStage ? "stage" : "part"},
                     {"index", op.getCoord().getIndex()},
                     {"part", isStage ? json::Value(nullptr) : json::Value(op.getCoord().getPart().getValue())},
                     {"layers", std::move(layers)},
                     {"ends", std::move(ends)},
                     {"at", placeOf(op.getAtAttr())},
                     {"homes", placeOf(op.getHomesAttr() ? op.getHomesAttr() : op.getAtAttr())},
                     {"owner", placeOf(op.getOwnerAttr() ? op.getOwnerAttr() : op.getAtAttr())},
                     {"recompute", std::move(recompute)},
                     {"frozen", pieces.hasWeights(number) && !pieces.trains(number)},
                     {"first", number == 0},
                     {"last", number + 1 == pieces.size()},
                     {"line", lines.of(op.getLoc())}});
  }
  return all;
}

json::Array ProgramLists::writeTies() const {
  json::Array all;
  for (const Tie &tie : ties)
    all.push_back(json::Object{{"name", llvm::join(tie.names, ", ")},
                               {"weights", json::Array(tie.weights)},
                               {"owner", tie.owner},
                               {"sharers", json::Array(tie.sharers)}});
  return all;
}

//===-- The whole -----------------------------------------------------------------------------------------------===//

namespace {

/// What the schedule's parameters were bound to.
json::Value valueOf(Attribute attribute) {
  if (auto truth = dyn_cast<BoolAttr>(attribute))
    return truth.getValue();
  if (auto integer = dyn_cast<IntegerAttr>(attribute))
    return integer.getInt();
  if (auto number = dyn_cast<FloatAttr>(attribute))
    return number.getValueAsDouble();
  return json::fixUTF8(cast<StringAttr>(attribute).getValue());
}

json::Array proofsOf(const Proof &proof) {
  json::Array all;
  for (const Proof::Statement &statement : proof.statements) {
    if (statement.name == "slots" || statement.name == "memory") // of pp's arena, which a driver does not have
      continue;
    json::Object facts;
    for (const Fact &fact : statement.facts)
      facts[fact.name] = fact.isNumber ? json::Value(fact.count) : json::Value(fact.text);
    all.push_back(json::Object{{"name", statement.name}, {"claim", statement.claim}, {"facts", std::move(facts)}});
  }
  return all;
}

/// When each action begins: a launch with its span, all others when what stands before them has passed.
json::Object timeOf(ProgramOp program, const Timeline &timeline, StringRef costs) {
  json::Array start;
  for (auto rank : program.getOps<RankOp>()) {
    const RankTimeline &record = timeline.ranks[rank.getRank()];
    json::Array own;
    size_t span = 0;
    double passed = 0;
    for (auto [op, time] : llvm::zip(rank.getBody().front(), record.times)) {
      if (isa<LaunchOp>(op))
        own.push_back(record.spans[span++].start);
      else if (!isa<SlotOp>(op))
        own.push_back(passed);
      passed = time;
    }
    start.push_back(std::move(own));
  }
  return json::Object{
      {"costs", costs}, {"makespan", timeline.makespan}, {"bubble", timeline.bubble()}, {"start", std::move(start)}};
}

json::Object scheduleOf(ProgramOp program, Lines &lines) {
  json::Object parameters;
  if (auto bound = program.getTrain().getAs<DictionaryAttr>("parameters"))
    for (NamedAttribute entry : bound)
      parameters[entry.getName().strref()] = valueOf(entry.getValue());
  auto named = program.getTrain().getAs<StringAttr>("schedule");
  json::Value line = lines.of(program.getLoc());
  return json::Object{{"name", named ? named.getValue() : program.getSymName()},
                      {"file", line.getAsArray() ? line.getAsArray()->front() : json::Value(nullptr)},
                      {"parameters", std::move(parameters)}};
}

} // namespace

LogicalResult pp::writeProgram(ModuleOp module, const Timeline &timeline, const ProgramOrigin &origin,
                               llvm::raw_ostream &os) {
  ProgramOp program = ProgramOp::trainingOf(module), forward = ProgramOp::forwardOf(module);
  if (program.getMeshAttr())
    return emitError(program.getLoc()) << "`--emit=json` is for ranks of one device, and this program has a `mesh`";
  Lines lines(origin.sources);
  json::Array lanes;
  std::set<StringRef> needs;
  ProgramLists lists(program, lines, lanes, needs);
  if (PostOp post = lists.unnamed)
    return emitError(post.getLoc()) << "`--emit=json` has one lane for all messages from one rank to another, and `"
                                    << post.getThing().str() << "` goes on a second channel" << withLoops(post);
  json::Object root{{"format", "pp.program/1"}, {"name", program.getSymName()}};
  root["pieces"] = lists.writePieces();
  root["ties"] = lists.writeTies();
  root["forward"] = nullptr;
  if (forward) {
    std::set<StringRef> fewer; // than the training program has
    ProgramLists second(forward, lines, lanes, fewer);
    root["forward"] = json::Object{{"messages", std::move(second.messages)}, {"programs", std::move(second.programs)}};
  }
  if (!root["ties"].getAsArray()->empty())
    needs.insert("ties");
  if (program.countUpdates() > 1)
    needs.insert("updates");
  if (program.getSlices() > 0)
    needs.insert("slices");
  if (ProgramOp::redoOf(module))
    needs.insert("redo");
  root["schedule"] = scheduleOf(program, lines);
  root["ranks"] = program.getRanks();
  root["microbatches"] = program.getMicrobatches();
  root["slices"] = program.getSlices();
  root["updates"] = program.countUpdates();
  Proof proof(program);
  SmallVector<StringRef> channels;
  StringRef(proof.channels).split(channels, ", ");
  root["needs"] = json::Array(needs);
  root["channels"] = json::Array(channels);
  root["lanes"] = std::move(lanes);
  root["messages"] = std::move(lists.messages);
  root["programs"] = std::move(lists.programs);
  root["counts"] = std::move(lists.counts);
  StringRef costs = timeline.unitTime ? "units" : "cluster";
  root["time"] = timeOf(program, timeline, origin.costs.empty() ? costs : StringRef(origin.costs));
  root["proofs"] = proofsOf(proof);
  root["fingerprint"] = sha256(json::Value(json::Object(root)));
  root["compiler"] = json::Object{{"version", origin.version}, {"commit", origin.commit}};
  root["files"] = lines.files();
  printCanonical(std::move(root), os);
  os << "\n";
  return success();
}
