// What is wrong in a formula is said: axes, widths, heads, foreign ops, and what is given.
// RUN: pp-opt %s --split-input-file --verify-diagnostics

func.func private @axes(%x: tensor<2x8x64xf32>) {
  // expected-error @+2 {{`map` reads "thd", "th", "t", "hd", "d", "h" or "", got "td"}}
  // expected-error @+1 {{failed to infer returned types}}
  %y = nn.map reads(%x: "td") makes("thd") heads 1 {
  ^bb0(%a: f32):
    nn.give %a : f32
  } : (tensor<2x8x64xf32>) -> tensor<2x8x64xf32>
  return
}

// -----

func.func private @widths(%x: tensor<2x8x64xf32>, %g: tensor<32xf32>) {
  // expected-error @+2 {{`map` reads tensors of one width, got 64 and as tensor 1 32}}
  // expected-error @+1 {{failed to infer returned types}}
  %y = nn.map reads(%x: "thd", %g: "hd") makes("thd") heads 1 {
  ^bb0(%a: f32, %b: f32):
    nn.give %a : f32
  } : (tensor<2x8x64xf32>, tensor<32xf32>) -> tensor<2x8x64xf32>
  return
}

// -----

func.func private @heads(%x: tensor<2x8x64xf32>, %s: tensor<5xf32>) {
  // expected-error @+2 {{`map` expects tensor 1 "h" with a number for each of 4 heads, got 'tensor<5xf32>'}}
  // expected-error @+1 {{failed to infer returned types}}
  %y = nn.map reads(%x: "thd", %s: "h") makes("thd") heads 4 {
  ^bb0(%a: f32, %b: f32):
    nn.give %a : f32
  } : (tensor<2x8x64xf32>, tensor<5xf32>) -> tensor<2x8x64xf32>
  return
}

// -----

func.func private @dimensions(%x: tensor<2x8xf32>) {
  // expected-error @+2 {{`map` expects tensor 0 "thd" with 3 dimensions, got 'tensor<2x8xf32>'}}
  // expected-error @+1 {{failed to infer returned types}}
  %y = nn.map reads(%x: "thd") makes("thd") heads 1 {
  ^bb0(%a: f32):
    nn.give %a : f32
  } : (tensor<2x8xf32>) -> tensor<2x8x64xf32>
  return
}

// -----

func.func private @sums(%x: tensor<2x8x64xbf16>) {
  // expected-error @+1 {{expects a region with an argument 'f32' for each of 1 tensors}}
  %y = nn.map reads(%x: "thd") makes("thd") heads 1 {
  ^bb0(%a: bf16):
    nn.give %a : bf16
  } : (tensor<2x8x64xbf16>) -> tensor<2x8x64xbf16>
  return
}

// -----

func.func private @foreign(%x: tensor<2x8x64xf32>) {
  %y = nn.map reads(%x: "thd") makes("thd") heads 1 {
  ^bb0(%a: f32):
    // expected-error @+1 {{is no op of formulas}}
    %b = math.sin %a : f32
    nn.give %b : f32
  } : (tensor<2x8x64xf32>) -> tensor<2x8x64xf32>
  return
}

// -----

func.func private @reduction(%x: tensor<2x8x64xf32>) {
  %y = nn.map reads(%x: "thd") makes("thd") heads 1 {
  ^bb0(%a: f32):
    // expected-error @+1 {{is no op of formulas}}
    %b = nn.reduce "median" "hd" %a : f32
    nn.give %b : f32
  } : (tensor<2x8x64xf32>) -> tensor<2x8x64xf32>
  return
}

// -----

func.func private @over(%x: tensor<2x8x64xf32>) {
  %y = nn.map reads(%x: "thd") makes("thd") heads 1 {
  ^bb0(%a: f32):
    // expected-error @+1 {{expects to go over "hd", "d" or "h", got "t"}}
    %b = nn.reduce "sum" "t" %a : f32
    nn.give %b : f32
  } : (tensor<2x8x64xf32>) -> tensor<2x8x64xf32>
  return
}

// -----

func.func private @given(%x: tensor<2x8x64xf32>) {
  // expected-error @+1 {{makes "t" as tensor 0, and its value has "thd"}}
  %y = nn.map reads(%x: "thd") makes("t") heads 1 {
  ^bb0(%a: f32):
    nn.give %a : f32
  } : (tensor<2x8x64xf32>) -> tensor<2x8xf32>
  return
}

// -----

func.func private @types(%x: tensor<2x8x64xbf16>) {
  // expected-error @+2 {{failed to infer returned types}}
  // expected-error @+1 {{inferred type(s) 'tensor<2x8xf32>' are incompatible with return type(s) of operation 'tensor<2x8xbf16>'}}
  %y = nn.map reads(%x: "thd") makes("t") heads 1 {
  ^bb0(%a: f32):
    %b = nn.reduce "sum" "hd" %a : f32
    nn.give %b : f32
  } : (tensor<2x8x64xbf16>) -> tensor<2x8xbf16>
  return
}

// -----

// The ops of a region stand in a map alone.
func.func private @outside(%a: f32) {
  // expected-error @+1 {{expects parent op 'nn.map'}}
  %b = nn.sigmoid %a : f32
  return
}
