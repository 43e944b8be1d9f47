// Wrong shapes and options, each with its message.
// RUN: pp-opt %s --split-input-file --verify-diagnostics

func.func @width(%x: tensor<2x8x128xf32>, %w: tensor<256x64xf32>) {
  // expected-error@+2 {{`linear` expects x's width 128 to be w's rows, got 256}}
  // expected-error@+1 {{failed to infer returned types}}
  %y = nn.linear %x, %w : (tensor<2x8x128xf32>, tensor<256x64xf32>) -> tensor<2x8x64xf32>
  return
}

// -----

func.func @transposed(%x: tensor<2x8x128xf32>, %w: tensor<128x64xf32>) {
  // expected-error@+2 {{`linear` expects x's width 128 to be w's columns, got 64}}
  // expected-error@+1 {{failed to infer returned types}}
  %y = nn.linear %x, %w {transposed = true} : (tensor<2x8x128xf32>, tensor<128x64xf32>) -> tensor<2x8x64xf32>
  return
}

// -----

func.func @bias(%x: tensor<2x8x16xf32>, %w: tensor<16x64xf32>, %b: tensor<16xf32>) {
  // expected-error@+2 {{`linear` expects w's width 64 to be the bias's, got 16}}
  // expected-error@+1 {{failed to infer returned types}}
  %y = nn.linear %x, %w bias %b : (tensor<2x8x16xf32>, tensor<16x64xf32>, tensor<16xf32>) -> tensor<2x8x64xf32>
  return
}

// -----

func.func @element(%x: tensor<2x8x16xf32>, %w: tensor<16x64xbf16>) {
  // expected-error@+2 {{`linear` expects x and w of one element type, got 'f32' and 'bf16'}}
  // expected-error@+1 {{failed to infer returned types}}
  %y = nn.linear %x, %w : (tensor<2x8x16xf32>, tensor<16x64xbf16>) -> tensor<2x8x64xf32>
  return
}

// -----

func.func @result(%x: tensor<2x8x16xf32>, %w: tensor<16x64xf32>) {
  // expected-error@+2 {{failed to infer returned types}}
  // expected-error@+1 {{inferred type(s) 'tensor<2x8x64xf32>' are incompatible with return type(s)}}
  %y = nn.linear %x, %w : (tensor<2x8x16xf32>, tensor<16x64xf32>) -> tensor<2x8x32xf32>
  return
}

// -----

func.func @gain(%x: tensor<2x8x16xf32>, %g: tensor<8xf32>) {
  // expected-error@+2 {{`rmsnorm` expects x's width 16 to be the gain's width, got 8}}
  // expected-error@+1 {{failed to infer returned types}}
  %y, %r = nn.rmsnorm %x, %g : (tensor<2x8x16xf32>, tensor<8xf32>) -> (tensor<2x8x16xf32>, tensor<2x8xf32>)
  return
}

// -----

func.func @heads(%x: tensor<2x8x16xf32>) {
  // expected-error@+2 {{`rope` expects x's width to be a multiple of 3 heads, got 16}}
  // expected-error@+1 {{failed to infer returned types}}
  %y = nn.rope %x {heads = 3 : i64} : (tensor<2x8x16xf32>) -> tensor<2x8x16xf32>
  return
}

// -----

func.func @style(%x: tensor<2x8x16xf32>) {
  // expected-error@+2 {{`rope` expects the style "half" or "pair", got "quarter"}}
  // expected-error@+1 {{failed to infer returned types}}
  %y = nn.rope %x {heads = 4 : i64, style = "quarter"} : (tensor<2x8x16xf32>) -> tensor<2x8x16xf32>
  return
}

// -----

func.func @groups(%q: tensor<2x8x16xf32>, %k: tensor<2x8x12xf32>) {
  // expected-error@+2 {{`attention` expects heads to be a multiple of kv_heads, got 4 and 3}}
  // expected-error@+1 {{failed to infer returned types}}
  %o, %l = nn.attention %q, %k, %k {heads = 4 : i64, kv_heads = 3 : i64}
      : (tensor<2x8x16xf32>, tensor<2x8x12xf32>, tensor<2x8x12xf32>) -> (tensor<2x8x16xf32>, tensor<2x4x8xf32>)
  return
}

// -----

func.func @thirds(%x: tensor<2x8x16xf32>) {
  // expected-error@+2 {{`split` expects x's width to be a multiple of 3 parts, got 16}}
  // expected-error@+1 {{failed to infer returned types}}
  %a, %b, %c = nn.split %x {parts = 3 : i64} : (tensor<2x8x16xf32>) -> (tensor<2x8x5xf32>, tensor<2x8x5xf32>, tensor<2x8x5xf32>)
  return
}

// -----

func.func @context(%tokens: tensor<2x8xi32>, %table: tensor<4x16xf32>) {
  // expected-error@+2 {{`positions` expects a table of at least 8 positions, got 4}}
  // expected-error@+1 {{failed to infer returned types}}
  %x = nn.positions %tokens, %table : (tensor<2x8xi32>, tensor<4x16xf32>) -> tensor<2x8x16xf32>
  return
}

// -----

func.func @sum(%x: tensor<2x8x16xbf16>, %acc: tensor<16x16xbf16>) {
  // expected-error@+2 {{`linear_dw` adds 'tensor<16x16xf32>' into a tensor of another type 'tensor<16x16xbf16>'}}
  // expected-error@+1 {{failed to infer returned types}}
  %y = nn.linear_dw %x, %x into %acc : (tensor<2x8x16xbf16>, tensor<2x8x16xbf16>, tensor<16x16xbf16>) -> tensor<16x16xf32>
  return
}

// -----

func.func @master(%w: tensor<16xbf16>, %g: tensor<16xf32>) {
  // expected-error@+2 {{`adamw` expects a master copy for a bf16 weight, and only for one}}
  // expected-error@+1 {{failed to infer returned types}}
  %a, %b, %c = nn.adamw %g into %w, %g, %g : (tensor<16xf32>, tensor<16xbf16>, tensor<16xf32>, tensor<16xf32>)
      -> (tensor<16xbf16>, tensor<16xf32>, tensor<16xf32>)
  return
}
