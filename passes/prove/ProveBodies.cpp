// Proves that every task body of rank programs computes what the parts of its piece derive.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Before: rank programs that somebody may have changed. After: the same, or one error at the op that no derivation has.
//
//   func @post(%x, %w, ..)  ─ derive-tasks ─▶  @s0.F, @s0.B, ..  ─┐
//   piece @s0 parts [["post", 0]]                                 ├─ the same values of the same arguments?
//   launch @s0.B  ──────────────────────────▶  @s0.B, as it is   ─┘
//
// The parts are the statement of the model, and the pieces, the launches and the program's attributes say what is asked
// of them: all bodies are derived again, into a module that is thrown away. Two bodies are equal if their groups are,
// and if each result is the same op, with the same attributes, of the same values, down to the arguments. So the order
// of ops counts for nothing (hide-exchanges changes it), and neither do copies (plan-bodies adds some). That no value
// is read behind an op that writes over it is a matter of plan-bodies and prove-slots. Products with an epilogue are
// taken apart into the two ops of which fuse-epilogues made them.
//
// pp-compile asks for this pass where it reads rank programs from a file. Bodies that it has derived in the same run
// need no comparison.
#include "analysis/Proof.h"
#include "dialect/formula/Formula.h"
#include "passes/Passes.h"
#include "passes/derive/DeriveTasks.h"
#include "passes/derive/TaskBodies.h"
#include <map>

namespace pp {
#define GEN_PASS_DEF_PROVEBODIES
#include "passes/Passes.h.inc"
} // namespace pp

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;

namespace {

/// Numbers values so that two have the same number if the same ops make them of the same arguments.
class Terms {
public:
  struct Body {
    llvm::DenseMap<Value, uint64_t> values;
    llvm::MapVector<uint64_t, Operation *> ops; ///< by number, which is not 0
  };

  Body read(func::FuncOp function) {
    Body body;
    for (BlockArgument argument : function.getArguments())
      body.values[argument] = argument.getArgNumber();
    for (Operation &op : function.front().without_terminator())
      if (auto copy = dyn_cast<nn::CopyOp>(op))
        body.values[copy.getY()] = body.values.lookup(copy.getX());
      else
        read(op, body);
    return body;
  }
  /// The attributes of an op, without the places of its results; and what a formula computes.
  static DictionaryAttr attributesOf(Operation *op) {
    NamedAttrList attributes(op->getAttrDictionary());
    attributes.erase(kBuffersAttr);
    attributes.erase(kOverlapsAttr);
    if (auto map = dyn_cast<nn::MapOp>(op))
      attributes.set("formula", StringAttr::get(op->getContext(), nn::textOfFormula(map)));
    return attributes.getDictionary(op->getContext());
  }

private:
  std::map<std::vector<uint64_t>, uint64_t> numbers;

  void read(Operation &op, Body &body) {
    auto idOf = [](const void *unique) { return reinterpret_cast<uint64_t>(unique); };
    std::vector<uint64_t> key = {idOf(op.getName().getAsOpaquePointer()), idOf(attributesOf(&op).getAsOpaquePointer())};
    for (Type type : op.getResultTypes())
      key.push_back(idOf(type.getAsOpaquePointer()));
    auto operands = llvm::map_to_vector(op.getOperands(), [&](Value value) { return body.values.lookup(value); });
    if (isa<nn::AddOp>(op))
      llvm::sort(operands);
    key.insert(key.end(), operands.begin(), operands.end());
    uint64_t number = numbers.try_emplace(std::move(key), numbers.size() + 1).first->second;
    for (OpResult result : op.getResults())
      body.values[result] = number << 16 | result.getResultNumber();
    body.ops.insert({number, &op});
  }
};

/// Compares a body with what its parts derive.
class BodyProof {
public:
  BodyProof(func::FuncOp body, func::FuncOp derived, StringRef pieces)
      : body(body), derived(derived), pieces(pieces), split(body.clone()) {
    splitEpilogues(*split);
  }

  LogicalResult prove() {
    for (StringRef name : {kInputsAttr, kResultsAttr, kTiesAttr, kFlopsAttr})
      if (body->getAttr(name) != derived->getAttr(name))
        return report(body.getLoc()) << ": expected `" << name << " = " << derived->getAttr(name) << "`, got `"
                                     << body->getAttr(name) << "`";
    if (body.getFunctionType() != derived.getFunctionType())
      return report(body.getLoc()) << ": expected " << derived.getFunctionType() << ", got " << body.getFunctionType();
    Terms terms;
    Terms::Body wanted = terms.read(derived), got = terms.read(*split);
    for (auto [number, op] : got.ops)
      if (!wanted.ops.contains(number))
        return reportOp(op, got, wanted);
    Operation *end = split->front().getTerminator(), *derivedEnd = derived.front().getTerminator();
    for (auto [i, value, other] : llvm::enumerate(end->getOperands(), derivedEnd->getOperands()))
      if (got.values.lookup(value) != wanted.values.lookup(other))
        return report(end->getLoc()) << ": tensor " << i << " that it returns is another value";
    return success();
  }

private:
  func::FuncOp body, derived;
  StringRef pieces;
  OwningOpRef<func::FuncOp> split; ///< the body, its epilogues taken apart

  InFlightDiagnostic report(Location loc) {
    return emitError(loc) << "`@" << body.getSymName() << "` is not what the parts of `" << pieces << "` derive";
  }

