// Ops of mixtures of experts that do not fit what they read, and options that routers do not have.
// RUN: pp-opt %s --split-input-file --verify-diagnostics

// A router's matrix has a row for each column of x.
func.func @f(%x: tensor<2x4x8xf32>, %w: tensor<6x6xf32>) {
  // expected-error@+2 {{`router` expects x's width 8 to be wr's rows, got 6}}
  // expected-error@+1 {{failed to infer returned types}}
  %y = nn.router %x, %w : (tensor<2x4x8xf32>, tensor<6x6xf32>) -> tensor<2x4x6xf32>
  return
}

// -----

// Each row of the logits has a number that says whether it holds a token.
func.func @f(%x: tensor<2x4x6xf32>, %r: tensor<2x3xi32>) {
  // expected-error@+2 {{`route` expects rows as 'tensor<2x4xi32>', got 'tensor<2x3xi32>'}}
  // expected-error@+1 {{failed to infer returned types}}
  %y:6 = nn.route %x rows %r {top = 3}
      : (tensor<2x4x6xf32>, tensor<2x3xi32>) -> (tensor<2x4x3xf32>, tensor<2x4x3xi32>, tensor<2x4x6xf32>, tensor<2x4xf32>, tensor<2x4x3xi32>, tensor<6xi32>)
  return
}

// -----

func.func @f(%x: tensor<2x4x8xf32>, %w: tensor<6x8x6xf32>) {
  // expected-error@+2 {{`router` expects wr with 2 dimensions, got 3}}
  // expected-error@+1 {{failed to infer returned types}}
  %y = nn.router %x, %w : (tensor<2x4x8xf32>, tensor<6x8x6xf32>) -> tensor<2x4x6xf32>
  return
}

// -----

func.func @f(%x: tensor<2x4x6xf32>, %w: tensor<8x5xf32>) {
  // expected-error@+2 {{`router_dx` expects dlogits' width 6 to be wr's columns, got 5}}
  // expected-error@+1 {{failed to infer returned types}}
  %y = nn.router_dx %x, %w : (tensor<2x4x6xf32>, tensor<8x5xf32>) -> tensor<2x4x8xf32>
  return
}

// -----

func.func @f(%x: tensor<2x4x8xf32>, %w: tensor<2x3x6xf32>) {
  // expected-error@+2 {{`router_dw` expects x's rows 8 to be dlogits', got 6}}
  // expected-error@+1 {{failed to infer returned types}}
  %y = nn.router_dw %x, %w : (tensor<2x4x8xf32>, tensor<2x3x6xf32>) -> tensor<8x6xf32>
  return
}

// -----

// A token has one expert at least, and each at most once.
func.func @f(%x: tensor<2x4x6xf32>) {
  // expected-error@+2 {{`experts` has 6 experts; `top` must be 1 to 6, got 7}}
  // expected-error@+1 {{failed to infer returned types}}
  %y:6 = nn.route %x {top = 7}
      : (tensor<2x4x6xf32>) -> (tensor<2x4x3xf32>, tensor<2x4x3xi32>, tensor<2x4x6xf32>, tensor<2x4xf32>, tensor<2x4x3xi32>, tensor<6xi32>)
  return
}

// -----

func.func @f(%x: tensor<2x4x6xf32>) {
  // expected-error@+2 {{`experts` has 6 experts; `top` must be 1 to 6, got 0}}
  // expected-error@+1 {{failed to infer returned types}}
  %y:6 = nn.route %x {top = 0}
      : (tensor<2x4x6xf32>) -> (tensor<2x4x3xf32>, tensor<2x4x3xi32>, tensor<2x4x6xf32>, tensor<2x4xf32>, tensor<2x4x3xi32>, tensor<6xi32>)
  return
}

// -----

func.func @f(%x: tensor<2x4x6xf32>) {
  // expected-error@+2 {{`over` is "sequence" or "microbatch", got "step"}}
  // expected-error@+1 {{failed to infer returned types}}
  %y:6 = nn.route %x {top = 3, over = "step"}
      : (tensor<2x4x6xf32>) -> (tensor<2x4x3xf32>, tensor<2x4x3xi32>, tensor<2x4x6xf32>, tensor<2x4xf32>, tensor<2x4x3xi32>, tensor<6xi32>)
  return
}

