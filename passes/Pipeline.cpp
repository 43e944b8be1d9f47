// The order of the passes, one reason a line: the table of contents of the compiler's middle.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "passes/Passes.h"

using namespace pp;

void pp::buildPipeline(mlir::OpPassManager &manager, Until until, const ProofOptions &proofs,
                       const ChangeOptions &changes) {
  // Before anything reads the model's parts: adapters are ops and weights as all others.
  manager.addPass(createAdaptLinears());
  // Parts that are cut by the vocabulary become pieces on single ranks, so that no later pass needs to know more of
  // them.
  manager.addPass(createSplitVocabulary());
  // Which device has what of every value decides all shapes below: first of the rows, then of experts, then of columns.
  manager.addPass(createCutSequences());
  manager.addPass(createCutExperts());
  manager.addPass(createSplitParts());
  // Behind all that cuts parts, so that blocks are those of what a device multiplies; before parts are differentiated.
  manager.addPass(createQuantizeProducts());
  // Checks once that the schedule asks for every unit exactly once, before anything is built on it.
  manager.addPass(createVerifyUnits());
  // If the step shall have no barrier, this comes before bodies are derived for it.
  manager.addPass(createVerifyBarrier());
  // After the check, because a schedule names all units; before bodies are derived, because units that go have no
  // bodies.
  manager.addPass(createFreezeWeights());
  // Halves of a backward that nothing keeps apart cost memory and time, so that there are fewer bodies to derive.
  if (changes.fuse)
    manager.addPass(createFuseUnits());
  // The model differentiated: which values a unit reads and saves decides what must travel and what must wait.
  manager.addPass(createDeriveTasks());
  // While a body has the ops of the model and nothing else: shapes would fit without the exchanges, too.
  manager.addPass(createVerifyLayouts());
  // One order for all ranks: every later per-rank program is a projection of it, which is why none can deadlock.
  manager.addPass(createLinearizeActions());
  // This order must not decide what a gradient holds when it leaves a rank. If the schedule does not decide it, that is
  // an error.
  manager.addPass(createVerifyArrivals());
  // A part of that order is an order, too; what an F reads, and from which move, is known only where there is one.
  if (changes.forward)
    manager.addPass(createDeriveForward());
  // Before memory is planned: a product that does its neighbour's work reads and writes at the same time.
  if (changes.epilogues)
    manager.addPass(createFuseEpilogues());
  // Actions become SSA: from here on what a unit reads is an operand, and a missing transfer is a type error.
  manager.addPass(createCompleteStep());
  // In one order of all ranks a message may move to an earlier place without regard to the others; in projected lists
  // it may not.
  if (changes.hoist)
    manager.addPass(createHoistMoves({changes.costs, /*distance=*/0, proofs.memoryLimit}));
  // Once here and once below: behind every pass it would take a third of the time.
  manager.addPass(createVerifyOps());
  // The paper's memory claims, checked where values and their lives are visible and nothing is placed yet.
  manager.addPass(createVerifyLimits());
  // After the limits, because they are about the order as written.
  if (changes.interleave)
    manager.addPass(createJoinUnits());
  if (until == Until::Step)
    return;
  // Before memory is planned, for what is held back lives longer.
  if (changes.interleave)
    manager.addPass(createHideExchanges());
  // Memory inside a task, so that a launch knows how much scratch it needs.
  manager.addPass(createPlanBodies());
  // One program per rank.
  manager.addPass(createProjectRanks());
  // Before memory is planned, which must hold in all turns, and before the proofs.
  if (changes.interleave)
    manager.addPass(createInterleaveUnits());
  // One arena per rank.
  manager.addPass(createPlanSlots({changes.improve, proofs.memoryLimit}));
  // After the memory plan: a step that repeats something does so in the same memory.
  manager.addPass(createDeriveRedo());
  // Before the proofs: they take it as given that a slot comes before who reads it.
  manager.addPass(createVerifyOps());
  addProofs(manager, proofs);
}

// A .mlir file that holds rank programs, offsets included: only the memory of bodies is not planned.
void pp::buildPipelineOfFile(mlir::OpPassManager &manager, const ProofOptions &proofs) {
  // First: whatever stands in a body, what comes behind meets no other than those that are derived.
  manager.addPass(createProveBodies());
  manager.addPass(createPlanBodies());
  manager.addPass(createVerifyOps());
  addProofs(manager, proofs);
}

// Proofs on what will be lowered, after the last transformation: each speaks of programs for which those before hold.
void pp::addProofs(mlir::OpPassManager &manager, const ProofOptions &proofs) {
  manager.addPass(createProveUnits());
  manager.addPass(createProveChannels());
  manager.addPass(createProveProgress({proofs.channels.value_or(ChannelMap::edge), !proofs.channels}));
  // Before the slots: where a wrong value is kept too long, the overlap is only what follows from it.
  manager.addPass(createProveValues());
  manager.addPass(createProveSlots());
  // Last, because it checks only memory, and not the computed values.
  manager.addPass(createProveMemory({proofs.memoryLimit}));
}
