// Records what the proofs established, reads it back, and prints it as a table or as JSON.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "analysis/Proof.h"
#include "analysis/Messages.h"
#include "analysis/costs/Costs.h"
#include "analysis/costs/Figures.h"
#include "analysis/lives/SlotLives.h"
#include "mlir/IR/Threading.h"
#include "mlir/Pass/Pass.h"
#include "mlir/Pass/PassManager.h"
#include "llvm/Support/Format.h"
#include "llvm/Support/JSON.h"
#include <chrono>
#include <cmath>

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;

/// The proofs in the order in which they are told, each in one sentence (docs/proofs.md).
static constexpr std::pair<StringLiteral, StringLiteral> kClaims[] = {
    {"bodies", "every task body computes what the parts of its piece derive"},
    {"units", "every unit of the step runs exactly once"},
    {"values", "every read finds the value it needs, weights of this step's version"},
    {"gradients", "every gradient holds every contribution exactly once at its update"},
    {"channels", "on every lane the k-th send is the k-th receive, in thing, shape and type"},
    {"progress", "no cycle of waits with zero buffering"},
    {"slots", "no two live values share a byte, none is touched in flight"},
    {"memory", "no rank needs more than its limit"}};

//===-- Recording -----------------------------------------------------------------------------------------------===//

void pp::recordProof(ProgramOp program, StringRef name, ArrayRef<Fact> facts) {
  Builder builder(program.getContext());
  SmallVector<NamedAttribute> entries;
  for (const Fact &fact : facts) {
    Attribute value =
        fact.isNumber ? Attribute(builder.getI64IntegerAttr(fact.count)) : builder.getStringAttr(fact.text);
    entries.push_back(builder.getNamedAttr(fact.name, value));
  }
  NamedAttrList proofs(program.getProofAttr());
  proofs.set(name, builder.getDictionaryAttr(entries));
  program.setProofAttr(proofs.getDictionary(program.getContext()));
}

void pp::dropProofs(ModuleOp module) {
  for (auto program : module.getOps<ProgramOp>())
    program.removeProofAttr();
}

SmallVector<int64_t> pp::programRanks(ModuleOp module) {
  SmallVector<int64_t> ranks;
  if (ProgramOp program = ProgramOp::trainingOf(module))
    for (auto rank : program.getOps<RankOp>())
      ranks.push_back(rank.getRank());
  return ranks;
}

FailureOr<ProvedModule> ProvedModule::run(PassManager &manager, ModuleOp module) {
  dropProofs(module); // so that what stands there afterwards was recorded by a proof that ran
  if (failed(manager.run(module)))
    return failure();
  auto programs = module.getOps<ProgramOp>();
  int64_t count =
      llvm::count_if(programs, [](ProgramOp program) { return !program.getForward() && !program.getRedo(); });
  if (count != 1)
    return module.emitError() << "expected one `pipeline.program`, got " << count;
  for (auto program : programs)
    for (auto [name, claim] : ArrayRef(kClaims).drop_front()) // bodies are derived in this process, or proved
      if (!program.getProofAttr() || !program.getProofAttr().contains(name))
        return program->emitError() << "`prove-" << name << "` did not run; this is a fault of pp-compile";
  return ProvedModule(module);
}

namespace {

class Stopwatch : public PassInstrumentation {
public:
  explicit Stopwatch(PassTimes &times) : times(times) {}

  void runBeforePass(Pass *pass, Operation *) override {
    if (!pass->getArgument().empty())
      begin = std::chrono::steady_clock::now();
  }
  void runAfterPass(Pass *pass, Operation *) override {
    if (pass->getArgument().empty())
      return;
    double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    times.seconds[pass->getArgument()] += seconds;
    times.total += seconds;
  }

private:
  PassTimes &times;
  std::chrono::steady_clock::time_point begin;
};

} // namespace

std::unique_ptr<PassInstrumentation> pp::timePasses(PassTimes &times) { return std::make_unique<Stopwatch>(times); }

//===-- Reading -------------------------------------------------------------------------------------------------===//

