// From the cells of a schedule CSV to stages and actions, after what no later pass could say at a cell.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A file names no sizes: rank k is row k, the stages are those that appear, and there are as many microbatches as one
// stage has different forwards. Then a number that is too large is an error at its cell, and what is missing, double or
// out of order is found by the same passes that judge a `.pipe` file.
#include "frontend/csv/Csv.h"
#include "mlir/IR/Builders.h"
#include "llvm/ADT/DenseSet.h"

using namespace llvm;
using namespace pp;
using namespace pp::pipeline;

namespace {

class CsvImporter {
public:
  CsvImporter(Source &source, const CsvTable &table) : source(source), table(table), builder(source.context) {}

  LogicalResult run(mlir::ModuleOp module, StringRef name) {
    if (failed(countStages()) || failed(countMicrobatches()) || failed(placeStages()) || failed(checkHalves()) ||
        failed(checkSharding()))
      return failure();
    builder.setInsertionPointToEnd(module.getBody());
    program = builder.create<ProgramOp>(source.location(table.at), name, table.rows.size(), microbatches, 0,
                                        builder.getDictionaryAttr({}));
    builder.setInsertionPointToStart(&program.getBody().emplaceBlock());
    for (auto [stage, cell] : enumerate(firstOf))
      createStage(stage, *cell);
    if (!table.hasMessages) {
      createLists();
      return success();
    }
    auto steps = mergeRows(source, table, ranks);
    if (failed(steps))
      return failure();
    for (const CsvStep &step : *steps)
      createStep(step);
    return success();
  }

private:
  Source &source;
  const CsvTable &table;
  mlir::OpBuilder builder;
  ProgramOp program;
  std::vector<const CsvAction *> firstOf; // by stage: its first unit
  std::vector<int64_t> ranks;             // by stage
  int64_t microbatches = 0;

  LogicalResult noted(mlir::InFlightDiagnostic error, SMLoc at, const Twine &note) {
    error.attachNote(source.location(at)) << note;
    return error;
  }

  template <typename Check> LogicalResult eachAction(Check check) {
    for (auto [rank, row] : enumerate(table.rows))
      for (const CsvAction &action : row.actions)
        if (failed(check(rank, action)))
          return failure();
    return success();
  }

  LogicalResult countStages() {
    if (table.rows.empty())
      return source.error(table.at) << "expected a row of cells for each rank, got an empty file";
    const CsvAction *last = nullptr;
    for (auto [rank, row] : enumerate(table.rows)) {
      if (none_of(row.actions, [](const CsvAction &action) { return action.isUnit(); }))
        return source.error(row.at) << "rank " << rank << " runs no unit";
      for (const CsvAction &action : row.actions)
        last = action.isUnit() && (!last || action.stage > last->stage) ? &action : last;
    }
    firstOf.resize(last->stage + 1);
    for (const CsvRow &row : table.rows)
      for (const CsvAction &action : row.actions)
        if (action.isUnit() && !firstOf[action.stage])
          firstOf[action.stage] = &action;
    for (auto [stage, cell] : enumerate(firstOf))
      if (!cell)
        return source.error(last->at) << "stage " << last->stage << " needs the stages 0 to " << last->stage - 1
                                      << " before it, and stage " << stage << " runs no unit";
    return eachAction([&](int64_t rank, const CsvAction &action) -> LogicalResult {
      if (action.stage < int64_t(firstOf.size()))
        return success();
      return source.error(action.at) << "stage " << action.stage << " of `" << action.text
                                     << "` runs no unit; there are " << firstOf.size() << " stages, 0 to "
                                     << firstOf.size() - 1;
    });
  }

  LogicalResult countMicrobatches() {
    std::vector<DenseSet<int64_t>> forwards(firstOf.size());
    (void)eachAction([&](int64_t rank, const CsvAction &action) {
      if (action.kind == CsvAction::F)
        forwards[action.stage].insert(action.microbatch);
      return success();
    });
    int64_t largest = 0;
    for (auto [stage, seen] : enumerate(forwards))
      largest = seen.size() > forwards[largest].size() ? stage : largest;
    microbatches = forwards[largest].size();
    if (microbatches == 0)
      return source.error(firstOf[0]->at) << "expected a forward, but none of the cells is one";
    return eachAction([&](int64_t rank, const CsvAction &action) -> LogicalResult {
      if (action.microbatch < microbatches)
        return success();
      auto error = source.error(action.at) << "microbatch " << action.microbatch << " does not exist: stage " << largest
                                           << " runs " << microbatches << (microbatches == 1 ? " forward" : " forwards")
                                           << ", of microbatches 0 to " << microbatches - 1;
      const DenseSet<int64_t> &its = forwards[action.stage];
      if (int64_t(its.size()) == microbatches && !its.contains(0) && its.contains(microbatches))
        return noted(
            std::move(error), firstOf[action.stage]->at,
            "stage " + Twine(action.stage) + " counts from 1, and stage " + Twine(largest) +
                " from 0; PyTorch's loader refuses such a table, too. Take 1 from each microbatch of this row");
      return error;
    });
  }

  LogicalResult placeStages() {
    ranks.assign(firstOf.size(), -1);
    return eachAction([&](int64_t rank, const CsvAction &action) -> LogicalResult {
      if (!action.isUnit() || ranks[action.stage] == rank)
        return success();
      if (ranks[action.stage] >= 0)
        return noted(source.error(action.at) << "stage " << action.stage << " runs on rank " << rank << " here",
                     firstOf[action.stage]->at, "and on rank " + Twine(ranks[action.stage]) + " here");
      ranks[action.stage] = rank;
      return success();
    });
  }

