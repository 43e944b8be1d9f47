// The factors that ops state: each is read, a wrong one is refused, and they lead to the layouts of the rules.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "dialect/Factors.h"
#include "frontend/Frontend.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/IR/Diagnostics.h"
#include "passes/Passes.h"
#include "llvm/Support/MemoryBuffer.h"
#include "llvm/Support/SourceMgr.h"
#include <gtest/gtest.h>

using namespace mlir;
using namespace pp;

namespace {

std::string errorOf(StringRef text) {
  std::string why;
  bool isRead = parseFactors(text, why).has_value();
  EXPECT_EQ(isRead, why.empty());
  return why;
}

DialectRegistry dialects() {
  DialectRegistry registry;
  registry.insert<func::FuncDialect, nn::NnDialect, pipeline::PipelineDialect>();
  return registry;
}

/// What verify-layouts says of a program of the library.
std::string errorOfProgram(StringRef values) {
  MLIRContext context(dialects(), MLIRContext::Threading::DISABLED);
  context.loadAllAvailableDialects();
  std::string first;
  ScopedDiagnosticHandler handler(&context, [&](Diagnostic &diagnostic) {
    if (first.empty() && diagnostic.getSeverity() == DiagnosticSeverity::Error)
      first = diagnostic.str();
  });
  FrontendOptions options;
  options.stdlibDir = PP_STDLIB_DIR;
  SmallVector<StringRef> words;
  std::string all =
      ("ranks=2 microbatches=4 layers=4 hidden=32 heads=4 ffn=32 vocab=32 microbatch=2 sequence=16 " + values).str();
  StringRef(all).split(words, ' ', -1, /*KeepEmpty=*/false);
  for (StringRef word : words)
    options.defines.push_back({word.split('=').first.str(), word.split('=').second.str()});
  llvm::SourceMgr sources;
  sources.AddNewSourceBuffer(std::move(*llvm::MemoryBuffer::getFile(PP_STDLIB_DIR "/../examples/train.pipe")), {});
  auto module = importPipe(sources, &context, options);
  PassManager passes(&context);
  for (auto make : {createAdaptLinears, createSplitVocabulary, createCutSequences, createCutExperts, createSplitParts})
    passes.addPass(make());
  passes.addPass(createDeriveTasks());
  passes.addPass(createVerifyLayouts());
  if (module && succeeded(passes.run(*module)))
    return "";
  return first.empty() ? "it does not compile" : first;
}

} // namespace

TEST(FactorRules, EveryStatementIsRead) {
  MLIRContext context(dialects());
  context.loadAllAvailableDialects();
  size_t ops = 0, sizes = 0, counted = 0;
  for (RegisteredOperationName name : context.getRegisteredOperations())
    if (auto *stated = name.getInterface<nn::Factored>()) {
      ++ops;
      for (StringRef text : stated->factorTexts()) {
        EXPECT_EQ(errorOf(text), "") << name.getStringRef().str();
        std::string why;
        auto rule = parseFactors(text, why);
        for (const auto &[attribute, factors] : rule ? rule->sizes : FactorRule().sizes)
          sizes += llvm::any_of(name.getAttributeNames(),
                                [&, attribute = attribute](StringAttr known) { return known == attribute; });
        counted += rule ? rule->sizes.size() : 0;
      }
    }
  EXPECT_EQ(sizes, counted); // each is an attribute of its op
  EXPECT_GE(sizes, 14U);
  EXPECT_GE(ops, 60U); // all but exchanges, updates and pairs of kernels
}

TEST(FactorRules, ABackwardOpHasTheFactorsOfItsForwardOp) {
  std::string why;
  auto rule = parseFactors("x: b s k, w: k n -> y: b s n | d(y) w acc -> d(x)=acc", why);
  ASSERT_TRUE(rule) << why;
  ASSERT_EQ(rule->operands.size(), 3U);
  const auto &dy = rule->operands[0][0], &w = rule->operands[1][0], &acc = rule->operands[2][0];
  EXPECT_EQ(dy.name, "dy");
  EXPECT_TRUE(dy.has(rule->numberOf("n")));
  EXPECT_FALSE(dy.has(rule->numberOf("k")));
  EXPECT_TRUE(w.has(rule->numberOf("n")));
  EXPECT_EQ(acc.dims, rule->results[0][0].dims); // b s k, as x
  EXPECT_EQ(rule->results[0][0].into, "acc");
  EXPECT_EQ(rule->linearIn, (SmallVector<std::string>{"dy", "acc"}));
}

TEST(FactorRules, AWrongStatementIsRefused) {
  EXPECT_EQ(errorOf("x: b s"), "expected `->` behind `x: b s`");
  EXPECT_EQ(errorOf("x b -> y: b"), "expected `:` behind `x`");
  EXPECT_EQ(errorOf("x: -> y: b"), "expected a factor behind `x:`");
  EXPECT_EQ(errorOf("[x: b -> y: b"), "expected `]` behind `[x: b`");
  EXPECT_EQ(errorOf("x: b -> y: b ; fast"), "expected counts, uncounted, ranked, linear, linear_in(name), each, "
                                            "copies or attribute(factors) behind `x: b -> y: b ; fast`");
  EXPECT_EQ(errorOf("x: b h -> y: b h ; heads(g)"), "expected a factor behind `x: b h -> y: b h ; heads(g`");
  EXPECT_EQ(errorOf("x: b -> y: b | d(q) -> d(x)"), "expected a value of the op before it in place of `q` behind "
                                                    "` d(q) -> d(x)`");
}

// Families of models, heads of keys on several devices, rows, slices, halves of backwards, on tensor and on context.
TEST(FactorRules, LeadToTheLayoutsOfPrograms) {
  for (const char *values :
       {"schedule=1f1b mesh.tensor=2",
        "schedule=1f1b mesh.tensor=4 kv_heads=2",
        "schedule=1f1b mesh.tensor=4 kv_heads=2 mesh.sequence=true",
        "schedule=zb_h1 mesh.tensor=2 model=gpt2",
        "schedule=zb_h1 mesh.tensor=2 model=gpt2 mesh.sequence=true",
        "schedule=zb_v mesh.tensor=2 model=gpt2 model.attention_rate=0.2 model.residual_rate=0.1",
        "schedule=1f1b_recompute mesh.tensor=2 model=gemma",
        "schedule=1f1b mesh.context=2",
        "schedule=1f1b mesh.context=2 mesh.attention=heads model.sinks=true",
        "schedule=1f1b mesh.context=4 kv_heads=2 mesh.attention=heads",
        "schedule=zb_v mesh.context=2 mesh.tensor=2 mesh.attention=heads model=gpt2 model.attention_rate=0.2",
        "schedule=1f1b mesh.tensor=2 mesh.context=2 mesh.sequence=true",
        "schedule=1f1b mesh.context=2 model=olmoe",
        "schedule=v_half mesh.tensor=2 mesh.sequence=true mlp_chunks=2",
        "schedule=weipipe_interleave mesh.tensor=2 mesh.context=2 model=gpt2",
        "schedule=1f1b mesh.tensor=2 mesh.context=2 model=mixtral",
        "schedule=1f1b mesh.tensor=2 model=encoder_decoder",
        "schedule=1f1b_vocabulary mesh.tensor=2",
        "schedule=slimpipe mesh.context=2 mesh.tensor=2 sequence=32 exchange=true kv_heads=1",
        "schedule=terapipe mesh.tensor=2 sequence=32 model=gpt2"})
    EXPECT_EQ(errorOfProgram(values), "") << values;
}