/// Units by phase and messages by role, as they stand in the rank programs.
static std::vector<Fact> describe(ProgramOp program) {
  llvm::MapVector<Phase, int64_t> units;
  std::map<Role, int64_t> messages;
  int64_t launches = 0, sends = 0, collectives = 0, bytes = 0;
  for (auto rank : program.getOps<RankOp>())
    for (Operation &op : rank.getBody().front()) {
      if (auto launch = dyn_cast<LaunchOp>(op)) {
        ++launches;
        ++units[launch.getUnit().getPhase()];
      }
      auto post = dyn_cast<PostOp>(op);
      if (!post || post.getKind() == PostKind::receive)
        continue;
      if (post.isCollective()) {
        collectives += post.getPeers().front() == static_cast<int64_t>(rank.getRank());
        continue;
      }
      ++sends;
      ++messages[post.getThing().getRole()];
      bytes += bytesOf(post);
    }
  std::vector<Fact> facts = {{"launches", launches}};
  for (Phase phase : {Phase::F, Phase::B, Phase::I, Phase::W, Phase::R})
    if (units.count(phase))
      facts.push_back({stringifyPhase(phase), units[phase]});
  facts.push_back({"messages", sends});
  for (auto [role, count] : messages)
    facts.push_back({stringifyRole(role), count});
  facts.push_back({"bytes sent", bytes});
  facts.push_back({"collectives", collectives});
  return facts;
}

/// The axes of more than one device, with the exchanges inside units and the messages, by role, of one device of each
/// rank.
static std::vector<Proof::MeshAxis> describeMesh(ProgramOp program) {
  MeshAttr mesh = program.getMeshAttr();
  if (!mesh)
    return {};
  SymbolTable symbols(program->getParentOfType<ModuleOp>());
  std::map<Axis, int64_t> exchanges;
  std::map<Role, int64_t> sums;
  llvm::StringMap<SmallVector<Axis>> known; // of the exchanges of a body
  for (auto rank : program.getOps<RankOp>())
    for (Operation &op : rank.getBody().front()) {
      if (auto post = dyn_cast<PostOp>(op); post && isOverMesh(post))
        ++sums[post.getThing().getRole()];
      auto launch = dyn_cast<LaunchOp>(op);
      if (!launch)
        continue;
      auto [axes, isNew] = known.try_emplace(launch.getCallee());
      if (isNew)
        for (InnerMessage &message : innerMessages(symbols.lookup<func::FuncOp>(launch.getCallee()), mesh))
          llvm::append_range(axes->second, message.axes.getAxes());
      for (Axis axis : axes->second)
        ++exchanges[axis];
    }
  std::vector<Proof::MeshAxis> axes;
  SmallVector<Axis> all(mesh.getOrder());
  if (mesh.getExpert() > 1)
    all.append({Axis::expert, Axis::copies});
  for (Axis axis : all) {
    int64_t members = mesh.sizeOf(axis);
    if (axis == Axis::pipeline || members == 1)
      continue;
    int64_t devices = mesh.devicesOfRank() * static_cast<int64_t>(program.getRanks());
    SmallVector<int64_t> first = mesh.line(0, axis);
    axes.push_back({stringifyAxis(axis).str(), devices / members, members, first[1] - first[0], {}});
    if (exchanges.count(axis))
      axes.back().step.push_back({"exchanges", exchanges[axis]});
    for (auto [role, count] : sums)
      if (llvm::is_contained(mesh.sumAxes(), axis))
        axes.back().step.push_back({stringifyRole(role), count});
  }
  return axes;
}

static Proof::Rank readMemory(RankOp rank, int64_t limit) {
  std::vector<SlotLife> lives = slotLives(rank);
  Peak peak = peakOf(rank, lives);
  Proof::Rank memory{static_cast<int64_t>(rank.getRank()),
                     limit,
                     static_cast<int64_t>(rank.getArenaBytes().value_or(0)),
                     scratchOf(rank).total(),
                     peak.bytes,
                     describeInstant(peak.where),
                     {}};
  for (auto [role, bytes] : peak.there)
    memory.roles.push_back({role.str(), bytes});
  llvm::stable_sort(memory.roles, [](auto &a, auto &b) { return a.second > b.second; });
  return memory;
}