// -----

func.func @f(%x: tensor<2x4x6xf32>) {
  // expected-error@+2 {{`score` is "softmax", "sigmoid" or "sparsemixer", got "relu"}}
  // expected-error@+1 {{failed to infer returned types}}
  %y:6 = nn.route %x {top = 3, score = "relu"}
      : (tensor<2x4x6xf32>) -> (tensor<2x4x3xf32>, tensor<2x4x3xi32>, tensor<2x4x6xf32>, tensor<2x4xf32>, tensor<2x4x3xi32>, tensor<6xi32>)
  return
}

// -----

// Sigmoids have no sum whose log could be held small.
func.func @f(%x: tensor<2x4x6xf32>) {
  // expected-error@+2 {{`z` is a loss of routers with `score = "softmax"`, got 1.000000e-01 with "sigmoid"}}
  // expected-error@+1 {{failed to infer returned types}}
  %y:6 = nn.route %x {top = 3, score = "sigmoid", z = 0.1}
      : (tensor<2x4x6xf32>) -> (tensor<2x4x3xf32>, tensor<2x4x3xi32>, tensor<2x4x6xf32>, tensor<2x4xf32>, tensor<2x4x3xi32>, tensor<6xi32>)
  return
}

// -----

func.func @f(%x: tensor<2x4x6xf32>) {
  // expected-error@+2 {{`group_by` is "pair" or "largest", got "mean"}}
  // expected-error@+1 {{failed to infer returned types}}
  %y:6 = nn.route %x {top = 3, groups = 3, group_by = "mean"}
      : (tensor<2x4x6xf32>) -> (tensor<2x4x3xf32>, tensor<2x4x3xi32>, tensor<2x4x6xf32>, tensor<2x4xf32>, tensor<2x4x3xi32>, tensor<6xi32>)
  return
}

// -----

// The largest of a group is there with one expert, too.
func.func @f(%x: tensor<2x4x6xf32>) {
  // expected-error@+2 {{`groups` must divide 6 experts in groups of at least 1, got 4}}
  // expected-error@+1 {{failed to infer returned types}}
  %y:6 = nn.route %x {top = 3, groups = 4, group_by = "largest"}
      : (tensor<2x4x6xf32>) -> (tensor<2x4x3xf32>, tensor<2x4x3xi32>, tensor<2x4x6xf32>, tensor<2x4xf32>, tensor<2x4x3xi32>, tensor<6xi32>)
  return
}

// -----

func.func @f(%x: tensor<2x4x6xf32>) {
  // expected-error@+2 {{`added` is of the sum by which `renormalise = true` divides, got 1.000000e-06 without it}}
  // expected-error@+1 {{failed to infer returned types}}
  %y:6 = nn.route %x {top = 3, added = 1.0e-6}
      : (tensor<2x4x6xf32>) -> (tensor<2x4x3xf32>, tensor<2x4x3xi32>, tensor<2x4x6xf32>, tensor<2x4xf32>, tensor<2x4x3xi32>, tensor<6xi32>)
  return
}

// -----

func.func @f(%x: tensor<2x4x6xf32>) {
  // expected-error@+2 {{`least` is of the sum by which `renormalise = true` divides, got 1.000000e-12 without it}}
  // expected-error@+1 {{failed to infer returned types}}
  %y:6 = nn.route %x {top = 3, least = 1.0e-12}
      : (tensor<2x4x6xf32>) -> (tensor<2x4x3xf32>, tensor<2x4x3xi32>, tensor<2x4x6xf32>, tensor<2x4xf32>, tensor<2x4x3xi32>, tensor<6xi32>)
  return
}

// -----

// Groups are equal, and have two experts at least.
func.func @f(%x: tensor<2x4x6xf32>) {
  // expected-error@+2 {{`groups` must divide 6 experts in groups of at least 2, got 4}}
  // expected-error@+1 {{failed to infer returned types}}
  %y:6 = nn.route %x {top = 3, groups = 4}
      : (tensor<2x4x6xf32>) -> (tensor<2x4x3xf32>, tensor<2x4x3xi32>, tensor<2x4x6xf32>, tensor<2x4xf32>, tensor<2x4x3xi32>, tensor<6xi32>)
  return
}