  /// The first op that is not derived, beside the first of its kind that is derived and not there.
  LogicalResult reportOp(Operation *op, const Terms::Body &got, const Terms::Body &wanted) {
    InFlightDiagnostic error = report(op->getLoc());
    for (auto [number, other] : wanted.ops) {
      if (got.ops.contains(number) || other->getName() != op->getName())
        continue;
      DictionaryAttr mine = Terms::attributesOf(op), theirs = Terms::attributesOf(other);
      size_t operand = 0, count = std::min(op->getNumOperands(), other->getNumOperands());
      while (operand < count &&
             got.values.lookup(op->getOperand(operand)) == wanted.values.lookup(other->getOperand(operand)))
        ++operand;
      if (mine != theirs)
        error << ": expected " << theirs << ", got " << mine;
      else if (operand < count)
        error << ": operand " << operand << " of `" << op->getName() << "` is another value";
      error.attachNote(other->getLoc()) << "derived from what stands here";
      return failure();
    }
    error << ": they make no such `" << op->getName() << "`";
    return failure();
  }
};

/// All bodies that the parts derive, in a module of their own: in the program's they have the names of others.
class Derivation {
public:
  explicit Derivation(ModuleOp module) : module(module), derived(ModuleOp::create(module.getLoc())) {}

  LogicalResult derive() {
    for (auto program : llvm::to_vector(module.getOps<ProgramOp>()))
      if (!program.getRedo() && failed(derive(program)))
        return failure();
    return success();
  }

  /// The derived body, or the small body that only a whole step needs; null if there is none.
  func::FuncOp find(func::FuncOp body, const Pieces &pieces) {
    BodyAttr identity = identityOf(body);
    func::FuncOp &found = functions[identity];
    const auto *piece =
        llvm::find_if(pieces.all(), [&](PieceOp op) { return op.getBodiesAttr() == identity.getPieces(); });
    if (!found && identity.getPhase() == Phase::U && piece != pieces.all().end())
      found = make(body, identity, piece - pieces.all().begin(), pieces);
    return found;
  }

private:
  ModuleOp module;
  OwningOpRef<ModuleOp> derived;
  llvm::DenseMap<BodyAttr, func::FuncOp> functions;

  LogicalResult derive(ProgramOp program) {
    SmallVector<std::pair<ArrayAttr, StringAttr>> said;
    for (auto piece : program.getOps<PieceOp>())
      said.push_back({piece.getWeightsAttr(), piece.getBodiesAttr()});
    Operation *last = &module.getBody()->back();
    if (failed(deriveTasks(module, program)))
      return failure();
    while (Operation *made = last->getNextNode()) {
      made->moveBefore(derived->getBody(), derived->getBody()->end());
      functions[identityOf(cast<func::FuncOp>(made))] = cast<func::FuncOp>(made);
    }
    for (auto [piece, old] : llvm::zip(program.getOps<PieceOp>(), said))
      if (piece.getWeightsAttr() != old.first || piece.getBodiesAttr() != old.second)
        return emitError(piece.getLoc()) << "`" << piece.getSymName()
                                         << "` has other weights, or shares its bodies with other pieces, than its "
                                            "parts derive";
    return success();
  }

  func::FuncOp make(func::FuncOp body, BodyAttr identity, int64_t piece, const Pieces &pieces) {
    TaskBodies bodies(*derived, pieces);
    int64_t rank = -1;
    for (int64_t other : pieces.shards(piece))
      if (identity.getShard() >= 0 && pieces.shardOf(piece, other) == identity.getShard())
        rank = other;
    const TaskBody *made = nullptr;
    auto groups = BodyGroups::get(body);
    if (failed(groups))
      return {};
    bool updates = rank < 0 ? bodies.find(piece, Phase::U) : bodies.findOfShard(piece, BodyVariant::plain, rank);
    if (identity.getVariant() == BodyVariant::copy)
      made = &bodies.copy(piece);
    else if (identity.getVariant() == BodyVariant::sum && updates)
      made = &bodies.sum(piece, rank);
    else if (identity.getVariant() == BodyVariant::sum_keys && !groups->results.empty())
      made = &bodies.sumOfKeys(piece, identity.getSlice(), groups->results.front().payload);
    return made && made->identity == identity ? made->function : func::FuncOp();
  }
};

struct ProveBodies : public pp::impl::ProveBodiesBase<ProveBodies> {
  void runOnPrograms() override {
    Derivation derivation(getOperation());
    BodyTable bodies(getOperation());
    if (failed(derivation.derive()))
      return signalPassFailure();
    bool proved = true; // each program has its own first error
    for (auto program : getOperation().getOps<ProgramOp>())
      proved &= succeeded(prove(program, bodies, derivation));
    if (!proved)
      signalPassFailure();
  }

  /// A launch of a function without an identity is refused by prove-values.
  static LogicalResult prove(ProgramOp program, const BodyTable &bodies, Derivation &derivation) {
    Pieces pieces(program);
    SymbolTable symbols(program->getParentOfType<ModuleOp>());
    llvm::DenseSet<Attribute> seen;
    int64_t ops = 0, functions = 0;
    for (auto rank : program.getOps<RankOp>())
      for (auto launch : rank.getOps<LaunchOp>()) {
        BodyAttr identity = bodies.of(launch);
        if (!identity || !seen.insert(launch.getCalleeAttr()).second)
          continue;
        auto body = symbols.lookup<func::FuncOp>(launch.getCallee());
        func::FuncOp derived = derivation.find(body, pieces);
        if (!derived || !body.getBody().hasOneBlock())
          return emitError(body.getLoc())
                 << "`@" << body.getSymName() << "` is `" << identity.label() << "`, which the parts of `"
                 << identity.getPieces().getValue() << "` do not derive";
        if (failed(BodyProof(body, derived, identity.getPieces()).prove()))
          return failure();
        ++functions;
        ops += static_cast<int64_t>(body.front().getOperations().size());
      }
    recordProof(program, "bodies", {{"functions", functions}, {"ops", ops}});
    return success();
  }
};

} // namespace