Proof::Proof(ProgramOp program, const PassTimes &times)
    : program(program.getSymName()), ranks(program.getRanks()), microbatches(program.getMicrobatches()),
      slices(program.getSlices()), devicesOfRank(program.getMeshAttr() ? program.getMeshAttr().devicesOfRank() : 1),
      mesh(describeMesh(program)), subject(describe(program)), passSeconds(times.total) {
  auto recorded = program.getProofAttr();
  for (auto [name, claim] : kClaims) {
    auto entries = recorded ? recorded.getAs<DictionaryAttr>(name) : DictionaryAttr();
    if (!entries)
      continue;
    Statement statement{name.str(), claim.str(), {}, -1};
    for (NamedAttribute entry : entries) {
      if (auto text = dyn_cast<StringAttr>(entry.getValue()))
        statement.facts.push_back({entry.getName(), text.getValue()});
      else
        statement.facts.push_back({entry.getName(), cast<IntegerAttr>(entry.getValue()).getInt()});
    }
    auto time = times.seconds.find(("pp-prove-" + name).str());
    if (time != times.seconds.end()) {
      statement.seconds = time->second;
      proofSeconds += time->second;
    }
    statements.push_back(statement);
  }
  if (auto progress = recorded ? recorded.getAs<DictionaryAttr>("progress") : DictionaryAttr())
    channels = progress.getAs<StringAttr>("channels").str();
  std::vector<int64_t> bytes(program.getRanks(), -1);
  if (auto facts = recorded ? recorded.getAs<DictionaryAttr>("memory") : DictionaryAttr()) {
    auto limit = facts.getAs<IntegerAttr>("limit");
    if (facts.contains("limit")) // of each rank's devices, or one for all
      bytes = memoryLimitsOf(program, limit ? limit.getInt() : -1);
    else
      statements.back().claim = "every rank allocates what is planned below; no limit is given";
  }
  SmallVector<RankOp> all = llvm::to_vector(program.getOps<RankOp>());
  memory.resize(all.size());
  parallelFor(program.getContext(), 0, all.size(),
              [&](size_t i) { memory[i] = readMemory(all[i], bytes[all[i].getRank()]); });
}

//===-- Printing ------------------------------------------------------------------------------------------------===//

std::vector<int64_t> pp::memoryLimitsOf(ProgramOp program, int64_t given) {
  std::vector<int64_t> limits(program.getRanks(), given);
  if (given >= 0 || !program.getClusterAttr() || !program.getClusterAttr().contains("memory"))
    return limits;
  for (auto [rank, limit] : llvm::enumerate(limits))
    for (DictionaryAttr kind : kindsOf(program, static_cast<int64_t>(rank))) {
      auto exact = kind.getAs<IntegerAttr>("memory");
      int64_t its = exact ? exact.getInt() : static_cast<int64_t>(kind.getAs<FloatAttr>("memory").getValueAsDouble());
      limit = limit < 0 ? its : std::min(limit, its);
    }
  return limits;
}

std::string pp::formatLimits(ArrayRef<int64_t> limits) {
  auto [least, most] = std::minmax_element(limits.begin(), limits.end());
  return formatBytes(*least) + (*least < *most ? " to " + formatBytes(*most) : "");
}

/// `stash 1.50 MiB, weight 512 B`: the largest three.
static std::string largest(const Proof::Rank &rank) {
  std::string text;
  llvm::raw_string_ostream os(text);
  llvm::interleaveComma(ArrayRef(rank.roles).take_front(3), os,
                        [&](auto &role) { os << role.first << " " << formatBytes(role.second); });
  return text;
}

/// Rows in columns as wide as their widest cell; the columns in `right` are right-justified.
static void printColumns(ArrayRef<std::vector<std::string>> rows, ArrayRef<size_t> right, llvm::raw_ostream &os) {
  std::vector<size_t> widths(rows.front().size());
  for (const auto &row : rows)
    for (auto [width, cell] : llvm::zip(widths, row))
      width = std::max(width, cell.size());
  for (const auto &row : rows) {
    std::string line;
    llvm::raw_string_ostream text(line);
    for (auto [i, cell] : llvm::enumerate(row)) {
      if (llvm::is_contained(right, i))
        text << "  " << llvm::right_justify(cell, widths[i]);
      else
        text << "  " << llvm::left_justify(cell, widths[i]);
    }
    os << StringRef(line).rtrim() << "\n";
  }
}

/// `reads 64, weights 18`.
static std::string listed(ArrayRef<Fact> facts) {
  std::string text;
  llvm::raw_string_ostream os(text);
  llvm::interleaveComma(facts, os, [&](const Fact &fact) { os << fact.name << " " << fact.text; });
  return text;
}

