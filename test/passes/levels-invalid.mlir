// Every pass on programs refuses those of the two other levels, with one error and a note at the first op of the level.
// RUN: not pp-opt %s --split-input-file --pp-adapt-linears 2>&1 | FileCheck %s -DPASS=adapt-linears "-DTAKES=actions" --check-prefix=ACTIONS --implicit-check-not=takes
// RUN: not pp-opt %s --split-input-file --pp-split-vocabulary 2>&1 | FileCheck %s -DPASS=split-vocabulary "-DTAKES=actions" --check-prefix=ACTIONS --implicit-check-not=takes
// RUN: not pp-opt %s --split-input-file --pp-split-parts 2>&1 | FileCheck %s -DPASS=split-parts "-DTAKES=actions" --check-prefix=ACTIONS --implicit-check-not=takes
// RUN: not pp-opt %s --split-input-file --pp-cut-sequences 2>&1 | FileCheck %s -DPASS=cut-sequences "-DTAKES=actions" --check-prefix=ACTIONS --implicit-check-not=takes
// RUN: not pp-opt %s --split-input-file --pp-cut-experts 2>&1 | FileCheck %s -DPASS=cut-experts "-DTAKES=actions" --check-prefix=ACTIONS --implicit-check-not=takes
// RUN: not pp-opt %s --split-input-file --pp-quantize-products 2>&1 | FileCheck %s -DPASS=quantize-products "-DTAKES=actions" --check-prefix=ACTIONS --implicit-check-not=takes
// RUN: not pp-opt %s --split-input-file --pp-verify-units 2>&1 | FileCheck %s -DPASS=verify-units "-DTAKES=actions" --check-prefix=ACTIONS --implicit-check-not=takes
// RUN: not pp-opt %s --split-input-file --pp-verify-barrier 2>&1 | FileCheck %s -DPASS=verify-barrier "-DTAKES=actions" --check-prefix=ACTIONS --implicit-check-not=takes
// RUN: not pp-opt %s --split-input-file --pp-freeze-weights 2>&1 | FileCheck %s -DPASS=freeze-weights "-DTAKES=actions" --check-prefix=ACTIONS --implicit-check-not=takes
// RUN: not pp-opt %s --split-input-file --pp-fuse-units 2>&1 | FileCheck %s -DPASS=fuse-units "-DTAKES=actions" --check-prefix=ACTIONS --implicit-check-not=takes
// RUN: not pp-opt %s --split-input-file --pp-derive-tasks 2>&1 | FileCheck %s -DPASS=derive-tasks "-DTAKES=actions" --check-prefix=ACTIONS --implicit-check-not=takes
// RUN: not pp-opt %s --split-input-file --pp-verify-layouts 2>&1 | FileCheck %s -DPASS=verify-layouts "-DTAKES=actions" --check-prefix=ACTIONS --implicit-check-not=takes
// RUN: not pp-opt %s --split-input-file --pp-linearize-actions 2>&1 | FileCheck %s -DPASS=linearize-actions "-DTAKES=actions" --check-prefix=ACTIONS --implicit-check-not=takes
// RUN: not pp-opt %s --split-input-file --pp-verify-arrivals 2>&1 | FileCheck %s -DPASS=verify-arrivals "-DTAKES=actions" --check-prefix=ACTIONS --implicit-check-not=takes
// RUN: not pp-opt %s --split-input-file --pp-derive-forward 2>&1 | FileCheck %s -DPASS=derive-forward "-DTAKES=actions" --check-prefix=ACTIONS --implicit-check-not=takes
// RUN: not pp-opt %s --split-input-file --pp-complete-step 2>&1 | FileCheck %s -DPASS=complete-step "-DTAKES=actions" --check-prefix=ACTIONS --implicit-check-not=takes
// RUN: not pp-opt %s --split-input-file --pp-hoist-moves 2>&1 | FileCheck %s -DPASS=hoist-moves "-DTAKES=the step" --check-prefix=STEP --implicit-check-not=takes
// RUN: not pp-opt %s --split-input-file --pp-verify-limits 2>&1 | FileCheck %s -DPASS=verify-limits "-DTAKES=the step" --check-prefix=STEP --implicit-check-not=takes
// RUN: not pp-opt %s --split-input-file --pp-join-units 2>&1 | FileCheck %s -DPASS=join-units "-DTAKES=the step" --check-prefix=STEP --implicit-check-not=takes
// RUN: not pp-opt %s --split-input-file --pp-hide-exchanges 2>&1 | FileCheck %s -DPASS=hide-exchanges "-DTAKES=the step" --check-prefix=STEP --implicit-check-not=takes
// RUN: not pp-opt %s --split-input-file --pp-project-ranks 2>&1 | FileCheck %s -DPASS=project-ranks "-DTAKES=the step" --check-prefix=STEP --implicit-check-not=takes
// RUN: not pp-opt %s --split-input-file --pp-interleave-units 2>&1 | FileCheck %s -DPASS=interleave-units "-DTAKES=programs of ranks" --check-prefix=RANKS --implicit-check-not=takes
// RUN: not pp-opt %s --split-input-file --pp-plan-slots 2>&1 | FileCheck %s -DPASS=plan-slots "-DTAKES=programs of ranks" --check-prefix=RANKS --implicit-check-not=takes
// RUN: not pp-opt %s --split-input-file --pp-derive-redo 2>&1 | FileCheck %s -DPASS=derive-redo "-DTAKES=programs of ranks" --check-prefix=RANKS --implicit-check-not=takes
// RUN: not pp-opt %s --split-input-file --pp-prove-bodies 2>&1 | FileCheck %s -DPASS=prove-bodies "-DTAKES=programs of ranks" --check-prefix=RANKS --implicit-check-not=takes
// RUN: not pp-opt %s --split-input-file --pp-prove-units 2>&1 | FileCheck %s -DPASS=prove-units "-DTAKES=programs of ranks" --check-prefix=RANKS --implicit-check-not=takes
// RUN: not pp-opt %s --split-input-file --pp-prove-channels 2>&1 | FileCheck %s -DPASS=prove-channels "-DTAKES=programs of ranks" --check-prefix=RANKS --implicit-check-not=takes
// RUN: not pp-opt %s --split-input-file --pp-prove-progress 2>&1 | FileCheck %s -DPASS=prove-progress "-DTAKES=programs of ranks" --check-prefix=RANKS --implicit-check-not=takes
// RUN: not pp-opt %s --split-input-file --pp-prove-values 2>&1 | FileCheck %s -DPASS=prove-values "-DTAKES=programs of ranks" --check-prefix=RANKS --implicit-check-not=takes
// RUN: not pp-opt %s --split-input-file --pp-prove-slots 2>&1 | FileCheck %s -DPASS=prove-slots "-DTAKES=programs of ranks" --check-prefix=RANKS --implicit-check-not=takes
// RUN: not pp-opt %s --split-input-file --pp-prove-memory 2>&1 | FileCheck %s -DPASS=prove-memory "-DTAKES=programs of ranks" --check-prefix=RANKS --implicit-check-not=takes

