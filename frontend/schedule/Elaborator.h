// Runs a schedule once and writes down its pieces and actions as `pipeline` ops.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_FRONTEND_ELABORATOR_H
#define PP_FRONTEND_ELABORATOR_H

#include "dialect/pipeline/Pipeline.h"
#include "frontend/evaluate/Evaluator.h"
#include "mlir/IR/Builders.h"
#include "llvm/ADT/DenseSet.h"
#include "llvm/ADT/SetVector.h"
#include <deque>
#include <map>

namespace pp {

/// What a schedule knows of the model: its parts in order, and the kind of every layer.
struct ModelOutline {
  struct Part {
    StringRef name;
    std::optional<unsigned> kind; ///< of the layers that have it; none: it exists once
    std::string function;
  };
  struct Step {
    unsigned part;
    int64_t layer; ///< -1 for a part that exists once
  };
  StringRef name;
  SMLoc at;
  llvm::SmallVector<Part> parts;      ///< in the order of the text
  llvm::SmallVector<StringRef> kinds; ///< empty text for a kind without a name
  llvm::SmallVector<unsigned> kindOf; ///< by layer
  int64_t layers = 0;
  SMLoc layersGiven = {};    ///< on the command line
  int64_t furtherTokens = 0; ///< that it predicts: parameters `from targets + k`
  bool isIncomplete = false; ///< something of the model could not be read
  bool isUnknown = false;    ///< the layers, because what says them is wrong; nothing is said of what depends on them

  bool isIn(unsigned part, int64_t layer) const { return parts[part].kind == kindOf[layer]; }
  /// The number of layers that stand before a part that exists once.
  int64_t layersBefore(unsigned part) const;
  /// All parts of all layers, in the order in which data passes.
  std::vector<Step> steps() const;
  /// "layer 3" or "layer 3, of kind `moe`,".
  std::string describe(int64_t layer) const;
};

struct ScheduleSizes {
  int64_t ranks = 1, microbatches = 1, slices = 0; ///< -1 where what says it is wrong
  std::optional<int64_t> ranksPerNode = 0; ///< 0: all on one; nothing: devices of a rank do not share or fill nodes
};

class Elaborator : public Evaluator {
public:
  Elaborator(Source &source, Budget budget, const ModelOutline &model, ScheduleSizes sizes, mlir::Block *program);

  bool knowsNodes = true; ///< else nothing is said of what is computed with `nodes`

  /// Emits the actions of a schedule; `parameters` holds the schedule's. All errors are told before it fails.
  mlir::LogicalResult elaborate(const Schedule &schedule, Scope &parameters);
  /// The pieces of a schedule that was elaborated; the model's functions are there.
  mlir::LogicalResult emitPieces();
  /// `recompute` of the training program.
  mlir::LogicalResult recompute(const RecomputeStatement *statement, Scope &scope);
  /// The same of the command line: parts of the model, or `stage` for all that pieces do.
  mlir::LogicalResult recompute(SMLoc at, llvm::ArrayRef<StringRef> names);

private:
  /// A stage declaration (empty name) or a part declaration: one piece, or one for each stage or layer.
  struct Family {
    StringRef name;
    SMLoc at;
    bool indexed;
    unsigned first, count; // in `pieces`
    llvm::SmallVector<unsigned> parts;
    std::string str(int64_t index) const;
  };
  struct Piece {
    PieceName name;
    unsigned family;
    mlir::Location location;
    pipeline::PlaceAttr at, homes, owner;
    int64_t firstLayer = 0, layers = 0;
    int64_t behind = 0;                 ///< how many parts behind all layers it holds, where the schedule says so
    bool exists = true;                 ///< false: its layer has none of the family's parts
    bool recomputed = false;            ///< R before every backward, of the whole piece
    llvm::SmallVector<StringRef> again; ///< the same, of these parts of the model
    /// Counted forms: the next microbatch of F and of B or I, and the weight passes owed.
    int64_t nextForward = 0, nextBackward = 0;
    std::deque<int64_t> owed;
    llvm::DenseSet<int64_t> paid;
    llvm::SmallSetVector<int64_t, 4> sharers; ///< ranks that may hold a share of its gradient by now
    /// The first places of F, B/I and W of this piece in the text, without [0] and with [1] a microbatch.
    SMLoc written[3][2];