// -----

func.func @f(%x: tensor<2x4x6xf32>) {
  // expected-error@+2 {{`groups` must divide 6 experts in groups of at least 2, got 6}}
  // expected-error@+1 {{failed to infer returned types}}
  %y:6 = nn.route %x {top = 3, groups = 6}
      : (tensor<2x4x6xf32>) -> (tensor<2x4x3xf32>, tensor<2x4x3xi32>, tensor<2x4x6xf32>, tensor<2x4xf32>, tensor<2x4x3xi32>, tensor<6xi32>)
  return
}

// -----

func.func @f(%x: tensor<2x4x6xf32>) {
  // expected-error@+2 {{`top_groups` must be 1 to 3 groups with at least 3 experts together, got 1}}
  // expected-error@+1 {{failed to infer returned types}}
  %y:6 = nn.route %x {top = 3, groups = 3}
      : (tensor<2x4x6xf32>) -> (tensor<2x4x3xf32>, tensor<2x4x3xi32>, tensor<2x4x6xf32>, tensor<2x4xf32>, tensor<2x4x3xi32>, tensor<6xi32>)
  return
}

// -----

func.func @f(%x: tensor<2x4x6xf32>) {
  // expected-error@+2 {{`top_groups` must be 1 to 1 groups with at least 3 experts together, got 2}}
  // expected-error@+1 {{failed to infer returned types}}
  %y:6 = nn.route %x {top = 3, top_groups = 2}
      : (tensor<2x4x6xf32>) -> (tensor<2x4x3xf32>, tensor<2x4x3xi32>, tensor<2x4x6xf32>, tensor<2x4xf32>, tensor<2x4x3xi32>, tensor<6xi32>)
  return
}

// -----

func.func @f(%x: tensor<2x4x6xf32>, %b: tensor<5xf32>) {
  // expected-error@+2 {{`experts` expects bias as a number for each of 6 experts, got 'tensor<5xf32>'}}
  // expected-error@+1 {{failed to infer returned types}}
  %y:6 = nn.route %x bias %b {top = 3}
      : (tensor<2x4x6xf32>, tensor<5xf32>) -> (tensor<2x4x3xf32>, tensor<2x4x3xi32>, tensor<2x4x6xf32>, tensor<2x4xf32>, tensor<2x4x3xi32>, tensor<6xi32>)
  return
}

// -----

func.func @f(%x: tensor<2x4x6xf32>, %b: tensor<6xf64>) {
  // expected-error@+2 {{`experts` expects bias as a number for each of 6 experts, got 'tensor<6xf64>'}}
  // expected-error@+1 {{failed to infer returned types}}
  %y:6 = nn.route %x bias %b {top = 3}
      : (tensor<2x4x6xf32>, tensor<6xf64>) -> (tensor<2x4x3xf32>, tensor<2x4x3xi32>, tensor<2x4x6xf32>, tensor<2x4xf32>, tensor<2x4x3xi32>, tensor<6xi32>)
  return
}

// -----

func.func @f(%dw: tensor<2x4x3xf32>, %sel: tensor<2x4x3xi32>, %p: tensor<2x4x6xf32>) {
  // expected-error@+2 {{`route_bwd` expects groups that divide 8 tokens, got 3}}
  // expected-error@+1 {{failed to infer returned types}}
  %y = nn.route_bwd %dw, %dw, %sel, %p {group = 3}
      : (tensor<2x4x3xf32>, tensor<2x4x3xf32>, tensor<2x4x3xi32>, tensor<2x4x6xf32>) -> tensor<2x4x6xf32>
  return
}

// -----

func.func @f(%dw: tensor<2x4x3xf32>, %sel: tensor<2x4x2xi32>, %p: tensor<2x4x6xf32>) {
  // expected-error@+2 {{`route_bwd` expects w's elements 24 to be sel's, got 16}}
  // expected-error@+1 {{failed to infer returned types}}
  %y = nn.route_bwd %dw, %dw, %sel, %p {group = 4}
      : (tensor<2x4x3xf32>, tensor<2x4x3xf32>, tensor<2x4x2xi32>, tensor<2x4x6xf32>) -> tensor<2x4x6xf32>
  return
}