  /// A file of PyTorch 2.5 that has no `BW` gives itself away by weight passes without input passes.
  LogicalResult checkHalves() {
    const CsvAction *weights = nullptr;
    bool inputs = false, full = false;
    (void)eachAction([&](int64_t rank, const CsvAction &action) {
      weights = !weights && action.kind == CsvAction::W ? &action : weights;
      inputs |= action.kind == CsvAction::I;
      full |= action.kind == CsvAction::B;
      return success();
    });
    if (!weights || inputs || !full)
      return success();
    return source.error(weights->at) << "`" << weights->text
                                     << "` in a file without any `I`: in PyTorch 2.5 `B` was what "
                                     << "is `I` today; read such a file with `--dialect=2.5`";
  }

  /// UNSHARD and its like are about weights sharded over data-parallel ranks. There are none here, so they go, but a
  /// file that breaks their rules would break PyTorch's run.
  LogicalResult checkSharding() {
    for (const CsvRow &row : table.rows) {
      DenseMap<int64_t, const CsvAction *> unsharded, reduced;
      DenseSet<int64_t> waited;
      bool shards = any_of(row.actions, [](const CsvAction &action) { return action.kind == CsvAction::Unshard; });
      for (const CsvAction &action : row.actions) {
        if (action.kind == CsvAction::Unshard && !unsharded.try_emplace(action.stage, &action).second)
          return noted(source.error(action.at) << "stage " << action.stage << " is unsharded already",
                       unsharded[action.stage]->at, "unsharded here");
        if (action.kind == CsvAction::Reshard && !unsharded.erase(action.stage))
          return source.error(action.at) << "stage " << action.stage << " is not unsharded here";
        if (action.isUnit() && shards && !unsharded.count(action.stage))
          return source.error(action.at) << "`" << action.text << "` runs while its stage is not unsharded";
        bool adds = action.kind == CsvAction::B || action.kind == CsvAction::W;
        if (const CsvAction *before = reduced.lookup(action.stage);
            before && (adds || action.kind == CsvAction::ReduceGrad))
          return noted(source.error(action.at) << "`" << action.text << "` comes after the gradient of stage "
                                               << action.stage << " was reduced",
                       before->at, "reduced here");
        if (action.kind == CsvAction::ReduceGrad)
          reduced[action.stage] = &action;
        bool waits = action.kind == CsvAction::WaitReduceGrad;
        if (waits && (!reduced.count(action.stage) || !waited.insert(action.stage).second))
          return source.error(action.at) << "`" << action.text << "` waits for no reduction";
      }
    }
    return success();
  }

  //===-- The program -------------------------------------------------------------------------------------------===//

  CoordAttr coord(int64_t stage, int64_t microbatch) {
    return CoordAttr::get(builder.getContext(), builder.getStringAttr(""), stage, microbatch, -1);
  }

  PlaceAttr place(int64_t rank) { return PlaceAttr::get(builder.getContext(), {rank}, Layout::full); }

  void createStage(int64_t stage, const CsvAction &cell) {
    CoordAttr name = coord(stage, -1);
    PlaceAttr at = place(ranks[stage]);
    builder.create<PieceOp>(source.location(cell.at), name, builder.getArrayAttr({}), at, at, at);
  }

  void createLists() {
    for (auto [rank, row] : enumerate(table.rows)) {
      CsvStep step{int64_t(rank), {}};
      for (const CsvAction &action : row.actions) {
        if (!action.isUnit())
          continue;
        if (!step.actions.empty() && (action.joint < 0 || action.joint != step.actions.back()->joint)) {
          createStep(step);
          step.actions.clear();
        }
        step.actions.push_back(&action);
      }
      createStep(step);
    }
  }

  void createStep(const CsvStep &step) {
    mlir::OpBuilder::InsertionGuard guard(builder);
    if (step.actions.size() > 1) {
      auto together = builder.create<TogetherOp>(source.location(step.actions.front()->at));
      builder.setInsertionPointToStart(&together.getBody().emplaceBlock());
    }
    for (const CsvAction *action : step.actions)
      createAction(*action);
  }

  void createAction(const CsvAction &action) {
    mlir::Location at = source.location(action.at);
    CoordAttr name = coord(action.stage, action.microbatch);
    int64_t rank = ranks[action.stage];
    if (action.isUnit()) {
      static const Phase phases[] = {Phase::F, Phase::I, Phase::B, Phase::W};
      builder.create<UnitOp>(at, UnitIdAttr::get(builder.getContext(), phases[action.kind], name), ArrayRef(rank));
      return;
    }
    int64_t to = ranks[action.stage + (action.isForward() ? 1 : -1)];
    auto thing = ThingAttr::get(builder.getContext(), action.isForward() ? Role::act : Role::dact, name);
    builder.create<TransferOp>(at, thing, place(rank), place(to), ArrayRef<int64_t>({rank, to}));
  }
};

} // namespace

mlir::OwningOpRef<mlir::ModuleOp> pp::importCsv(SourceMgr &manager, mlir::MLIRContext *context, CsvDialect dialect,
                                                StringRef name) {
  context->loadDialect<PipelineDialect>();
  Source source(manager, context);
  mlir::FailureOr<CsvTable> table = readCells(source, dialect);
  if (failed(table))
    return nullptr;
  mlir::OwningOpRef<mlir::ModuleOp> module = mlir::ModuleOp::create(source.location(table->at));
  if (failed(CsvImporter(source, *table).run(*module, name)))
    return nullptr;
  return module;
}