    Piece(PieceName name, unsigned family, mlir::Location location) : name(name), family(family), location(location) {}
  };

  /// A part outside the layers that is no piece of its own: how many layers stand before it, the piece that it joins.
  struct Undeclared {
    unsigned part;
    int64_t before;
    unsigned piece;
  };

  mlir::LogicalResult act(const Statement *statement, Scope &scope) override;
  int64_t furtherTokens() const override { return model.furtherTokens; }
  std::optional<mlir::FailureOr<Value>> predefined(StringRef name, SMLoc at) override;
  SMLoc predefinedBy(StringRef name) override { return name == "layers" ? model.layersGiven : SMLoc(); }
  mlir::FailureOr<Value> listOnce(StringRef name, SMLoc at);
  std::optional<mlir::FailureOr<Value>> pieceCall(const Expr *call, Scope &scope) override;
  void addNames(llvm::SmallVectorImpl<StringRef> &names) override;
  void loseCuts() override { wrongCuts.push_back("stage"); }

  // Pieces.cpp: what the model is cut into, and where.
  mlir::LogicalResult cut(const CutStatement *statement, Scope &scope);
  mlir::LogicalResult declarePieces(const CutStatement *statement, Scope &scope);
  mlir::LogicalResult cutStages(const CutStatement *statement, Scope &scope);
  mlir::LogicalResult cutPart(const CutStatement *statement, Scope &scope);
  mlir::LogicalResult joinParts(const CutStatement *statement, Family &family);
  mlir::LogicalResult joinPart(const CutStatement *statement, const Name &name, Family &family);
  mlir::LogicalResult checkUnits(SMLoc at, int64_t count);
  bool holds(const Piece &piece, StringRef part);
  bool holds(const Piece &piece, unsigned part);
  void recomputeDeclared(const Family &family);
  Piece &addPiece(PieceName name, mlir::Location location);
  mlir::LogicalResult placePiece(const CutStatement *statement, Piece &piece, Scope &scope);
  mlir::LogicalResult readLayers(const Clause &clause, Piece &piece, Scope &scope);
  void checkLayers(const CutStatement *statement, const Family &family, bool given);
  bool isBehind(unsigned part);
  std::optional<unsigned> stageBehind(unsigned part);
  mlir::LogicalResult checkBehind();
  mlir::FailureOr<Piece *> findPiece(const Expr *expr, Scope &scope);
  mlir::FailureOr<Piece *> pieceAt(SMLoc at, unsigned family, int64_t index);
  mlir::FailureOr<pipeline::PlaceAttr> evaluatePlace(const Place *place, Scope &scope);
  mlir::LogicalResult checkCoverage(const Schedule &schedule);
  mlir::LogicalResult checkBetween(const Family &family);
  bool isDeclared(unsigned part);
  std::tuple<int64_t, unsigned, int64_t> positionOf(const Piece &piece);
  void collectUndeclared(llvm::ArrayRef<unsigned> order);
  llvm::SmallVector<mlir::Attribute> entriesOf(unsigned number);
  mlir::Attribute passOn(mlir::Attribute before, mlir::Location location);
  mlir::ArrayAttr recomputedOf(const Piece &piece);
  llvm::SmallVector<unsigned> piecesInModelOrder();
  std::string str(const Piece &piece) { return families[piece.family].str(piece.name.index); }