// -----

// Choices are those of the tokens that are there.
func.func @f(%c: tensor<6xi32>) {
  // expected-error@+2 {{`expert_load` expects i32 [experts] and `top` choices of each token, got 'tensor<6xi32>' and 0}}
  // expected-error@+1 {{failed to infer returned types}}
  %y = nn.expert_load %c {top = 0, sum = f32} : (tensor<6xi32>) -> tensor<6xf32>
  return
}

// -----

func.func @f(%x: tensor<2x4x8xf32>, %p: tensor<2x12xi32>) {
  // expected-error@+2 {{`dispatch` expects places to be i32 [batch, length, top], got 'tensor<2x12xi32>'}}
  // expected-error@+1 {{failed to infer returned types}}
  %y = nn.dispatch %x, %p : (tensor<2x4x8xf32>, tensor<2x12xi32>) -> tensor<2x12x8xf32>
  return
}

// -----

func.func @f(%x: tensor<2x12x8xf32>, %p: tensor<2x4x2xi32>) {
  // expected-error@+2 {{`combine` expects rows' number 24 to be places', got 16}}
  // expected-error@+1 {{failed to infer returned types}}
  %y = nn.combine %x, %p : (tensor<2x12x8xf32>, tensor<2x4x2xi32>) -> tensor<2x4x8xf32>
  return
}

// -----

func.func @f(%x: tensor<2x12x8xf32>, %w: tensor<5x8x4xf32>, %c: tensor<6xi32>) {
  // expected-error@+2 {{`expert_linear` expects the router's experts 6 to be w's, got 5}}
  // expected-error@+1 {{failed to infer returned types}}
  %y = nn.expert_linear %x, %w, %c : (tensor<2x12x8xf32>, tensor<5x8x4xf32>, tensor<6xi32>) -> tensor<2x12x4xf32>
  return
}

// -----

func.func @f(%x: tensor<2x12x8xf32>, %w: tensor<6x4x8xf32>, %c: tensor<6xi32>) {
  // expected-error@+2 {{`expert_linear` expects x's width 8 to be w's rows, got 4}}
  // expected-error@+1 {{failed to infer returned types}}
  %y = nn.expert_linear %x, %w, %c : (tensor<2x12x8xf32>, tensor<6x4x8xf32>, tensor<6xi32>) -> tensor<2x12x8xf32>
  return
}

// -----

func.func @f(%x: tensor<2x12x8xf32>, %b: tensor<5x8xf32>, %c: tensor<6xi32>) {
  // expected-error@+2 {{`expert_bias` expects the router's experts 6 to be the bias's, got 5}}
  // expected-error@+1 {{failed to infer returned types}}
  %y = nn.expert_bias %x, %b, %c : (tensor<2x12x8xf32>, tensor<5x8xf32>, tensor<6xi32>) -> tensor<2x12x8xf32>
  return
}

// -----

func.func @f(%x: tensor<2x12x8xf32>, %b: tensor<6x4xf32>, %c: tensor<6xi32>) {
  // expected-error@+2 {{`expert_bias` expects x's width 8 to be the bias's, got 4}}
  // expected-error@+1 {{failed to infer returned types}}
  %y = nn.expert_bias %x, %b, %c : (tensor<2x12x8xf32>, tensor<6x4xf32>, tensor<6xi32>) -> tensor<2x12x8xf32>
  return
}

// -----

func.func @f(%x: tensor<1x24x8xf32>, %c: tensor<5x6xi32>) {
  // expected-error@+2 {{`expert_bias_dw` expects 5 equal sections of rows, got 'tensor<1x24x8xf32>'}}
  // expected-error@+1 {{failed to infer returned types}}
  %y = nn.expert_bias_dw %x, %c : (tensor<1x24x8xf32>, tensor<5x6xi32>) -> tensor<6x8xf32>
  return
}

// -----

