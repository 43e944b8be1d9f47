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

func.func @splits_what(%x: tensor<2x8x16xf32>) {
  // expected-error@+2 {{`split` expects a number of parts, or widths}}
  // expected-error@+1 {{op failed to infer returned types}}
  %a, %b = nn.split %x : (tensor<2x8x16xf32>) -> (tensor<2x8x8xf32>, tensor<2x8x8xf32>)
  return
}

// -----

func.func @splits_widths(%x: tensor<2x8x16xf32>) {
  // expected-error@+2 {{`split` expects all widths together 7 to be x's width in a period, got 8}}
  // expected-error@+1 {{op failed to infer returned types}}
  %a, %b = nn.split %x {periods = 2 : i64, widths = array<i64: 4, 3>} : (tensor<2x8x16xf32>) -> (tensor<2x8x8xf32>, tensor<2x8x6xf32>)
  return
}

// -----

func.func @splits_periods(%x: tensor<2x8x16xf32>) {
  // expected-error@+2 {{`split` expects x's width to be a multiple of 3 periods, got 16}}
  // expected-error@+1 {{op failed to infer returned types}}
  %a, %b = nn.split %x {parts = 2 : i64, periods = 3 : i64} : (tensor<2x8x16xf32>) -> (tensor<2x8x8xf32>, tensor<2x8x8xf32>)
  return
}

// -----

func.func @joins_periods(%x: tensor<2x8x16xf32>, %y: tensor<2x8x3xf32>) {
  // expected-error@+2 {{`concat` expects y's width to be a multiple of 4 periods, got 3}}
  // expected-error@+1 {{op failed to infer returned types}}
  %a = nn.concat %x, %y {periods = 4 : i64} : (tensor<2x8x16xf32>, tensor<2x8x3xf32>) -> tensor<2x8x19xf32>
  return
}

// -----

func.func @joins_shared(%x: tensor<2x8x16xf32>, %y: tensor<2x8x3xf32>) {
  // expected-error@+2 {{`concat` expects x's width to be a multiple of 3 periods, got 16}}
  // expected-error@+1 {{op failed to infer returned types}}
  %a = nn.concat %x, %y {periods = 3 : i64, shared = true} : (tensor<2x8x16xf32>, tensor<2x8x3xf32>) -> tensor<2x8x25xf32>
  return
}

// -----

func.func @pads_periods(%x: tensor<2x8x16xf32>) {
  // expected-error@+2 {{`pad` expects x's width to be a multiple of 3 periods, got 16}}
  // expected-error@+1 {{op failed to infer returned types}}
  %a = nn.pad %x {columns = 1 : i64, periods = 3 : i64} : (tensor<2x8x16xf32>) -> tensor<2x8x19xf32>
  return
}

// -----

func.func @pads_nothing(%x: tensor<2x8x16xf32>) {
  // expected-error@+2 {{`pad` expects at least 1 column, got 0}}
  // expected-error@+1 {{op failed to infer returned types}}
  %a = nn.pad %x {columns = 0 : i64} : (tensor<2x8x16xf32>) -> tensor<2x8x16xf32>
  return
}

// -----

func.func @sums_beyond_a_period(%x: tensor<2x8x16xf32>) {
  // expected-error@+2 {{`sum_columns` expects columns of periods of a tensor 16 wide, got 3 to 5}}
  // expected-error@+1 {{op failed to infer returned types}}
  %a = nn.sum_columns %x {periods = 4 : i64, start = 3 : i64, width = 2 : i64} : (tensor<2x8x16xf32>) -> tensor<2x8x2xf32>
  return
}

// -----

func.func @places_zeros(%x: tensor<2x8x8xf32>, %y: tensor<2x8x16xf32>) {
  // expected-error@+2 {{`place_columns` has `zeros` or `acc`, not both}}
  // expected-error@+1 {{op failed to infer returned types}}
  %a = nn.place_columns %x into %y {start = 0 : i64, total = 16 : i64, zeros = true} : (tensor<2x8x8xf32>, tensor<2x8x16xf32>) -> tensor<2x8x16xf32>
  return
}

// -----

func.func @slices_beyond_a_period(%x: tensor<2x8x16xf32>) {
  // expected-error@+2 {{`slice_columns` expects columns of periods of a tensor 16 wide, got 3 to 5}}
  // expected-error@+1 {{op failed to infer returned types}}
  %a = nn.slice_columns %x {periods = 4 : i64, start = 3 : i64, width = 2 : i64} : (tensor<2x8x16xf32>) -> tensor<2x8x8xf32>
  return
}

// -----

func.func @gates_of_one_tensor(%x: tensor<2x8x16xf32>) {
  // expected-error@+2 {{`swiglu` expects 2 operands, got 1}}
  // expected-error@+1 {{failed to infer returned types}}
  %y = nn.swiglu %x : (tensor<2x8x16xf32>) -> tensor<2x8x8xf32>
  return
}

// -----

func.func @gates_of_odd_width(%x: tensor<2x8x15xf32>) {
  // expected-error@+2 {{`glu` expects an even width where it is packed, got 15}}
  // expected-error@+1 {{failed to infer returned types}}
  %y = nn.glu %x {packed = true} : (tensor<2x8x15xf32>) -> tensor<2x8x7xf32>
  return
}

// -----

func.func @gates_of_two_widths(%d: tensor<2x8x16xf32>, %x: tensor<2x8x16xf32>) {
  // expected-error@+2 {{`swiglu_bwd` expects dy as 'tensor<2x8x8xf32>', got 'tensor<2x8x16xf32>'}}
  // expected-error@+1 {{failed to infer returned types}}
  %y = nn.swiglu_bwd %d, %x {packed = true} : (tensor<2x8x16xf32>, tensor<2x8x16xf32>) -> tensor<2x8x16xf32>
  return
}

// -----

func.func @all_heads_pass(%x: tensor<2x8x12xf32>) {
  // expected-error@+2 {{`rope` expects fewer heads that pass than the 3 of a row, got 3}}
  // expected-error@+1 {{failed to infer returned types}}
  %y = nn.rope %x {heads = 3 : i64, passing = 3 : i64} : (tensor<2x8x12xf32>) -> tensor<2x8x12xf32>
  return
}

// -----

func.func @passes_in_two_runs(%x: tensor<2x8x12xf32>) {
  // expected-error@+2 {{`rope` expects no `zigzag` where heads pass, got 2}}
  // expected-error@+1 {{failed to infer returned types}}
  %y = nn.rope %x {heads = 3 : i64, passing = 1 : i64, zigzag = 2 : i64} : (tensor<2x8x12xf32>) -> tensor<2x8x12xf32>
  return
}

// -----