  // Actions.cpp: units, joints, limits.
  mlir::LogicalResult on(const OnStatement *statement, Scope &scope);
  mlir::LogicalResult onRank(const OnStatement *statement, SMLoc at, const Value &rank, Scope &scope);
  mlir::LogicalResult unit(const UnitStatement *statement, Scope &scope);
  mlir::FailureOr<pipeline::CoordAttr> coordinates(StringRef word, SMLoc at, ArrayRef<Expr *> exprs, Scope &scope,
                                                   bool wholePiece, Piece *&piece);
  mlir::LogicalResult checkExists(SMLoc at, StringRef what, int64_t index, int64_t count, SMLoc noteAt = {},
                                  const llvm::Twine &note = "");
  mlir::LogicalResult countedUnit(const UnitStatement *statement, pipeline::Phase phase, Piece *piece, Scope &scope);
  std::optional<int64_t> nextMicrobatch(pipeline::Phase phase, Piece *&piece);
  mlir::LogicalResult noteForm(const UnitStatement *statement, pipeline::Phase phase, Piece &piece, bool numbered);
  mlir::LogicalResult spendFor(SMLoc at, size_t ranks);
  mlir::LogicalResult emitUnit(const UnitStatement *statement, pipeline::Phase phase, Piece &piece,
                               pipeline::CoordAttr coord, Scope &scope);
  mlir::FailureOr<mlir::IntegerAttr> versionOf(const UnitStatement *statement, pipeline::Phase phase,
                                               const Piece &piece, pipeline::CoordAttr coord, Scope &scope);
  mlir::LogicalResult updates(const UpdatesStatement *statement, Scope &scope);
  mlir::LogicalResult recomputeParts(const RecomputeStatement *statement, Scope &scope);
  StringRef modelPart(const Expr *expr, Scope &scope);
  mlir::LogicalResult recomputePiece(const Expr *expr, Scope &scope);
  mlir::LogicalResult joint(const JointStatement *statement, Scope &scope);
  mlir::LogicalResult attend(const AttendStatement *statement, Scope &scope);
  mlir::LogicalResult limit(const LimitStatement *statement, Scope &scope);

  // Moves.cpp
  mlir::LogicalResult move(const MoveStatement *statement, Scope &scope);
  mlir::LogicalResult moveThing(const MoveStatement *statement, const Thing &thing, pipeline::PlaceAttr from,
                                pipeline::PlaceAttr to, Scope &scope);
  mlir::FailureOr<pipeline::PlaceAttr> sourceOf(const MoveStatement *statement, const Thing &thing, pipeline::Role role,
                                                const Piece &piece);
  mlir::LogicalResult checkVerb(const MoveStatement *statement, const Thing &thing, pipeline::Role role,
                                pipeline::PlaceAttr from, pipeline::PlaceAttr to);

  mlir::LogicalResult checkKeys();
  mlir::LogicalResult checkKeysOf(StringRef part, const Piece &piece);

  const ModelOutline &model;
  ScheduleSizes sizes;
  mlir::OpBuilder builder;
  mlir::Block *program;
  std::vector<Family> families;
  llvm::SmallVector<StringRef> wrongCuts; ///< stages and parts whose declaration failed; nothing is said of units then
  std::vector<Piece> pieces;
  llvm::SmallVector<Undeclared> undeclared;
  std::optional<int64_t> rank;               // of `on`
  std::optional<mlir::Operation *> together; // the joint around
  int64_t updateCount = 1;                   // of `updates`
  SMLoc updatesAt, firstUnitAt;
  std::map<int64_t, std::deque<std::pair<unsigned, int64_t>>> owedOn; // rank -> (piece, microbatch) of weight passes
  llvm::SmallVector<std::pair<StringRef, Value>, 4> lists;            // `ranks` and others, once they were asked for
  std::vector<std::pair<PieceName, SMLoc>> recomputes; // of the training program, for pieces not yet declared
  llvm::SmallVector<StringRef> recomputedParts;        // inside every piece that holds them
  bool recomputesAll = false;                          // every piece, by the command line
};

} // namespace pp

#endif // PP_FRONTEND_ELABORATOR_H