func.func @f(%x: tensor<2x12x8xf32>, %w: tensor<6x8x4xf32>, %c: tensor<1x1x6xi32>) {
  // expected-error@+2 {{`expert_linear` expects counts to be i32 [experts] or [sections, experts], got 'tensor<1x1x6xi32>'}}
  // expected-error@+1 {{failed to infer returned types}}
  %y = nn.expert_linear %x, %w, %c : (tensor<2x12x8xf32>, tensor<6x8x4xf32>, tensor<1x1x6xi32>) -> tensor<2x12x4xf32>
  return
}

// -----

func.func @f(%x: tensor<1x24x8xf32>, %w: tensor<6x8x4xf32>, %c: tensor<5x6xi32>) {
  // expected-error@+2 {{`expert_linear` expects 5 equal sections of rows, got 'tensor<1x24x8xf32>'}}
  // expected-error@+1 {{failed to infer returned types}}
  %y = nn.expert_linear %x, %w, %c : (tensor<1x24x8xf32>, tensor<6x8x4xf32>, tensor<5x6xi32>) -> tensor<1x24x4xf32>
  return
}

// -----

func.func @f(%x: tensor<1x20x8xf32>, %p: tensor<2x4x3xi32>) {
  // expected-error@+2 {{`combine` expects rows' number 20 to be the sections', got 32}}
  // expected-error@+1 {{failed to infer returned types}}
  %y = nn.combine %x, %p {sections = #nn.sections<2 most 2>} : (tensor<1x20x8xf32>, tensor<2x4x3xi32>) -> tensor<2x4x8xf32>
  return
}

// -----

// expected-error@below {{expected a capacity of at least 1, got 5.000000e-01}}
func.func @f(%x: tensor<1x20x8xf32>) attributes {pp.a = #nn.sections<2 most 2 capacity 0.5>} { return }

// -----

func.func @f(%x: tensor<2x12x6xf32>) {
  // expected-error@+2 {{`capacity` is how much room there is, in shares of the mean: at least 1, or 0 for all that could come; got 5.000000e-01}}
  // expected-error@+1 {{failed to infer returned types}}
  %w, %s, %p, %l, %q, %c = nn.route %x {top = 2, capacity = 0.5} : (tensor<2x12x6xf32>) -> (tensor<2x12x2xf32>, tensor<2x12x2xi32>, tensor<2x12x6xf32>, tensor<2x12xf32>, tensor<2x12x2xi32>, tensor<6xi32>)
  return
}

// -----

func.func @f(%w: tensor<2x4x2xf32>, %p: tensor<2x4x3xi32>) {
  // expected-error@+2 {{`place_weights` expects w's elements 16 to be places', got 24}}
  // expected-error@+1 {{failed to infer returned types}}
  %y = nn.place_weights %w, %p {sections = #nn.sections<2 most 2>} : (tensor<2x4x2xf32>, tensor<2x4x3xi32>) -> tensor<1x24xf32>
  return
}

// -----

func.func @f(%a: tensor<1x24x8xf32>, %w: tensor<1x20xf32>) {
  // expected-error@+2 {{`scale_rows` expects the rows 24 to be w's elements, got 20}}
  // expected-error@+1 {{failed to infer returned types}}
  %y = nn.scale_rows %a, %w : (tensor<1x24x8xf32>, tensor<1x20xf32>) -> tensor<1x24x8xf32>
  return
}

// -----

func.func @f(%x: tensor<1x22x8xf32>) {
  // expected-error@+2 {{`exchange_sections` expects equal sections for 4 devices, got 'tensor<1x22x8xf32>'}}
  // expected-error@+1 {{failed to infer returned types}}
  %y = nn.exchange_sections %x over <expert> {members = 4} : (tensor<1x22x8xf32>) -> tensor<1x22x8xf32>
  return
}

// -----

func.func @f(%x: tensor<2x12x6xf32>) {
  // expected-error@+2 {{`experts` has 6 experts; 4 sections do not divide them}}
  // expected-error@+1 {{failed to infer returned types}}
  %w, %s, %p, %l, %q, %c = nn.route %x {top = 2, sections = #nn.sections<4 most 1>} : (tensor<2x12x6xf32>) -> (tensor<2x12x2xf32>, tensor<2x12x2xi32>, tensor<2x12x6xf32>, tensor<2x12xf32>, tensor<2x12x2xi32>, tensor<4x1xi32>)
  return
}

// -----

func.func @f(%x: tensor<2x12x8xf32>, %w: tensor<6x8x4xf32>, %c: tensor<6xi32>) {
  // expected-error@+2 {{`expert_linear_dx` expects dy's width 8 to be w's columns, got 4}}
  // expected-error@+1 {{failed to infer returned types}}
  %y = nn.expert_linear_dx %x, %w, %c : (tensor<2x12x8xf32>, tensor<6x8x4xf32>, tensor<6xi32>) -> tensor<2x12x8xf32>
  return
}

// -----

func.func @f(%x: tensor<2x12x8xf32>, %d: tensor<2x4x8xf32>, %c: tensor<6xi32>) {
  // expected-error@+2 {{`expert_linear_dw` expects x's rows 24 to be dy's, got 8}}
  // expected-error@+1 {{failed to infer returned types}}
  %y = nn.expert_linear_dw %x, %d, %c : (tensor<2x12x8xf32>, tensor<2x4x8xf32>, tensor<6xi32>) -> tensor<6x8x8xf32>
  return
}

// -----

func.func @f(%a: tensor<2x12x8xf32>, %w: tensor<2x4x3xf64>, %p: tensor<2x4x3xi32>) {
  // expected-error@+2 {{`scale_rows` expects w as 'tensor<2x4x3xf32>', got 'tensor<2x4x3xf64>'}}
  // expected-error@+1 {{failed to infer returned types}}
  %y = nn.scale_rows %a, %w, %p : (tensor<2x12x8xf32>, tensor<2x4x3xf64>, tensor<2x4x3xi32>) -> tensor<2x12x8xf32>
  return
}

// -----

func.func @f(%a: tensor<2x12x8xf32>, %w: tensor<2x4x3xf32>, %p: tensor<2x4x2xi32>) {
  // expected-error@+2 {{`scale_rows_bwd` expects the rows 24 to be places', got 16}}
  // expected-error@+1 {{failed to infer returned types}}
  %y:2 = nn.scale_rows_bwd %a, %a, %w, %p
      : (tensor<2x12x8xf32>, tensor<2x12x8xf32>, tensor<2x4x3xf32>, tensor<2x4x2xi32>) -> (tensor<2x12x8xf32>, tensor<2x4x3xf32>)
  return
}

// -----

func.func @f(%g: tensor<6xf32>, %w: tensor<6xf32>) {
  // expected-error@+2 {{`steer` expects a rate of at least 0, got -1}}
  // expected-error@+1 {{failed to infer returned types}}
  %y = nn.steer %g into %w {rate = -1.0} : (tensor<6xf32>, tensor<6xf32>) -> tensor<6xf32>
  return
}

// -----

func.func @f(%g: tensor<6xf32>, %w: tensor<6xbf16>) {
  // expected-error@+2 {{`steer` expects a master copy for a weight of 16 bits, and only for one}}
  // expected-error@+1 {{failed to infer returned types}}
  %y = nn.steer %g into %w {rate = 1.0} : (tensor<6xf32>, tensor<6xbf16>) -> tensor<6xbf16>
  return
}

// -----

// expected-error@+1 {{`b` is steered by -1.000000e+00; expected a rate of at least 0}}
func.func private @part(%b: tensor<6xf32> {nn.weight = #nn.weight<"b" zero steer -1.0>})

// -----

func.func @f(%s: tensor<2x4x2xi32>) {
  // expected-error@+2 {{`choice_counts` expects groups that divide 8 tokens, got 3}}
  // expected-error@+1 {{failed to infer returned types}}
  %y = nn.choice_counts %s {group = 3, experts = 6, sum = f32} : (tensor<2x4x2xi32>) -> tensor<2x6xf32>
  return
}

// -----

// The counts of two groups where there are four.
func.func @f(%w: tensor<2x4x2xf32>, %s: tensor<2x4x2xi32>, %p: tensor<2x4x6xf32>, %c: tensor<2x6xf32>) {
  // expected-error@+2 {{`route_bwd` expects often as 'tensor<4x6xf32>', got 'tensor<2x6xf32>'}}
  // expected-error@+1 {{failed to infer returned types}}
  %y = nn.route_bwd %w, %w, %s, %p often %c {group = 2}
      : (tensor<2x4x2xf32>, tensor<2x4x2xf32>, tensor<2x4x2xi32>, tensor<2x4x6xf32>, tensor<2x6xf32>) -> tensor<2x4x6xf32>
  return
}

// -----

func.func @three_choices(%x: tensor<2x4x6xf32>) {
  // expected-error@+2 {{`score = "sparsemixer"` has 2 choices of each token; `top` is 3}}
  // expected-error@+1 {{failed to infer returned types}}
  %y:6 = nn.route %x {top = 3, score = "sparsemixer"} : (tensor<2x4x6xf32>)
      -> (tensor<2x4x3xf32>, tensor<2x4x3xi32>, tensor<2x4x6xf32>, tensor<2x4xf32>, tensor<2x4x3xi32>, tensor<6xi32>)
  return
}

// -----

func.func @mixer_with_a_balance(%x: tensor<2x4x6xf32>) {
  // expected-error@+2 {{`balance` and `z` are losses of routers with another `score` than "sparsemixer"}}
  // expected-error@+1 {{failed to infer returned types}}
  %y:6 = nn.route %x {top = 2, score = "sparsemixer", balance = 0.1} : (tensor<2x4x6xf32>)
      -> (tensor<2x4x2xf32>, tensor<2x4x2xi32>, tensor<2x4x6xf32>, tensor<2x4xf32>, tensor<2x4x2xi32>, tensor<6xi32>)
  return
}

// -----

func.func @mixer_with_sums(%x: tensor<2x4x6xf32>) {
  // expected-error@+2 {{`score = "sparsemixer"` is without a bias, `groups`, `renormalise` and `identity`}}
  // expected-error@+1 {{failed to infer returned types}}
  %y:6 = nn.route %x {top = 2, score = "sparsemixer", renormalise = true} : (tensor<2x4x6xf32>)
      -> (tensor<2x4x2xf32>, tensor<2x4x2xi32>, tensor<2x4x6xf32>, tensor<2x4xf32>, tensor<2x4x2xi32>, tensor<6xi32>)
  return
}

// -----

func.func @nothing_but_identities(%x: tensor<2x4x6xf32>) {
  // expected-error@+2 {{`identity` must be less than the 6 experts of the router, got 6}}
  // expected-error@+1 {{failed to infer returned types}}
  %y:6 = nn.route %x {top = 2, identity = 6} : (tensor<2x4x6xf32>)
      -> (tensor<2x4x2xf32>, tensor<2x4x2xi32>, tensor<2x4x6xf32>, tensor<2x4xf32>, tensor<2x4x2xi32>, tensor<0xi32>)
  return
}

// -----

func.func @identities_with_a_capacity(%x: tensor<2x4x6xf32>) {
  // expected-error@+2 {{`capacity` with `identity` is not built yet: it is counted in choices of all experts}}
  // expected-error@+1 {{failed to infer returned types}}
  %y:6 = nn.route %x {top = 2, identity = 2, capacity = 1.5} : (tensor<2x4x6xf32>)
      -> (tensor<2x4x2xf32>, tensor<2x4x2xi32>, tensor<2x4x6xf32>, tensor<2x4xf32>, tensor<2x4x2xi32>, tensor<4xi32>)
  return
}

// -----

func.func @identities_of_no_choices(%w: tensor<2x4x3xf32>, %s: tensor<2x4x2xi32>) {
  // expected-error@+2 {{`identity_weights` expects w as 'tensor<2x4x2xf32>', got 'tensor<2x4x3xf32>'}}
  // expected-error@+1 {{failed to infer returned types}}
  %u = nn.identity_weights %w, %s {experts = 4} : (tensor<2x4x3xf32>, tensor<2x4x2xi32>) -> tensor<2x4xf32>
  return
}