// STEP: error: `pp-[[PASS]]` takes [[TAKES]]; `@actions` holds actions
// STEP: note: `pipeline.unit` belongs to actions
// RANKS: error: `pp-[[PASS]]` takes [[TAKES]]; `@actions` holds actions
// RANKS: note: `pipeline.unit` belongs to actions
pipeline.program @actions ranks 1 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]>
  pipeline.unit <F stage 0 mb 0> on [0]
}

// -----

// ACTIONS: error: `pp-[[PASS]]` takes [[TAKES]]; `@step` holds the step
// ACTIONS: note: `pipeline.input` belongs to the step
// RANKS: error: `pp-[[PASS]]` takes [[TAKES]]; `@step` holds the step
// RANKS: note: `pipeline.input` belongs to the step
pipeline.program @step ranks 1 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]>
  %w = pipeline.input <weight stage 0> : !pipeline.val<weight, tuple<tensor<2xf32>>, [0]>
}

// -----

// ACTIONS: error: `pp-[[PASS]]` takes [[TAKES]]; `@ranks` holds programs of ranks
// ACTIONS: note: `pipeline.rank` belongs to programs of ranks
// STEP: error: `pp-[[PASS]]` takes [[TAKES]]; `@ranks` holds programs of ranks
// STEP: note: `pipeline.rank` belongs to programs of ranks
pipeline.program @ranks ranks 1 microbatches 1 slices 0 attributes {train = {}} {
  pipeline.piece @s0 <stage 0> parts [["a", 0]] at <[0]>
  pipeline.rank 0 {
  }
}