static std::string milliseconds(double seconds) {
  return seconds < 0 ? "" : llvm::formatv("{0:f1} ms", seconds * 1e3).str();
}

void pp::printProof(const Proof &proof, llvm::raw_ostream &os) {
  os << proof.program << ": " << proof.ranks << " ranks";
  if (proof.devicesOfRank > 1)
    os << " of " << proof.devicesOfRank << " devices";
  os << ", " << proof.microbatches << " microbatches";
  if (proof.slices > 0)
    os << ", " << proof.slices << " slices";
  os << "\n  " << listed(proof.subject) << "\n\n";
  std::vector<std::vector<std::string>> rows = {{"axis", "groups", "of", "apart", "a step of one device of each rank"}};
  for (const Proof::MeshAxis &axis : proof.mesh)
    rows.push_back({axis.name, std::to_string(axis.groups), std::to_string(axis.members), std::to_string(axis.apart),
                    listed(axis.step)});
  if (!proof.mesh.empty()) {
    printColumns(rows, {1, 2, 3}, os);
    os << "\n";
  }
  rows = {{"proof", "claim", "over", "time"}};
  for (const Proof::Statement &statement : proof.statements)
    rows.push_back({statement.name, statement.claim, listed(statement.facts), milliseconds(statement.seconds)});
  printColumns(rows, {3}, os);
  os << "\n";
  rows = {{"rank", "planned", "scratch", "live set", "limit", "largest at", "of it"}};
  for (const Proof::Rank &rank : proof.memory)
    rows.push_back({std::to_string(rank.rank), formatBytes(rank.planned), formatBytes(rank.scratch),
                    formatBytes(rank.live), rank.limit < 0 ? "none" : formatBytes(rank.limit), rank.at, largest(rank)});
  printColumns(rows, {0, 1, 2, 3, 4}, os);
  if (proof.passSeconds > 0)
    os << "\n  proofs " << milliseconds(proof.proofSeconds) << " of " << milliseconds(proof.passSeconds)
       << " in passes\n";
}

/// Rounds to whole microseconds.
static double rounded(double seconds) { return std::round(seconds * 1e6) / 1e6; }

static void writeFacts(StringRef key, ArrayRef<Fact> facts, llvm::json::OStream &json) {
  json.attributeObject(key, [&] {
    for (const Fact &fact : facts) {
      if (fact.isNumber)
        json.attribute(fact.name, fact.count);
      else
        json.attribute(fact.name, fact.text);
    }
  });
}

void pp::printProofJson(const Proof &proof, llvm::raw_ostream &os) {
  llvm::json::OStream json(os, 2);
  json.object([&] {
    json.attribute("program", proof.program);
    json.attribute("ranks", proof.ranks);
    json.attribute("microbatches", proof.microbatches);
    json.attribute("slices", proof.slices);
    if (!proof.mesh.empty())
      json.attributeArray("mesh", [&] {
        for (const Proof::MeshAxis &axis : proof.mesh)
          json.object([&] {
            json.attribute("axis", axis.name);
            json.attribute("groups", axis.groups);
            json.attribute("members", axis.members);
            json.attribute("apart", axis.apart);
            writeFacts("step", axis.step, json);
          });
      });
    writeFacts("subject", proof.subject, json);
    json.attributeArray("proofs", [&] {
      for (const Proof::Statement &statement : proof.statements)
        json.object([&] {
          json.attribute("name", statement.name);
          json.attribute("claim", statement.claim);
          writeFacts("facts", statement.facts, json);
          if (statement.seconds >= 0)
            json.attribute("seconds", rounded(statement.seconds));
        });
    });
    json.attributeArray("memory", [&] {
      for (const Proof::Rank &rank : proof.memory)
        json.object([&] {
          json.attribute("rank", rank.rank);
          json.attribute("planned", rank.planned);
          json.attribute("scratch", rank.scratch);
          json.attribute("live", rank.live);
          if (rank.limit >= 0)
            json.attribute("limit", rank.limit);
          json.attribute("at", rank.at);
          json.attributeObject("roles", [&] {
            for (auto &[role, bytes] : rank.roles)
              json.attribute(role, bytes);
          });
        });
    });
    json.attributeObject("seconds", [&] {
      json.attribute("proofs", rounded(proof.proofSeconds));
      json.attribute("passes", rounded(proof.passSeconds));
    });
  });
  os << "\n";
}
