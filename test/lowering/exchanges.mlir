// What devices of a rank exchange inside a body is a message that is posted and completed there, and a view costs nothing.
// RUN: pp-unproved %s --emit=llvm > %t
// RUN: FileCheck %s < %t
// RUN: sed 's/\\22/"/g; s/},/},\n/g' %t | FileCheck %s --check-prefix=TEXT

!x = tensor<1x4x8xf32>
!r = tensor<1x2x8xf32>
!s = tensor<1x4x3xf32>
!i = tensor<1x4xi32>
!t = tensor<5x8xf32>
!n = tensor<1xf64>
!sx = !pipeline.slot<tuple<!x>>
!sr = !pipeline.slot<tuple<!r>>
!ss = !pipeline.slot<tuple<!s>>
!si = !pipeline.slot<tuple<!i>>
!st = !pipeline.slot<tuple<!t>>
!sn = !pipeline.slot<tuple<!n>>
!m = !pipeline.slot<tuple<tensor<512xi8>>>

// The sum of %a is made where %a is; an argument stays what it is, and its sum is made in a copy. Equal messages share a
// number. %b reads the argument itself.
// CHECK-LABEL: define internal i32 @sums(ptr %0, ptr %1, ptr %2, ptr %3)
// CHECK:         call i32 @pp_add(ptr %0, i32 0, ptr %1, ptr %1, ptr %2)
// CHECK:         call i32 @pp_post_collective(ptr %0, i32 0, ptr %2, ptr null)
// CHECK:         call i32 @pp_complete(ptr %0, i32 0)
// CHECK:         call i32 @pp_copy(ptr %0, i32 1, ptr %1, ptr %3)
// CHECK:         call i32 @pp_post_collective(ptr %0, i32 0, ptr %3, ptr null)
// CHECK:         call i32 @pp_complete(ptr %0, i32 0)
// CHECK:         call i32 @pp_add(ptr %0, i32 0, ptr %3, ptr %1, ptr %3)
// CHECK:         call i32 @pp_add(ptr %0, i32 0, ptr %2, ptr %3, ptr %2)
func.func private @sums(%x: !x) -> !x attributes {
    pipeline.inputs = #pipeline.groups<act x 1>, pipeline.results = #pipeline.groups<act x 1>, pipeline.ties = array<i64: -1>,
    pipeline.flops = 1.0 : f64} {
  %a = nn.add %x, %x : (!x, !x) -> !x
  %b = nn.all_reduce %a over <tensor> : (!x) -> !x
  %c = nn.spread %x over <tensor> : (!x) -> !x
  %d = nn.all_reduce %x over <tensor> : (!x) -> !x
  %e = nn.add %d, %c : (!x, !x) -> !x
  %f = nn.add %b, %e : (!x, !x) -> !x
  return %f : !x
}

// Each device's statistics go into the whole, whose pieces are merged where they lie.
// CHECK-LABEL: define internal i32 @gathers(ptr %0, ptr %1, ptr %2, ptr %3)
// CHECK:         call i32 @pp_post_collective(ptr %0, i32 1, ptr %3, ptr %1)
// CHECK:         call i32 @pp_complete(ptr %0, i32 1)
// CHECK:         %[[SECOND:.*]] = getelementptr i8, ptr %3, i32 48
// CHECK:         call i32 @pp_cross_entropy_merge(
func.func private @gathers(%s: !s) -> !s attributes {
    pipeline.inputs = #pipeline.groups<act x 1>, pipeline.results = #pipeline.groups<act x 1>, pipeline.ties = array<i64: -1>,
    pipeline.flops = 1.0 : f64} {
  %all = nn.all_gather %s over <tensor> {dim = 0 : i64, members = 2 : i64} : (!s) -> tensor<2x4x3xf32>
  %0 = nn.piece %all {index = 0 : i64, of = 2 : i64} : (tensor<2x4x3xf32>) -> !s
  %1 = nn.piece %all {index = 1 : i64, of = 2 : i64} : (tensor<2x4x3xf32>) -> !s
  %m = nn.cross_entropy_merge %0, %1 : (!s, !s) -> !s
  return %m : !s
}

// A device's run of rows is copied from where it begins. The whole is what is cut: it stands first, also where sums of it
// are scattered.
// CHECK-LABEL: define internal i32 @runs(ptr %0, ptr %1, ptr %2, ptr %3)
// CHECK:         call i32 @pp_copy(ptr %0, i32 3, ptr %1, ptr %3)
// CHECK:         %[[ALL:.*]] = getelementptr i8, ptr %3, i32 64
// CHECK:         call i32 @pp_post_collective(ptr %0, i32 2, ptr %[[ALL]], ptr %3)
// CHECK:         call i32 @pp_complete(ptr %0, i32 2)
// CHECK:         %[[SUM:.*]] = getelementptr i8, ptr %3, i32 64
// CHECK:         call i32 @pp_post_collective(ptr %0, i32 3, ptr %[[SUM]], ptr %2)
// CHECK:         call i32 @pp_complete(ptr %0, i32 3)
func.func private @runs(%x: !x) -> !r attributes {
    pipeline.inputs = #pipeline.groups<act x 1>, pipeline.results = #pipeline.groups<act x 1>, pipeline.ties = array<i64: -1>,
    pipeline.flops = 1.0 : f64} {
  %a = nn.take_rows %x over <tensor> {members = 2} : (!x) -> !r
  %b = nn.gather_rows %a over <tensor> {batch = 1, members = 2} : (!r) -> !x
  %c = nn.scatter_rows %b over <tensor> {members = 2} : (!x) -> !r
  return %c : !r
}