func.func @turns_more_than_a_head(%x: tensor<2x8x10xf32>) {
  // expected-error@+2 {{`rope` expects a table of a factor and a frequency for each pair that turns, so of length 2 to 3 for heads of width 5, got 4}}
  // expected-error@+1 {{op failed to infer returned types}}
  %a = nn.rope %x {heads = 2 : i64, table = array<f64: 1.0, 1.0, 0.5, 0.2>} : (tensor<2x8x10xf32>) -> tensor<2x8x10xf32>
  return
}

// -----

func.func @sinks_for_other_heads(%o: tensor<2x8x12xf32>, %lse: tensor<2x4x8xf32>, %s: tensor<3xf32>) {
  // expected-error@+2 {{`sink` expects lse as 'tensor<2x3x8xf32>', got 'tensor<2x4x8xf32>'}}
  // expected-error@+1 {{op failed to infer returned types}}
  %y, %l = nn.sink %o, %lse, %s : (tensor<2x8x12xf32>, tensor<2x4x8xf32>, tensor<3xf32>) -> (tensor<2x8x12xf32>, tensor<2x4x8xf32>)
  return
}

// -----

func.func @drops_all(%x: tensor<2x8x12xf32>, %rows: tensor<2x8xi32>) {
  // expected-error@+2 {{`dropout` expects a rate of at least 0 and below 1, got 1.000000e+00}}
  // expected-error@+1 {{op failed to infer returned types}}
  %y = nn.dropout %x of %rows {rate = 1.0 : f64} : (tensor<2x8x12xf32>, tensor<2x8xi32>) -> tensor<2x8x12xf32>
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

func.func @point(%x: tensor<2x8x16xbf16>, %w: tensor<32x16xbf16>) {
  // expected-error@+2 {{`linear_dx_gelu` expects u as 'tensor<2x8x32xbf16>', got 'tensor<2x8x16xbf16>'}}
  // expected-error@+1 {{failed to infer returned types}}
  %y = nn.linear_dx_gelu %x, %w, %x : (tensor<2x8x16xbf16>, tensor<32x16xbf16>, tensor<2x8x16xbf16>) -> tensor<2x8x32xbf16>
  return
}

// -----

func.func @narrow(%x: tensor<2x8x16xbf16>, %w: tensor<16x32xbf16>) {
  // expected-error@+2 {{`linear_add` expects r as 'tensor<2x8x32xbf16>', got 'tensor<2x8x16xbf16>'}}
  // expected-error@+1 {{failed to infer returned types}}
  %y = nn.linear_add %x, %w to %x : (tensor<2x8x16xbf16>, tensor<16x32xbf16>, tensor<2x8x16xbf16>) -> tensor<2x8x32xbf16>
  return
}

// -----

func.func @wide(%x: tensor<2x8x16xbf16>, %w: tensor<16x16xbf16>, %r: tensor<2x8x16xf32>) {
  // expected-error@+2 {{`linear_add` expects r as 'tensor<2x8x16xbf16>', got 'tensor<2x8x16xf32>'}}
  // expected-error@+1 {{failed to infer returned types}}
  %y = nn.linear_add %x, %w to %r : (tensor<2x8x16xbf16>, tensor<16x16xbf16>, tensor<2x8x16xf32>) -> tensor<2x8x16xbf16>
  return
}

// -----

func.func @bias(%x: tensor<2x8x16xbf16>, %w: tensor<16x16xbf16>, %b: tensor<8xbf16>) {
  // expected-error@+2 {{`linear` expects w's width 16 to be the bias's, got 8}}
  // expected-error@+1 {{failed to infer returned types}}
  %y = nn.linear_add %x, %w bias %b to %x
      : (tensor<2x8x16xbf16>, tensor<16x16xbf16>, tensor<8xbf16>, tensor<2x8x16xbf16>) -> tensor<2x8x16xbf16>
  return
}

// -----

func.func @elsewhere(%x: tensor<2x8x16xf32>, %w: tensor<4xf32>) {
  // expected-error@+2 {{`opaque` expects `flops` of at least 0 and `keeps` of at least 1, got 1.000000e+03 and 0}}
  // expected-error@+1 {{failed to infer returned types}}
  %y:2 = nn.opaque %x, %w {flops = 1.0e3 : f64, keeps = 0 : i64} : (tensor<2x8x16xf32>, tensor<4xf32>) -> (tensor<2x8x16xf32>, tensor<0xf32>)
  return
}

// -----

func.func @both(%x: tensor<2x8x16xbf16>, %acc: tensor<16x16xf32>) {
  // expected-error@+2 {{`linear_dw_bias` adds into both sums or none, got one}}
  // expected-error@+1 {{failed to infer returned types}}
  %y:2 = nn.linear_dw_bias %x, %x into %acc
      : (tensor<2x8x16xbf16>, tensor<2x8x16xbf16>, tensor<16x16xf32>) -> (tensor<16x16xf32>, tensor<16xf32>)
  return
}

// -----

func.func @other(%x: tensor<2x8x16xbf16>, %acc: tensor<16x16xf32>, %b: tensor<16xbf16>) {
  // expected-error@+2 {{`linear_dw_bias` adds 'tensor<16xf32>' into a tensor of another type 'tensor<16xbf16>'}}
  // expected-error@+1 {{failed to infer returned types}}
  %y:2 = nn.linear_dw_bias %x, %x into %acc, %b
      : (tensor<2x8x16xbf16>, tensor<2x8x16xbf16>, tensor<16x16xf32>, tensor<16xbf16>) -> (tensor<16x16xf32>, tensor<16xf32>)
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
  // expected-error@+2 {{`adamw` expects a master copy for a weight of 16 bits, and only for one}}
  // expected-error@+1 {{failed to infer returned types}}
  %a, %b, %c = nn.adamw %g into %w, %g, %g : (tensor<16xf32>, tensor<16xbf16>, tensor<16xf32>, tensor<16xf32>)
      -> (tensor<16xbf16>, tensor<16xf32>, tensor<16xf32>)
  return
}

// -----

func.func @odd(%q: tensor<2x8x16xf32>, %k: tensor<2x6x16xf32>) {
  // expected-error@+2 {{`attention` expects k and v of one chunk or more, got 3 tensors}}
  // expected-error@+1 {{failed to infer returned types}}
  %o, %l = nn.attention %q, %k, %k, %k {heads = 4 : i64} : (tensor<2x8x16xf32>, tensor<2x6x16xf32>, tensor<2x6x16xf32>, tensor<2x6x16xf32>) -> (tensor<2x8x16xf32>, tensor<2x4x8xf32>)
  return
}

// -----

func.func @chunk_width(%q: tensor<2x8x16xf32>, %k: tensor<2x6x16xf32>, %m: tensor<2x6x8xf32>) {
  // expected-error@+2 {{`attention` expects q's head width 4 to be k's, got 2}}
  // expected-error@+1 {{failed to infer returned types}}
  %o, %l = nn.attention %q, %k, %k, %m, %m {heads = 4 : i64} : (tensor<2x8x16xf32>, tensor<2x6x16xf32>, tensor<2x6x16xf32>, tensor<2x6x8xf32>, tensor<2x6x8xf32>) -> (tensor<2x8x16xf32>, tensor<2x4x8xf32>)
  return
}

// -----

func.func @chunk_batch(%q: tensor<2x8x16xf32>, %k: tensor<1x6x16xf32>) {
  // expected-error@+2 {{`attention` expects q's batch 2 to be k's, got 1}}
  // expected-error@+1 {{failed to infer returned types}}
  %o, %l = nn.attention %q, %k, %k {heads = 4 : i64} : (tensor<2x8x16xf32>, tensor<1x6x16xf32>, tensor<1x6x16xf32>) -> (tensor<2x8x16xf32>, tensor<2x4x8xf32>)
  return
}

// -----

func.func @chunk_pair(%q: tensor<2x8x16xf32>, %k: tensor<2x6x16xf32>, %v: tensor<2x5x16xf32>) {
  // expected-error@+2 {{`attention` expects k and v of one shape and type, got 'tensor<2x6x16xf32>' and 'tensor<2x5x16xf32>'}}
  // expected-error@+1 {{failed to infer returned types}}
  %o, %l = nn.attention %q, %k, %v {heads = 4 : i64} : (tensor<2x8x16xf32>, tensor<2x6x16xf32>, tensor<2x5x16xf32>) -> (tensor<2x8x16xf32>, tensor<2x4x8xf32>)
  return
}

// -----

func.func @offsets(%q: tensor<2x8x16xf32>, %k: tensor<2x6x16xf32>) {
  // expected-error@+2 {{`attention` expects as many kv_offsets as chunks of keys, got 2 for 1}}
  // expected-error@+1 {{failed to infer returned types}}
  %o, %l = nn.attention %q, %k, %k {heads = 4 : i64, kv_offsets = array<i64: 0, 6>} : (tensor<2x8x16xf32>, tensor<2x6x16xf32>, tensor<2x6x16xf32>) -> (tensor<2x8x16xf32>, tensor<2x4x8xf32>)
  return
}

// -----

func.func @before(%q: tensor<2x8x16xf32>, %k: tensor<2x6x16xf32>) {
  // expected-error@+2 {{`attention` expects kv_offsets of at least 0, got -1}}
  // expected-error@+1 {{failed to infer returned types}}
  %o, %l = nn.attention %q, %k, %k {heads = 4 : i64, kv_offsets = array<i64: -1>} : (tensor<2x8x16xf32>, tensor<2x6x16xf32>, tensor<2x6x16xf32>) -> (tensor<2x8x16xf32>, tensor<2x4x8xf32>)
  return
}

// -----

func.func @negative(%q: tensor<2x8x16xf32>, %k: tensor<2x6x16xf32>) {
  // expected-error@+2 {{`attention` expects an offset of at least 0, got -4}}
  // expected-error@+1 {{failed to infer returned types}}
  %o, %l = nn.attention %q, %k, %k {heads = 4 : i64, offset = -4 : i64} : (tensor<2x8x16xf32>, tensor<2x6x16xf32>, tensor<2x6x16xf32>) -> (tensor<2x8x16xf32>, tensor<2x4x8xf32>)
  return
}

// -----

func.func @no_lse(%q: tensor<2x8x16xf32>, %l: tensor<2x4x8xf32>) {
  // expected-error@+2 {{`attention_merge` expects o and lse of each part, got 3 tensors}}
  // expected-error@+1 {{failed to infer returned types}}
  %o, %m = nn.attention_merge %q, %l, %q {heads = 4 : i64} : (tensor<2x8x16xf32>, tensor<2x4x8xf32>, tensor<2x8x16xf32>) -> (tensor<2x8x16xf32>, tensor<2x4x8xf32>)
  return
}

// -----

func.func @other_lse(%q: tensor<2x8x16xbf16>, %l: tensor<2x4x8xbf16>) {
  // expected-error@+2 {{`attention_merge` expects lse as 'tensor<2x4x8xf32>', got 'tensor<2x4x8xbf16>'}}
  // expected-error@+1 {{failed to infer returned types}}
  %o, %m = nn.attention_merge %q, %l {heads = 4 : i64} : (tensor<2x8x16xbf16>, tensor<2x4x8xbf16>) -> (tensor<2x8x16xbf16>, tensor<2x4x8xf32>)
  return
}

// -----

func.func @other_part(%q: tensor<2x8x16xf32>, %p: tensor<2x7x16xf32>, %l: tensor<2x4x8xf32>) {
  // expected-error@+2 {{`attention_merge` expects the first o and every other of one shape and type, got 'tensor<2x8x16xf32>' and 'tensor<2x7x16xf32>'}}
  // expected-error@+1 {{failed to infer returned types}}
  %o, %m = nn.attention_merge %q, %l, %p, %l {heads = 4 : i64} : (tensor<2x8x16xf32>, tensor<2x4x8xf32>, tensor<2x7x16xf32>, tensor<2x4x8xf32>) -> (tensor<2x8x16xf32>, tensor<2x4x8xf32>)
  return
}

// -----

func.func @delta(%q: tensor<2x8x16xf32>, %l: tensor<2x2x8xf32>) {
  // expected-error@+2 {{`attention_bwd` expects lse as 'tensor<2x4x8xf32>', got 'tensor<2x2x8xf32>'}}
  // expected-error@+1 {{failed to infer returned types}}
  %g:3 = nn.attention_bwd %q, %q, %l, %l, %q, %q {heads = 4 : i64} : (tensor<2x8x16xf32>, tensor<2x8x16xf32>, tensor<2x2x8xf32>, tensor<2x2x8xf32>, tensor<2x8x16xf32>, tensor<2x8x16xf32>) -> (tensor<2x8x16xf32>, tensor<2x8x16xf32>, tensor<2x8x16xf32>)
  return
}

// -----

func.func @sums(%q: tensor<2x8x16xbf16>, %l: tensor<2x4x8xf32>, %s: tensor<2x8x16xf32>) {
  // expected-error@+2 {{`attention_bwd` adds dk and dv only in the type of sums; expected `sums`}}
  // expected-error@+1 {{failed to infer returned types}}
  %g:3 = nn.attention_bwd %q, %q, %l, %l, %q, %q into_kv %s, %s {heads = 4 : i64}
      : (tensor<2x8x16xbf16>, tensor<2x8x16xbf16>, tensor<2x4x8xf32>, tensor<2x4x8xf32>, tensor<2x8x16xbf16>, tensor<2x8x16xbf16>,
         tensor<2x8x16xf32>, tensor<2x8x16xf32>) -> (tensor<2x8x16xbf16>, tensor<2x8x16xf32>, tensor<2x8x16xf32>)
  return
}

// -----

func.func @few_sums(%q: tensor<2x8x16xf32>, %l: tensor<2x4x8xf32>) {
  // expected-error@+2 {{`attention_bwd` expects a sum for each k and v, got 1 for 2}}
  // expected-error@+1 {{failed to infer returned types}}
  %g:3 = nn.attention_bwd %q, %q, %l, %l, %q, %q into_kv %q {heads = 4 : i64, sums = true} : (tensor<2x8x16xf32>, tensor<2x8x16xf32>, tensor<2x4x8xf32>, tensor<2x4x8xf32>, tensor<2x8x16xf32>, tensor<2x8x16xf32>, tensor<2x8x16xf32>) -> (tensor<2x8x16xf32>, tensor<2x8x16xf32>, tensor<2x8x16xf32>)
  return
}

// -----

func.func @rounded(%x: tensor<4xf32>) {
  // expected-error@+2 {{`round` makes 'f64' of sums in 'f64', got 'f32'}}
  // expected-error@+1 {{failed to infer returned types}}
  %y = nn.round %x to f64 : (tensor<4xf32>) -> tensor<4xf64>
  return
}

// -----

func.func @shard(%z: tensor<2x8x16xf32>, %t: tensor<2x8xi32>) {
  // expected-error@+2 {{`cross_entropy_stats` expects columns of a vocabulary of 40, got 32 to 48}}
  // expected-error@+1 {{failed to infer returned types}}
  %s = nn.cross_entropy_stats %z, %t {first = 32 : i64, vocab = 40 : i64} : (tensor<2x8x16xf32>, tensor<2x8xi32>) -> tensor<2x8x3xf32>
  return
}

// -----

func.func @statistics(%s: tensor<2x8x2xf32>, %t: tensor<2x8xi32>) {
  // expected-error@+2 {{`cross_entropy_loss` expects 3 statistics in each row, got 2}}
  // expected-error@+1 {{failed to infer returned types}}
  %l = nn.cross_entropy_loss %s, %t : (tensor<2x8x2xf32>, tensor<2x8xi32>) -> tensor<1xf32>
  return
}

// -----

func.func @other_rows(%s: tensor<2x8x3xf32>, %p: tensor<2x9x3xf32>) {
  // expected-error@+2 {{`cross_entropy_merge` expects the first part and every other of one shape and type, got 'tensor<2x8x3xf32>' and 'tensor<2x9x3xf32>'}}
  // expected-error@+1 {{failed to infer returned types}}
  %m = nn.cross_entropy_merge %s, %p : (tensor<2x8x3xf32>, tensor<2x9x3xf32>) -> tensor<2x8x3xf32>
  return
}

// -----

func.func @not_merged(%z: tensor<2x8x16xf32>, %t: tensor<2x8xi32>, %s: tensor<2x4x3xf32>) {
  // expected-error@+2 {{`cross_entropy_dz` expects the statistics as 'tensor<2x8x3xf32>', got 'tensor<2x4x3xf32>'}}
  // expected-error@+1 {{failed to infer returned types}}
  %d = nn.cross_entropy_dz %z, %t, %s {vocab = 16 : i64, scale = 1.0 : f64} : (tensor<2x8x16xf32>, tensor<2x8xi32>, tensor<2x4x3xf32>) -> tensor<2x8x16xf32>
  return
}

// -----

func.func @rows_left_over(%x: tensor<2x8x16xf32>) {
  // expected-error@+2 {{`split_rows` expects the rows of all runs 12 to be x's rows, got 16}}
  // expected-error@+1 {{failed to infer returned types}}
  %r:2 = nn.split_rows %x {counts = array<i64: 8, 4>} : (tensor<2x8x16xf32>) -> (tensor<1x8x16xf32>, tensor<1x4x16xf32>)
  return
}

// -----

func.func @no_rows(%x: tensor<2x8x16xf32>) {
  // expected-error@+2 {{`split_rows` expects runs of at least 1 row, got 0}}
  // expected-error@+1 {{failed to infer returned types}}
  %r:2 = nn.split_rows %x {counts = array<i64: 16, 0>} : (tensor<2x8x16xf32>) -> (tensor<1x16x16xf32>, tensor<1x0x16xf32>)
  return
}

// -----

func.func @unequal_sequences(%a: tensor<1x8x16xf32>, %b: tensor<1x7x16xf32>) {
  // expected-error@+2 {{`join_rows` expects rows that are 2 equal sequences, got 15}}
  // expected-error@+1 {{failed to infer returned types}}
  %y = nn.join_rows %a, %b {batch = 2 : i64} : (tensor<1x8x16xf32>, tensor<1x7x16xf32>) -> tensor<2x8x16xf32>
  return
}

// -----

func.func @other_width(%a: tensor<1x8x16xf32>, %b: tensor<1x8x12xf32>) {
  // expected-error@+2 {{`join_rows` expects a run's width 12 to be that of the first, got 16}}
  // expected-error@+1 {{failed to infer returned types}}
  %y = nn.join_rows %a, %b {batch = 2 : i64} : (tensor<1x8x16xf32>, tensor<1x8x12xf32>) -> tensor<2x8x16xf32>
  return
}

// -----

func.func @rows_outside(%x: tensor<2x8x16xf32>) {
  // expected-error@+2 {{`rows` expects rows of a tensor of 16, got 12 to 20}}
  // expected-error@+1 {{failed to infer returned types}}
  %y = nn.rows %x {start = 12 : i64, count = 8 : i64} : (tensor<2x8x16xf32>) -> tensor<1x8x16xf32>
  return
}

// -----

// Tokens are numbers of 32 bits: the last table that they reach has 2^31 - 1 rows.
func.func @too_many_tokens(%t: tensor<1x8xi32>, %table: tensor<2147483647x4xbf16>, %longer: tensor<2147483648x4xbf16>) {
  %x = nn.embedding %t, %table : (tensor<1x8xi32>, tensor<2147483647x4xbf16>) -> tensor<1x8x4xbf16>
  // expected-error@+2 {{`embedding` expects a vocabulary of at most 2147483647 tokens, got 2147483648}}
  // expected-error@+1 {{failed to infer returned types}}
  %y = nn.embedding %t, %longer : (tensor<1x8xi32>, tensor<2147483648x4xbf16>) -> tensor<1x8x4xbf16>
  return
}

// -----

func.func @too_many_columns(%z: tensor<1x8x2147483648xbf16>, %t: tensor<1x8xi32>) {
  // expected-error@+2 {{`cross_entropy` expects a vocabulary of at most 2147483647 tokens, got 2147483648}}
  // expected-error@+1 {{failed to infer returned types}}
  %l = nn.cross_entropy %z, %t : (tensor<1x8x2147483648xbf16>, tensor<1x8xi32>) -> tensor<1xf32>
  return
}

// -----

// How a weight is declared: by name, with a deviation where it begins as normal numbers ..
// expected-error@+1 {{expected a weight with a name}}
func.func private @part(%w: tensor<2xf32> {nn.weight = #nn.weight<"">})

// -----

// expected-error@+1 {{`w` begins as `normal` with deviation -5.000000e-01; expected 0 or more for `normal` and `uniform`, and 0 for others}}
func.func private @part(%w: tensor<2xf32> {nn.weight = #nn.weight<"w" normal -0.5>})

// -----

// .. and by an attribute of that type.
// expected-error@+1 {{expected `#nn.weight<..>` in `nn.weight`, got {name = "w"}}}
func.func private @part(%w: tensor<2xf32> {nn.weight = {name = "w"}})

// -----

// What else a part of a model and its arguments may carry.
// expected-error@+1 {{expected tokens, targets, source, starts, positions, rows or column in `nn.data`, got "images"}}
func.func private @part(%x: tensor<2xi32> {nn.data = "images"})

// -----

// expected-error@+1 {{expected the number of a column, 0 or more in `nn.column`, got -1}}
func.func private @part(%x: tensor<1x2xf32> {nn.data = "column", nn.column = -1 : i64})

// -----

// expected-error@+1 {{has an argument with `nn.mood`, which is no attribute of this dialect}}
func.func private @part(%x: tensor<2xi32> {nn.mood})

// -----

// expected-error@+1 {{expected nothing, inputs or all in `nn.again`, got "never"}}
func.func private @part(%x: tensor<2xf32>) attributes {nn.again = "never"}

// -----

// expected-error@+1 {{expected gather or heads in `nn.attention`, got unit}}
func.func private @part(%x: tensor<2xf32>) attributes {nn.attention}

// -----

// expected-error@+1 {{expected numbers of layers in `nn.layers`, got [0, 2]}}
func.func private @part(%x: tensor<2xf32>) attributes {nn.layers = [0, 2]}

// -----

// expected-error@+1 {{has `nn.mood`, which is no attribute of this dialect}}
func.func private @part(%x: tensor<2xf32>) attributes {nn.mood}

// -----

func.func @window(%q: tensor<2x8x16xf32>) {
  // expected-error@+2 {{`attention` expects a window of at least 0, got -1}}
  // expected-error@+1 {{failed to infer returned types}}
  %o, %l = nn.attention %q, %q, %q {heads = 4 : i64, causal = true, window = -1 : i64} : (tensor<2x8x16xf32>, tensor<2x8x16xf32>, tensor<2x8x16xf32>) -> (tensor<2x8x16xf32>, tensor<2x4x8xf32>)
  return
}

// -----

func.func @window_of_all(%q: tensor<2x8x16xf32>) {
  // expected-error@+2 {{`attention` expects `causal` where it has a window}}
  // expected-error@+1 {{failed to infer returned types}}
  %o, %l = nn.attention %q, %q, %q {heads = 4 : i64, window = 2 : i64} : (tensor<2x8x16xf32>, tensor<2x8x16xf32>, tensor<2x8x16xf32>) -> (tensor<2x8x16xf32>, tensor<2x4x8xf32>)
  return
}

// -----

func.func @softcap(%q: tensor<2x8x16xf32>) {
  // expected-error@+2 {{`attention` expects a softcap of at least 0, got -3.0}}
  // expected-error@+1 {{failed to infer returned types}}
  %o, %l = nn.attention %q, %q, %q {heads = 4 : i64, softcap = -3.0} : (tensor<2x8x16xf32>, tensor<2x8x16xf32>, tensor<2x8x16xf32>) -> (tensor<2x8x16xf32>, tensor<2x4x8xf32>)
  return
}

// -----

func.func @documents_of_all(%q: tensor<2x8x16xf32>, %s: tensor<2x8xi32>) {
  // expected-error@+2 {{`attention` expects `causal` where rows hold documents}}
  // expected-error@+1 {{failed to infer returned types}}
  %o, %l = nn.attention %q, %q, %q, %s {heads = 4 : i64} : (tensor<2x8x16xf32>, tensor<2x8x16xf32>, tensor<2x8x16xf32>, tensor<2x8xi32>) -> (tensor<2x8x16xf32>, tensor<2x4x8xf32>)
  return
}

// -----

func.func @starts(%q: tensor<2x8x16xf32>, %s: tensor<2x7xi32>) {
  // expected-error@+2 {{`attention` expects starts as 'tensor<2x8xi32>', got 'tensor<2x7xi32>'}}
  // expected-error@+1 {{failed to infer returned types}}
  %o, %l = nn.attention %q, %q, %q, %s {heads = 4 : i64, causal = true} : (tensor<2x8x16xf32>, tensor<2x8x16xf32>, tensor<2x8x16xf32>, tensor<2x7xi32>) -> (tensor<2x8x16xf32>, tensor<2x4x8xf32>)
  return
}

// -----

func.func @dropout_without_rows(%q: tensor<2x8x16xf32>) {
  // expected-error@+2 {{`attention` expects 1 or 2 tensors of integers behind its keys, got 0}}
  // expected-error@+1 {{failed to infer returned types}}
  %o, %l = nn.attention %q, %q, %q {heads = 4 : i64, dropout = #nn.dropout<0.5 site 1 in 8>} : (tensor<2x8x16xf32>, tensor<2x8x16xf32>, tensor<2x8x16xf32>) -> (tensor<2x8x16xf32>, tensor<2x4x8xf32>)
  return
}

// -----

func.func @two_starts(%q: tensor<2x8x16xf32>, %s: tensor<2x8xi32>) {
  // expected-error@+2 {{`attention` expects at most 1 tensor of integers behind its keys, got 2}}
  // expected-error@+1 {{failed to infer returned types}}
  %o, %l = nn.attention %q, %q, %q, %s, %s {causal = true, heads = 4 : i64} : (tensor<2x8x16xf32>, tensor<2x8x16xf32>, tensor<2x8x16xf32>, tensor<2x8xi32>, tensor<2x8xi32>) -> (tensor<2x8x16xf32>, tensor<2x4x8xf32>)
  return
}

// -----

func.func @rows_of_others(%q: tensor<2x8x16xf32>, %s: tensor<2x7xi32>) {
  // expected-error@+2 {{`attention` expects rows as 'tensor<2x8xi32>', got 'tensor<2x7xi32>'}}
  // expected-error@+1 {{failed to infer returned types}}
  %o, %l = nn.attention %q, %q, %q, %s {heads = 4 : i64, dropout = #nn.dropout<0.5 site 1 in 8>} : (tensor<2x8x16xf32>, tensor<2x8x16xf32>, tensor<2x8x16xf32>, tensor<2x7xi32>) -> (tensor<2x8x16xf32>, tensor<2x4x8xf32>)
  return
}

// -----

func.func @queries_behind_the_sequence(%q: tensor<2x8x16xf32>, %s: tensor<2x8xi32>) {
  // expected-error@+2 {{`attention` expects queries of a sequence of 15 tokens where it has dropout, got some up to position 15}}
  // expected-error@+1 {{failed to infer returned types}}
  %o, %l = nn.attention %q, %q, %q, %s {heads = 4 : i64, offset = 8 : i64, dropout = #nn.dropout<0.5 site 1 in 15>} : (tensor<2x8x16xf32>, tensor<2x8x16xf32>, tensor<2x8x16xf32>, tensor<2x8xi32>) -> (tensor<2x8x16xf32>, tensor<2x4x8xf32>)
  return
}

// -----

// expected-error@+1 {{`dropout` expects a rate of at least 0 and below 1, got 1.0}}
func.func private @all_dropped() attributes {test.rate = #nn.dropout<1.0 site 0 in 8>}

// -----

// expected-error@+1 {{`dropout` expects a site from 0 to 65535, got 65536}}
func.func private @site() attributes {test.rate = #nn.dropout<0.5 site 65536 in 8>}

// -----

// expected-error@+1 {{`dropout` expects sites of at least 0 and a length of at least 1, got 0 and 0}}
func.func private @length() attributes {test.rate = #nn.dropout<0.5 site 0 in 0>}

// -----

func.func @plus(%x: tensor<2x8x16xf32>, %g: tensor<16xf32>) {
  // expected-error@+2 {{`rmsnorm` expects a `plus` of 0 or 1, got 2}}
  // expected-error@+1 {{failed to infer returned types}}
  %y, %r = nn.rmsnorm %x, %g {plus = 2 : i64} : (tensor<2x8x16xf32>, tensor<16xf32>) -> (tensor<2x8x16xf32>, tensor<2x8xf32>)
  return
}

// -----

func.func @activation(%x: tensor<2x8x16xf32>) {
  // expected-error@+2 {{`glu` expects the activation "silu", "gelu" or "gelu_tanh", got "relu"}}
  // expected-error@+1 {{failed to infer returned types}}
  %y = nn.glu %x, %x {activation = "relu"} : (tensor<2x8x16xf32>, tensor<2x8x16xf32>) -> tensor<2x8x16xf32>
  return
}

// -----

func.func @alpha(%x: tensor<2x8x16xf32>) {
  // expected-error@+2 {{`glu_bwd` expects an `alpha` of 1 where the activation is no silu, got 2}}
  // expected-error@+1 {{failed to infer returned types}}
  %y:2 = nn.glu_bwd %x, %x, %x {activation = "gelu", alpha = 2.0}
      : (tensor<2x8x16xf32>, tensor<2x8x16xf32>, tensor<2x8x16xf32>) -> (tensor<2x8x16xf32>, tensor<2x8x16xf32>)
  return
}

// -----

func.func @limit(%x: tensor<2x8x16xf32>) {
  // expected-error@+2 {{`glu` expects a `limit` of at least 0, got -1}}
  // expected-error@+1 {{failed to infer returned types}}
  %y = nn.glu %x, %x {limit = -1.0} : (tensor<2x8x16xf32>, tensor<2x8x16xf32>) -> tensor<2x8x16xf32>
  return
}

// -----

func.func @cap(%z: tensor<2x8x16xf32>, %t: tensor<2x8xi32>) {
  // expected-error@+2 {{`cross_entropy` expects a `softcap` of at least 0, got -3}}
  // expected-error@+1 {{failed to infer returned types}}
  %l = nn.cross_entropy %z, %t {softcap = -3.0} : (tensor<2x8x16xf32>, tensor<2x8xi32>) -> tensor<1xf32>
  return
}

// -----

func.func @z(%stats: tensor<2x8x3xf32>, %t: tensor<2x8xi32>) {
  // expected-error@+2 {{`cross_entropy_loss` expects a `z_loss` of at least 0, got -1}}
  // expected-error@+1 {{failed to infer returned types}}
  %l = nn.cross_entropy_loss %stats, %t {z_loss = -1.0} : (tensor<2x8x3xf32>, tensor<2x8xi32>) -> tensor<1xf32>
  return
}

// -----

func.func @gather(%x: tensor<2x8xf32>) {
  // expected-error@+2 {{`all_gather` expects a dimension of x, which has 2, and at least 1 member, got dimension 2 and 4 members}}
  // expected-error@+1 {{failed to infer returned types}}
  %y = nn.all_gather %x over <tensor> {dim = 2 : i64, members = 4 : i64} : (tensor<2x8xf32>) -> tensor<8x8xf32>
  return
}

// -----

func.func @runs(%x: tensor<2x9x8xf32>) {
  // expected-error@+2 {{`gather_runs` expects sequences of 2 equal runs, got 'tensor<2x9x8xf32>'}}
  // expected-error@+1 {{failed to infer returned types}}
  %y = nn.gather_runs %x over <context> {members = 2 : i64} : (tensor<2x9x8xf32>) -> tensor<2x18x8xf32>
  return
}

// -----

func.func @heads_runs(%x: tensor<2x9x8xf32>) {
  // expected-error@+2 {{`runs_to_heads` expects sequences of 2 equal runs, got 'tensor<2x9x8xf32>'}}
  // expected-error@+1 {{failed to infer returned types}}
  %y = nn.runs_to_heads %x over <context> {members = 2 : i64} : (tensor<2x9x8xf32>) -> tensor<2x18x4xf32>
  return
}

// -----

func.func @heads_columns(%x: tensor<2x8x9xf32>) {
  // expected-error@+2 {{`runs_to_heads`: 2 devices do not divide the 9 columns of x}}
  // expected-error@+1 {{failed to infer returned types}}
  %y = nn.runs_to_heads %x over <context> {members = 2 : i64} : (tensor<2x8x9xf32>) -> tensor<2x16x4xf32>
  return
}

// -----

func.func @heads_back(%x: tensor<2x8x8xf32>) {
  // expected-error@+2 {{`heads_to_runs` expects sequences of 6 equal runs, got 'tensor<2x8x8xf32>'}}
  // expected-error@+1 {{failed to infer returned types}}
  %y = nn.heads_to_runs %x over <context> {members = 3 : i64} : (tensor<2x8x8xf32>) -> tensor<2x2x24xf32>
  return
}

// -----

func.func @repeated(%x: tensor<2x8x9xf32>) {
  // expected-error@+2 {{`repeat_heads` expects x's width to be a multiple of 2 heads, got 9}}
  // expected-error@+1 {{failed to infer returned types}}
  %y = nn.repeat_heads %x {heads = 2 : i64, times = 2 : i64} : (tensor<2x8x9xf32>) -> tensor<2x8x18xf32>
  return
}

// -----

func.func @no_copies(%x: tensor<2x8x8xf32>) {
  // expected-error@+2 {{`repeat_heads` expects at least 1 copy of each head, got 0}}
  // expected-error@+1 {{failed to infer returned types}}
  %y = nn.repeat_heads %x {heads = 2 : i64, times = 0 : i64} : (tensor<2x8x8xf32>) -> tensor<2x8x0xf32>
  return
}

// -----

// Two heads with three copies each are six.
func.func @summed(%x: tensor<2x8x8xf32>) {
  // expected-error@+2 {{`sum_heads` expects x's width to be a multiple of 6 heads, got 8}}
  // expected-error@+1 {{failed to infer returned types}}
  %y = nn.sum_heads %x {heads = 2 : i64, times = 3 : i64} : (tensor<2x8x8xf32>) -> tensor<2x8x2xf32>
  return
}

// -----

func.func @pieces(%x: tensor<9xf32>) {
  // expected-error@+2 {{`take_piece`: 2 devices do not divide the rows of 'tensor<9xf32>'}}
  // expected-error@+1 {{failed to infer returned types}}
  %y = nn.take_piece %x over <context> {members = 2 : i64} : (tensor<9xf32>) -> tensor<4xf32>
  return
}

// -----

func.func @ends(%x: tensor<2x8x8xf32>) {
  // expected-error@+2 {{`scatter_runs` expects sequences of 6 equal runs, got 'tensor<2x8x8xf32>'}}
  // expected-error@+1 {{failed to infer returned types}}
  %y = nn.scatter_runs %x over <context> {members = 3 : i64} : (tensor<2x8x8xf32>) -> tensor<2x2x8xf32>
  return
}

// -----

func.func @positions_end(%tokens: tensor<2x8xi32>, %table: tensor<16x16xf32>) {
  // expected-error@+2 {{`positions` expects a table of at least 24 positions, got 16}}
  // expected-error@+1 {{failed to infer returned types}}
  %x = nn.positions %tokens, %table {zigzag = 3 : i64} : (tensor<2x8xi32>, tensor<16x16xf32>) -> tensor<2x8x16xf32>
  return
}

// -----

func.func @piece(%x: tensor<3x8xf32>) {
  // expected-error@+2 {{`piece` expects one of equal runs of x's first dimension, got number 0 of 2 of 'tensor<3x8xf32>'}}
  // expected-error@+1 {{failed to infer returned types}}
  %y = nn.piece %x {index = 0 : i64, of = 2 : i64} : (tensor<3x8xf32>) -> tensor<1x8xf32>
  return
}

// -----

// expected-error@+1 {{expected axes in the order tensor, context, data, expert, copies, each once}}
#axes = #nn.axes<data, tensor>

// -----

// expected-error@+1 {{expected tensor, context, data, expert or copies, got `pipeline`}}
#axes = #nn.axes<pipeline>

// -----

// expected-error@+1 {{expected a dimension of a tensor with 2 of them, got 2}}
#cut = #nn.cut<[16, 8] dim 2>

// -----

// expected-error@+1 {{expected at least 1 copy of equal runs of 8, got 3 runs and 1 copies}}
#cut = #nn.cut<[16, 8] dim 1 runs 3>

// -----

func.func @state_of_a_shard(%g: tensor<64xf32>, %w: tensor<64xf32>, %m: tensor<64xf32>) {
  // expected-error@+2 {{`adamw` expects a shard of 'tensor<32xf32>', got 'tensor<64xf32>'}}
  // expected-error@+1 {{failed to infer returned types}}
  %a, %b, %c = nn.adamw %g into %w, %m, %m {flat = array<i64: 0, 32, 2>} : (tensor<64xf32>, tensor<64xf32>, tensor<64xf32>, tensor<64xf32>)
    -> (tensor<64xf32>, tensor<64xf32>, tensor<64xf32>)
  return
}

// -----

func.func @no_shard(%g: tensor<64xf32>) {
  // expected-error@+2 {{`sum_squares` expects of `flat` where the tensor begins, the elements of a shard and the number of devices}}
  // expected-error@+1 {{failed to infer returned types}}
  %a = nn.sum_squares %g {flat = array<i64: 0, 0, 2>} : (tensor<64xf32>) -> tensor<1xf64>
  return
}

// -----

func.func @sum_of_a_shard(%g: tensor<64xf32>, %sum: tensor<64xf32>) {
  // expected-error@+2 {{`accumulate` adds 'tensor<32xf32>' into a tensor of another type 'tensor<64xf32>'}}
  // expected-error@+1 {{failed to infer returned types}}
  %a = nn.accumulate %g into %sum {flat = array<i64: 0, 32, 2>} : (tensor<64xf32>, tensor<64xf32>) -> tensor<64xf32>
  return
}

// -----

func.func @gradients_of_a_shard(%g: tensor<64xf32>, %w: tensor<64xf32>, %m: tensor<32xf32>) {
  // expected-error@+2 {{`sgd` expects a shard of gradients in the type of sums, and 64 elements of w in `flat`, got 'tensor<64xf32>' and 64}}
  // expected-error@+1 {{failed to infer returned types}}
  %a, %b = nn.sgd %g into %w, %m {flat = array<i64: 0, 32, 2, 64>} : (tensor<64xf32>, tensor<64xf32>, tensor<32xf32>)
    -> (tensor<64xf32>, tensor<32xf32>)
  return
}

// -----

// The update would go on behind the end of the weight.
func.func @elements_of_another(%g: tensor<32xf32>, %w: tensor<64xf32>, %m: tensor<32xf32>) {
  // expected-error@+2 {{`sgd` expects a shard of gradients in the type of sums, and 64 elements of w in `flat`, got 'tensor<32xf32>' and 96}}
  // expected-error@+1 {{failed to infer returned types}}
  %a, %b = nn.sgd %g into %w, %m {flat = array<i64: 0, 32, 2, 96>} : (tensor<32xf32>, tensor<64xf32>, tensor<32xf32>)
    -> (tensor<64xf32>, tensor<32xf32>)
  return
}

// -----

func.func @squares_of_a_shard(%g: tensor<64xf32>) {
  // expected-error@+2 {{`sum_squares` expects a shard of 32 elements, got 'tensor<64xf32>'}}
  // expected-error@+1 {{failed to infer returned types}}
  %a = nn.sum_squares %g {flat = array<i64: 0, 32, 2, 64>} : (tensor<64xf32>) -> tensor<1xf64>
  return
}

// -----

// expected-error@+1 {{expected a whole weight where its gradient is in terms}}
func.func private @part(%w: tensor<2xf32> {nn.weight = #nn.weight<"w" zero cut <[4] dim 0> terms>})

// -----

func.func @packed_apart(%q: tensor<2x8x24xf32>, %k: tensor<2x8x24xf32>) {
  // expected-error@+2 {{`attention` expects, where it is packed, one tensor for q, k and v of a whole sequence}}
  // expected-error@+1 {{failed to infer returned types}}
  %o, %l = nn.attention %q, %q, %k {heads = 2 : i64, packed = true} : (tensor<2x8x24xf32>, tensor<2x8x24xf32>, tensor<2x8x24xf32>) -> (tensor<2x8x8xf32>, tensor<2x2x8xf32>)
  return
}

// -----

func.func @packed_width(%q: tensor<2x8x24xf32>) {
  // expected-error@+2 {{`attention` expects q's width to be a multiple of 5 heads, got 24}}
  // expected-error@+1 {{failed to infer returned types}}
  %o, %l = nn.attention %q, %q, %q {heads = 3 : i64, kv_heads = 1 : i64, packed = true} : (tensor<2x8x24xf32>, tensor<2x8x24xf32>, tensor<2x8x24xf32>) -> (tensor<2x8x12xf32>, tensor<2x3x8xf32>)
  return
}

// -----

func.func @packed_adds(%d: tensor<2x8x8xf32>, %q: tensor<2x8x24xf32>, %l: tensor<2x2x8xf32>) {
  // expected-error@+2 {{`attention_bwd` expects nothing to add to where it is packed}}
  // expected-error@+1 {{failed to infer returned types}}
  %a = nn.attention_bwd %d, %q, %l, %l, %q, %q into %q {heads = 2 : i64, packed = true} : (tensor<2x8x8xf32>, tensor<2x8x24xf32>, tensor<2x2x8xf32>, tensor<2x2x8xf32>, tensor<2x8x24xf32>, tensor<2x8x24xf32>, tensor<2x8x24xf32>) -> tensor<2x8x24xf32>
  return
}

// -----

func.func @convolves_other_columns(%x: tensor<2x8x16xf32>, %w: tensor<15x1x4xf32>) {
  // expected-error@+2 {{`conv` expects w as [columns of x, 1, taps], so [16, 1, ..], got 'tensor<15x1x4xf32>'}}
  // expected-error@+1 {{op failed to infer returned types}}
  %a = nn.conv %x, %w : (tensor<2x8x16xf32>, tensor<15x1x4xf32>) -> tensor<2x8x16xf32>
  return
}

// -----

func.func @scans_heads_that_do_not_share(%q: tensor<2x8x6xf32>, %v: tensor<2x8x12xf32>, %g: tensor<2x8x4xf32>) {
  // expected-error@+2 {{`scan` expects heads that are a multiple of the 3 heads of q and k, got 4}}
  // expected-error@+1 {{op failed to infer returned types}}
  %a = nn.scan %q, %q, %v, %g, %g {heads = 4 : i64, key_heads = 3 : i64} : (tensor<2x8x6xf32>, tensor<2x8x6xf32>, tensor<2x8x12xf32>, tensor<2x8x4xf32>, tensor<2x8x4xf32>) -> tensor<2x8x12xf32>
  return
}

// -----

func.func @scans_with_decays_of_heads_alone(%q: tensor<2x8x6xf32>, %v: tensor<2x8x12xf32>, %g: tensor<2x8x2xf32>) {
  // expected-error@+2 {{`scan` expects decay as 'tensor<2x8x6xf32>', got 'tensor<2x8x2xf32>'}}
  // expected-error@+1 {{failed to infer returned types}}
  %a = nn.scan %q, %q, %v, %g, %g {heads = 2 : i64, channels = true} : (tensor<2x8x6xf32>, tensor<2x8x6xf32>, tensor<2x8x12xf32>, tensor<2x8x2xf32>, tensor<2x8x2xf32>) -> tensor<2x8x12xf32>
  return
}

// -----

func.func @scans_shared_by_channel(%q: tensor<2x8x6xf32>, %v: tensor<2x8x12xf32>, %d: tensor<2x8x12xf32>, %g: tensor<2x8x2xf32>) {
  // expected-error@+2 {{`scan` expects `shared` or `channels`, got both}}
  // expected-error@+1 {{failed to infer returned types}}
  %a = nn.scan %q, %q, %v, %d, %g {heads = 2 : i64, key_heads = 1 : i64, shared = true, channels = true} : (tensor<2x8x6xf32>, tensor<2x8x6xf32>, tensor<2x8x12xf32>, tensor<2x8x12xf32>, tensor<2x8x2xf32>) -> tensor<2x8x12xf32>
  return
}

// -----

func.func @scans_with_rounded_decays(%q: tensor<2x8x6xbf16>, %v: tensor<2x8x12xbf16>, %g: tensor<2x8x2xbf16>) {
  // expected-error@+2 {{`scan` expects decay as 'tensor<2x8x2xf32>', got 'tensor<2x8x2xbf16>'}}
  // expected-error@+1 {{op failed to infer returned types}}
  %a = nn.scan %q, %q, %v, %g, %g {heads = 2 : i64} : (tensor<2x8x6xbf16>, tensor<2x8x6xbf16>, tensor<2x8x12xbf16>, tensor<2x8x2xbf16>, tensor<2x8x2xbf16>) -> tensor<2x8x12xbf16>
  return
}

// -----

func.func @scans_other_rows(%q: tensor<2x8x6xf32>, %v: tensor<2x9x12xf32>, %g: tensor<2x8x2xf32>) {
  // expected-error@+2 {{`scan` expects q and v with the same rows, got 'tensor<2x8x6xf32>' and 'tensor<2x9x12xf32>'}}
  // expected-error@+1 {{op failed to infer returned types}}
  %a = nn.scan %q, %q, %v, %g, %g {heads = 2 : i64} : (tensor<2x8x6xf32>, tensor<2x8x6xf32>, tensor<2x9x12xf32>, tensor<2x8x2xf32>, tensor<2x8x2xf32>) -> tensor<2x9x12xf32>
  return
}

// -----

// Three numbers, of which the second divides positions.
func.func @growth_of_two(%x: tensor<2x8x12xf32>) {
  // expected-error@+2 {{`rope` expects a growth of three numbers, of which the second is above 0 and the third at least 0, beside a table for all 2 pairs of a head}}
  // expected-error@+1 {{failed to infer returned types}}
  %y = nn.rope %x {heads = 3 : i64, table = array<f64: 1.0, 0.5, 0.1>, growth = array<f64: 0.1, 4.0>} : (tensor<2x8x12xf32>) -> tensor<2x8x12xf32>
  return
}

// -----

func.func @growth_by_zero(%x: tensor<2x8x12xf32>) {
  // expected-error@+2 {{`rope` expects a growth of three numbers}}
  // expected-error@+1 {{failed to infer returned types}}
  %y = nn.rope %x {heads = 3 : i64, table = array<f64: 1.0, 0.5, 0.1>, growth = array<f64: 0.1, 0.0, 0.0>} : (tensor<2x8x12xf32>) -> tensor<2x8x12xf32>
  return
}

// -----

// Columns that a table leaves alone would not grow.
func.func @growth_of_some_columns(%x: tensor<2x8x12xf32>) {
  // expected-error@+2 {{`rope` expects a growth of three numbers}}
  // expected-error@+1 {{failed to infer returned types}}
  %y = nn.rope %x {heads = 3 : i64, table = array<f64: 1.0, 0.5>, growth = array<f64: 0.1, 4.0, 0.0>} : (tensor<2x8x12xf32>) -> tensor<2x8x12xf32>
  return
}
