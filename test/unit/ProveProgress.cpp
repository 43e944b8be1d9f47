// Which schedules deadlock under which channel map, as they are projected and with receives posted just in time.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The expectations are those of the literature's question "must receives be posted early?", answered beforehand by two
// models of their own (an event-driven one and a cycle test), for p in {2, 3, 4, 8} and m in {p, 2p, 4p}:
//   - posted where they are sent: no schedule deadlocks under any map;
//   - posted right before their consumer: see kJustInTime.
#include "analysis/Execution.h"
#include "frontend/Frontend.h"
#include "mlir/IR/BuiltinOps.h"
#include "passes/Passes.h"
#include <gtest/gtest.h>

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;

namespace {

constexpr ChannelMap kMaps[] = {ChannelMap::rank, ChannelMap::direction, ChannelMap::pair, ChannelMap::edge,
                                ChannelMap::serial};

struct Compiled {
  std::unique_ptr<MLIRContext> context;
  OwningOpRef<ModuleOp> module;
  ProgramOp program() { return *module->getOps<ProgramOp>().begin(); }
};

/// The rank programs of a schedule of the library, before any proof.
Compiled compile(const std::string &schedule, int64_t ranks, int64_t microbatches, int64_t layers) {
  DialectRegistry registry;
  registry.insert<func::FuncDialect, nn::NnDialect, PipelineDialect>();
  Compiled compiled{std::make_unique<MLIRContext>(registry, MLIRContext::Threading::DISABLED), {}};
  compiled.context->loadAllAvailableDialects();
  FrontendOptions options;
  options.stdlibDir = PP_STDLIB_DIR;
  for (auto [name, value] : {std::pair<const char *, std::string>{"schedule", schedule},
                             {"ranks", std::to_string(ranks)},
                             {"microbatches", std::to_string(microbatches)},
                             {"layers", std::to_string(layers)},
                             {"hidden", "8"},
                             {"heads", "1"},
                             {"ffn", "8"},
                             {"vocab", "8"},
                             {"microbatch", "1"},
                             {"sequence", "4"}})
    options.defines.push_back({name, value});
  llvm::SourceMgr manager;
  manager.AddNewSourceBuffer(std::move(*llvm::MemoryBuffer::getFile(PP_STDLIB_DIR "/../examples/train.pipe")), {});
  compiled.module = importPipe(manager, compiled.context.get(), options);
  if (!compiled.module)
    return compiled;
  PassManager passes(compiled.context.get());
  passes.addPass(createVerifyUnits());
  passes.addPass(createDeriveTasks());
  passes.addPass(createLinearizeActions());
  passes.addPass(createCompleteStep());
  passes.addPass(createPlanBodies());
  passes.addPass(createProjectRanks());
  if (failed(passes.run(*compiled.module)))
    compiled.module = {};
  return compiled;
}

/// On lanes without names a wrong order is either a deadlock or a message taken for another: both proofs must hold.
bool isRefused(ModuleOp module, ChannelMap map) {
  ScopedDiagnosticHandler quiet(module.getContext(), [](Diagnostic &) { return success(); });
  PassManager passes(module.getContext());
  passes.addPass(createProveChannels());
  passes.addPass(createProveProgress({map}));
  return failed(passes.run(module));
}

/// Receives right before their complete; sends are asynchronous and complete at the end.
void postJustInTime(ProgramOp program) {
  for (auto rank : program.getOps<RankOp>()) {
    Block &body = rank.getBody().front();
    for (PostOp post : llvm::to_vector(rank.getOps<PostOp>())) {
      Operation *complete = *post.getRequest().user_begin();
      if (post.getKind() == PostKind::receive)
        post->moveBefore(complete);
      else if (post.getKind() == PostKind::send)
        complete->moveBefore(&body, body.end());
    }
  }
}

/// The fewest layers with which every stage of the schedule has one.
int64_t layersFor(const std::string &schedule, int64_t ranks) {
  bool one = llvm::is_contained(
      {"gpipe", "1f1b", "zb_h1", "zb_h2", "weipipe_interleave", "weipipe_naive", "wzb1", "helixpipe"},
      StringRef(schedule));
  return one ? ranks : 2 * ranks;
}

TEST(ProveProgress, PostedWhereTheyAreSentNothingDeadlocks) {
  for (const char *schedule : {"gpipe", "1f1b", "interleaved", "looped_bfs", "zb_h1", "zb_h2", "zb_v", "v_half",
                               "v_min", "dualpipe_v", "weipipe_interleave", "weipipe_naive", "wzb1", "helixpipe"})
    for (int64_t ranks : {2, 4})
      for (int64_t microbatches : {2 * ranks, 4 * ranks}) {
        Compiled compiled = compile(schedule, ranks, microbatches, layersFor(schedule, ranks));
        ASSERT_TRUE(compiled.module) << schedule << " " << ranks << " " << microbatches;
        for (ChannelMap map : kMaps)
          EXPECT_FALSE(isRefused(*compiled.module, map))
              << schedule << ", " << ranks << " ranks, " << microbatches << " microbatches, a lane per "
              << stringifyChannelMap(map).str();
      }
}

struct Expected {
  const char *schedule;
  std::array<bool, 5> refused; ///< at some size, by map in the order of kMaps
};
constexpr Expected kJustInTime[] = {
    {"gpipe", {false, false, false, false, false}},   {"1f1b", {true, false, true, false, true}},
    {"zb_h1", {true, false, true, false, true}},      {"zb_h2", {true, false, true, false, true}},
    {"interleaved", {true, true, true, false, true}}, {"looped_bfs", {true, true, true, false, true}},
    {"zb_v", {true, true, true, true, true}},         {"v_half", {true, true, true, true, true}},
    {"v_min", {true, true, true, true, true}}};

TEST(ProveProgress, PostedJustInTimeSomeDeadlock) {
  for (const Expected &expected : kJustInTime) {
    std::array<std::string, 5> at;
    for (int64_t ranks : {2, 3, 4})
      for (int64_t microbatches : {ranks, 2 * ranks, 4 * ranks}) {
        Compiled compiled = compile(expected.schedule, ranks, microbatches, layersFor(expected.schedule, ranks));
        ASSERT_TRUE(compiled.module) << expected.schedule << " " << ranks << " " << microbatches;
        postJustInTime(compiled.program());
        for (auto [map, where] : llvm::zip(kMaps, at))
          if (isRefused(*compiled.module, map))
            where += " p=" + std::to_string(ranks) + " m=" + std::to_string(microbatches);
      }
    if (expected.schedule == std::string("looped_bfs")) { // with more ranks no two stages' messages share a pair
      EXPECT_EQ(at[2], " p=2 m=2 p=2 m=4 p=2 m=8");
    }
    for (auto [map, where, refused] : llvm::zip(kMaps, at, expected.refused))
      EXPECT_EQ(!where.empty(), refused) << expected.schedule << ", a lane per " << stringifyChannelMap(map).str()
                                         << ":" << where;
  }
}

} // namespace