// Rows of a table of 9 in pieces of 5, the last of which has one row that does not exist; what all devices have is
// counted by the first one.
// CHECK-LABEL: define internal i32 @rows(
// CHECK:         call i32 @pp_embedding(
func.func private @rows(%i: !i, %t: !t) -> !x attributes {
    pipeline.inputs = #pipeline.groups<tokens x 1, weight x 1>, pipeline.results = #pipeline.groups<act x 1>, pipeline.ties = array<i64: -1>,
    pipeline.flops = 1.0 : f64} {
  %x = nn.embedding %i, %t {whole = 9 : i64, first_by = #nn.axes<tensor>} : (!i, !t) -> !x
  return %x : !x
}
// CHECK-LABEL: define internal i32 @squares(
// CHECK:         call i32 @pp_sum_squares_all(
// CHECK:         call i32 @pp_post_collective(ptr %0, i32 4,
func.func private @squares(%t: !t, %x: !x) -> !n attributes {
    pipeline.inputs = #pipeline.groups<grad x 1, act x 1>, pipeline.results = #pipeline.groups<norm x 1>, pipeline.ties = array<i64: -1>,
    pipeline.flops = 1.0 : f64} {
  %a = nn.sum_squares %t : (!t) -> !n
  %b = nn.sum_squares %x into %a {once = #nn.axes<tensor>} : (!x, !n) -> !n
  %c = nn.all_reduce %b over <tensor> : (!n) -> !n
  return %c : !n
}

// TEXT: "kernel":"copy","type":"f32","dims":[16],"moved":[{"by":["tensor"],"of":[0,64]}],"params":[],"flags":[]
// TEXT: "kernel":"embedding","type":"f32","dims":[4,8,5,{"by":["tensor"],"of":[0,5]},
// TEXT-NEXT: 9],
// TEXT: "kernel":"sum_squares_all","type":"f32","dims":[40,0,{"by":["tensor"],"of":[32,0]},
// TEXT: "messages":[{"kind":"all_reduce","root":-1,"group":[0],"channel":1073741825,"count":32,"type":"f32","axes":["tensor"],"inside":true,"label":"1x4x8","line":"exchanges.mlir:[[# @LINE - 69]]:8, exchanges.mlir:[[# @LINE - 67]]:8"},
// TEXT-NEXT: {"kind":"all_gather","root":-1,"group":[0],"channel":1073741825,"count":24,"type":"f32","axes":["tensor"],"cuts":[0,48,96],"inside":true,"label":"2x4x3","line":"exchanges.mlir:[[# @LINE - 53]]:10"},
// TEXT-NEXT: {"kind":"all_gather","root":-1,"group":[0],"channel":1073741825,"count":32,"type":"f32","axes":["tensor"],"cuts":[0,64,128],"inside":true,"label":"1x4x8","line":"exchanges.mlir:[[# @LINE - 33]]:8"},
// TEXT-NEXT: {"kind":"reduce_scatter","root":-1,"group":[0],"channel":1073741825,"count":32,"type":"f32","axes":["tensor"],"cuts":[0,64,128],"inside":true,"label":"1x4x8","line":"exchanges.mlir:[[# @LINE - 33]]:8"},
// TEXT-NEXT: {"kind":"all_reduce","root":-1,"group":[0],"channel":1073741825,"count":1,"type":"f64","axes":["tensor"],"inside":true,"label":"1","line":"exchanges.mlir:[[# @LINE - 12]]:8"}
pipeline.program @one ranks 1 microbatches 1 slices 0
    attributes {train = {}, mesh = #pipeline.mesh<tensor 2, context 1, data 1, pipeline 1>} {
  pipeline.piece @s0 <stage 0> parts [["s0", 0]]
  pipeline.rank 0 arena 4096 {
    %x = pipeline.slot act "x" offset 0 : !sx
    %y = pipeline.slot act "y" offset 128 : !sx
    %s = pipeline.slot act "s" offset 256 : !ss
    %r = pipeline.slot act "r" offset 320 : !ss
    %i = pipeline.slot data "i" offset 384 : !si
    %t = pipeline.slot weight "t" offset 448 : !st
    %g = pipeline.slot grad "g" offset 640 : !st
    %q = pipeline.slot act "q" offset 896 : !sr
    %n = pipeline.slot stat "n" offset 832 : !sn
    %m = pipeline.slot temporary "m" offset 1024 : !m
    pipeline.launch @sums <F stage 0 mb 0>(%x) -> (%y) scratch %m : (!sx) -> (!sx) scratch !m
    pipeline.launch @gathers <F stage 0 mb 0>(%s) -> (%r) scratch %m : (!ss) -> (!ss) scratch !m
    pipeline.launch @runs <F stage 0 mb 0>(%x) -> (%q) scratch %m : (!sx) -> (!sr) scratch !m
    pipeline.launch @rows <F stage 0 mb 0>(%i, %t) -> (%x) : (!si, !st) -> (!sx)
    pipeline.launch @squares <U stage 0 mb -1>(%g, %x) -> (%n) : (!st, !sx) -> (!sn)
  }
}
