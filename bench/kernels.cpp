// Prints what the kernels reach on this machine: attention against sgemm, products against raw oneDNN, loops in ns.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Usage: pp-bench-kernels [attention] [bounded] [gemm] [loops] [scans] [quick]; no name: all. Shares are of sgemm
// 1024^3 (oneDNN, one thread) timed beside each row, since a busy neighbour moves single numbers more than shares.
#include "runtime/Kernels.h"
#include "runtime/Rank.h"
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <functional>
#include <oneapi/dnnl/dnnl.h>
#include <random>

using namespace pp;

namespace {

double budget = 0.2; // seconds per number

/// This thread's processor time: a neighbour on the same core does not count, as it would on the wall.
double now() {
  timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return double(time.tv_sec) + 1e-9 * double(time.tv_nsec);
}

/// Best seconds of one call within the budget; short calls are timed together, at least 100 us at a time.
double best(const std::function<void()> &call) {
  double least = 1e30, spent = 0;
  call();
  for (int64_t together = 1; spent < budget;) {
    double start = now();
    for (int64_t i = 0; i < together; ++i)
      call();
    double seconds = now() - start;
    spent += seconds;
    if (seconds < 1e-4)
      together *= 2;
    else
      least = std::min(least, seconds / double(together));
  }
  return least;
}

std::vector<float> random(size_t n) {
  static std::mt19937 generator(1);
  std::normal_distribution<float> normal;
  std::vector<float> values(n);
  for (float &value : values)
    value = normal(generator);
  return values;
}

/// Into the first half of the array.
void toBf16(std::vector<float> &values) {
  for (size_t i = 0; i < values.size(); ++i) {
    uint32_t bits;
    std::memcpy(&bits, &values[i], 4);
    reinterpret_cast<uint16_t *>(values.data())[i] = uint16_t(bits >> 16);
  }
}

double sgemmRate() {
  static std::vector<float> a = random(1 << 20), b = random(1 << 20), c(1 << 20);
  return 2.0 * 1024 * 1024 * 1024 /
         best([&] { dnnl_sgemm('N', 'N', 1024, 1024, 1024, 1, a.data(), 1024, b.data(), 1024, 0, c.data(), 1024); }) /
         1e9;
}

/// One prepared op of a rank, and the arithmetic of a call.
struct Op {
  OpSpec spec;
  double flops;
  std::unique_ptr<Kernels> kernels;
  pp_rank_t rank;
  explicit Op(OpSpec spec, double flops = 0) : spec(std::move(spec)), flops(flops) {
    std::string message;
    if (Kernels::prepare({this->spec}, kernels, message) != PP_OK)
      std::fprintf(stderr, "%s\n", message.c_str());
    rank.kernels = kernels.get();
    rank.optimizer.lr = 1e-4;
  }
  double rate(double seconds) const { return flops / seconds / 1e9; }
};

struct Attention {
  int64_t b, s, heads, groups, d;
};

/// Pairs of a query and a key that it sees, in one head of a sequence.
double causalPairs(int64_t s) { return double(s) * double(s + 1) / 2; }

void benchAttention(const Attention &n, Type type) {
  std::vector<int64_t> dims = {n.b, n.s, n.heads, n.groups, n.d, 0, n.s, 0};
  double flops = 4.0 * double(n.d * n.b * n.heads) * causalPairs(n.s);
  Op forward({"attention", type, dims, {}, {"causal"}}, flops);
  Op backward({"attention_bwd", type, dims, {}, {"causal"}}, 2.5 * flops);
  Op sums({"attention_delta", type, {n.b, n.s, n.heads, n.d}, {}, {}});
  size_t queries = size_t(n.b * n.s * n.heads * n.d), keys = size_t(n.b * n.s * n.groups * n.d);
  std::vector<float> q = random(queries), k = random(keys), v = random(keys), dout = random(queries);
  size_t rows = size_t(n.b * n.heads * n.s);
  std::vector<float> o(queries), lse(rows), delta(rows), dq(queries), dk(keys), dv(keys);
  if (type == Type::Bf16)
    for (auto *values : {&q, &k, &v, &dout})
      toBf16(*values);
  const void *kv[] = {k.data(), v.data()};
  void *dkv[] = {dk.data(), dv.data()};
  double reference = sgemmRate();
  double f = forward.rate(best([&] { pp_attention(&forward.rank, 0, q.data(), kv, o.data(), lse.data()); }));
  double w = backward.rate(best([&] {
    pp_attention_delta(&sums.rank, 0, dout.data(), o.data(), delta.data());
    pp_attention_bwd(&backward.rank, 0, dout.data(), q.data(), lse.data(), delta.data(), kv, dq.data(), dkv, o.data());
  }));
  reference = std::max(reference, sgemmRate());
  std::printf("%4s d%-3ld H%-2ld G%-2ld s%-5ld b%-2ld  fwd %6.1f (%3.0f %%)   bwd %6.1f (%3.0f %%)   sgemm %6.1f\n",
              type == Type::Bf16 ? "bf16" : "f32", n.d, n.heads, n.groups, n.s, n.b, f, 100 * f / reference, w,
              100 * w / reference, reference);
}

/// Times slice i of a sequence against its chunks 0 to i, for all n slices in turn: together the pairs of the whole
/// sequence. Beside it: the whole sequence in one call, and the last slice by one call for each chunk and a merge.
void benchSlices(int64_t s, int64_t n, int64_t heads, int64_t groups, int64_t d) {
  int64_t length = s / n;
  std::vector<float> q = random(size_t(s * heads * d)), k = random(size_t(s * groups * d)), dout = q, o(q), dq(q),
                     dkv(k);
  std::vector<float> lse(size_t(heads * s)), delta(lse), part(q), partLse(lse);
  std::vector<const void *> kv;
  std::vector<void *> sums;
  std::vector<int64_t> dims = {1, length, heads, groups, d, 0};
  std::vector<std::unique_ptr<Op>> forward, backward;
  for (int64_t i = 0; i < n; ++i) {
    kv.insert(kv.end(), 2, k.data() + i * length * groups * d);
    sums.insert(sums.end(), 2, dkv.data() + i * length * groups * d);
    dims[5] = i * length;
    dims.insert(dims.end(), {length, i * length});
    forward.push_back(std::make_unique<Op>(OpSpec{"attention", Type::F32, dims, {}, {"causal"}}));
    backward.push_back(std::make_unique<Op>(OpSpec{"attention_bwd", Type::F32, dims, {}, {"causal", "accumulate_kv"}}));
  }
  std::vector<int64_t> all = {1, s, heads, groups, d, 0, s, 0};
  Op whole({"attention", Type::F32, all, {}, {"causal"}}),
      wholeBackward({"attention_bwd", Type::F32, all, {}, {"causal"}});
  Op one({"attention", Type::F32, {1, length, heads, groups, d, s, length, 0}, {}, {}});
  Op merge({"attention_merge", Type::F32, {1, length, heads, d, 2}, {}, {}});
  double wholeForward = best([&] { pp_attention(&whole.rank, 0, q.data(), kv.data(), o.data(), lse.data()); });
  double wholeBack = best([&] {
    pp_attention_bwd(&wholeBackward.rank, 0, dout.data(), q.data(), lse.data(), delta.data(), kv.data(), dq.data(),
                     sums.data(), nullptr);
  });
  double slicesForward = best([&] {
    for (auto &op : forward)
      pp_attention(&op->rank, 0, q.data(), kv.data(), o.data(), lse.data());
  });
  double slicesBack = best([&] {
    for (auto &op : backward)
      pp_attention_bwd(&op->rank, 0, dout.data(), q.data(), lse.data(), delta.data(), kv.data(), dq.data(), sums.data(),
                       nullptr);
  });
  double last = best([&] { pp_attention(&forward.back()->rank, 0, q.data(), kv.data(), o.data(), lse.data()); });
  const void *parts[] = {o.data(), lse.data(), part.data(), partLse.data()};
  double merged = best([&] {
    for (int64_t i = 0; i < n; ++i) {
      pp_attention(&one.rank, 0, q.data(), kv.data() + 2 * i, i ? part.data() : o.data(),
                   i ? partLse.data() : lse.data());
      if (i)
        pp_attention_merge(&merge.rank, 0, parts, o.data(), lse.data());
    }
  });
  // The last slice sees all of its own chunk in the second form, half of it in the first.
  double more = double(length * s) / (causalPairs(s) - causalPairs(s - length));
  std::printf(" f32 d%-3ld H%-2ld G%-2ld s%-5ld in %2ld slices: rate of the whole's, fwd %3.0f %%, bwd %3.0f %%; last "
              "slice, call "
              "a chunk and merge %3.0f %%\n",
              d, heads, groups, s, n, 100 * wholeForward / slicesForward, 100 * wholeBack / slicesBack,
              100 * last / merged * more);
}

/// Seconds of a call of attention and of one of its backward.
struct Bounded {
  double forward, backward;
};

/// Causal attention where a window of so many keys, or so many documents of equal length, bound what a query sees.
Bounded timeBounded(const Attention &n, Type type, int64_t window, int64_t documents) {
  std::vector<int64_t> dims = {n.b, n.s, n.heads, n.groups, n.d, 0, n.s, 0};
  std::vector<double> params = window ? std::vector<double>{double(window)} : std::vector<double>{};
  std::vector<std::string> flags = {"causal"};
  if (documents)
    flags.push_back("documents");
  Op forward({"attention", type, dims, params, flags}), backward({"attention_bwd", type, dims, params, flags});
  size_t queries = size_t(n.b * n.s * n.heads * n.d), keys = size_t(n.b * n.s * n.groups * n.d);
  std::vector<float> q = random(queries), k = random(keys), v = random(keys), dout = random(queries), o(queries),
                     dq(queries), dk(keys), dv(keys);
  std::vector<float> lse(size_t(n.b * n.heads * n.s)), delta(lse);
  std::vector<int32_t> starts(size_t(n.b * n.s));
  for (int64_t i = 0; documents && i < n.b * n.s; ++i)
    starts[size_t(i)] = int32_t(i % n.s / (n.s / documents) * (n.s / documents));
  if (type == Type::Bf16)
    for (auto *values : {&q, &k, &v, &dout})
      toBf16(*values);
  const void *kv[] = {k.data(), v.data(), starts.data()};
  void *dkv[] = {dk.data(), dv.data()};
  Bounded time;
  time.forward = best([&] { pp_attention(&forward.rank, 0, q.data(), kv, o.data(), lse.data()); });
  time.backward = best([&] {
    pp_attention_bwd(&backward.rank, 0, dout.data(), q.data(), lse.data(), delta.data(), kv, dq.data(), dkv, o.data());
  });
  return time;
}

/// Time for each pair of a query and a key that it sees, over that of whole causal attention in the same rounds.
void benchBounded(const Attention &n, Type type) {
  const std::pair<int64_t, int64_t> bounds[] = {{0, 0}, {256, 0}, {512, 0}, {2048, 0}, {0, 8}};
  std::vector<Bounded> least(std::size(bounds), {1e30, 1e30});
  for (int round = 0; round < 3; ++round)
    for (size_t i = 0; i < least.size(); ++i) {
      Bounded time = timeBounded(n, type, bounds[i].first, bounds[i].second);
      least[i] = {std::min(least[i].forward, time.forward), std::min(least[i].backward, time.backward)};
    }
  for (size_t i = 1; i < least.size(); ++i) {
    auto [window, documents] = bounds[i];
    double pairs = documents ? double(documents) * causalPairs(n.s / documents) : causalPairs(n.s);
    if (window)
      pairs = causalPairs(window) + double(n.s - window) * double(window);
    double share = causalPairs(n.s) / pairs;
    std::printf("%4s d%-3ld H%-2ld G%-2ld s%-5ld window %-4ld documents %-2ld  time of a pair: fwd %4.2f   bwd %4.2f\n",
                type == Type::Bf16 ? "bf16" : "f32", n.d, n.heads, n.groups, n.s, window, documents,
                least[i].forward / least[0].forward * share, least[i].backward / least[0].backward * share);
  }
}

void bounded() {
  std::printf("causal attention with windows and documents: time of a pair over that of whole rows\n");
  for (Type type : {Type::F32, Type::Bf16})
    for (Attention n : {Attention{1, 8192, 1, 1, 64}, {1, 8192, 3, 1, 64}, {1, 8192, 1, 1, 128}})
      benchBounded(n, type);
}

void attention() {
  std::printf("attention, causal, GFLOP/s (share of sgemm 1024^3), %s\n", Kernels::isa());
  for (int64_t s : {128, 256, 512, 768, 1024, 1536, 2048, 3072})
    benchAttention({1, s, 6, 6, 64}, Type::F32);
  for (int64_t s : {256, 768, 1536, 3072})
    benchAttention({1, s, 3, 3, 128}, Type::F32);
  for (int64_t s : {128, 1024})
    benchAttention({4, s, 8, 8, 32}, Type::F32);
  for (int64_t s : {1000, 1024, 2048})
    benchAttention({1, s, 8, 2, 64}, Type::F32);
  for (int64_t s : {256, 1024})
    benchAttention({1, s, 6, 6, 64}, Type::Bf16);
  for (int64_t n : {2, 4, 8})
    benchSlices(2048, n, 8, 2, 64);
}

/// A linear scan and its backward, by the arithmetic of chunks of 32 rows without what is left out of triangles.
void benchScan(const std::vector<int64_t> &dims, Type type, bool delta) {
  const double d = double(dims[4]), e = double(dims[5]), rows = double(dims[0] * dims[1] * dims[2]), c = 32;
  std::vector<std::string> flags = delta ? std::vector<std::string>{"delta"} : std::vector<std::string>{};
  Op forward({"scan", type, dims, {}, flags},
             rows * (delta ? 6 * d * e + 4 * c * d + 2 * c * e : 4 * d * e + 2 * c * (d + e)));
  Op backward({"scan_bwd", type, dims, {}, flags},
              rows * (delta ? 16 * d * e + 12 * c * d + 8 * c * e : 12 * d * e + 6 * c * (d + e)));
  const size_t keys = size_t(dims[0] * dims[1] * dims[3] * dims[4]), values = size_t(rows * e);
  std::vector<float> q = random(keys), k = random(keys), v = random(values), dout = random(values),
                     g(size_t(rows), -0.1f), beta(size_t(rows), 0.5f), o(values), dq(keys), dk(keys), dv(values), dg(g),
                     dbeta(g);
  for (float &value : k) // of length 1
    value /= std::sqrt(float(d));
  if (type == Type::Bf16)
    for (auto *each : {&q, &k, &v, &dout})
      toBf16(*each);
  double reference = sgemmRate();
  double f = forward.rate(best([&] {
    pp_scan(&forward.rank, 0, q.data(), k.data(), v.data(), g.data(), beta.data(), nullptr, nullptr, o.data(), nullptr);
  }));
  double w = backward.rate(best([&] {
    pp_scan_bwd(&backward.rank, 0, dout.data(), q.data(), k.data(), v.data(), g.data(), beta.data(), nullptr, nullptr,
                nullptr, dq.data(), dk.data(), dv.data(), dg.data(), dbeta.data(), nullptr);
  }));
  reference = std::max(reference, sgemmRate());
  std::printf(
      "%4s %-6s h%-2ld k%-2ld d%-3ld e%-3ld s%-5ld  fwd %6.1f (%3.0f %%)   bwd %6.1f (%3.0f %%)   sgemm %6.1f\n",
      type == Type::Bf16 ? "bf16" : "f32", delta ? "delta" : "linear", dims[2], dims[3], dims[4], dims[5], dims[1], f,
      100 * f / reference, w, 100 * w / reference, reference);
}

void scans() {
  std::printf("linear scans, GFLOP/s (share of sgemm 1024^3), %s; attention of as many heads beside them\n",
              Kernels::isa());
  for (Type type : {Type::F32, Type::Bf16}) {
    benchScan({1, 2048, 8, 4, 128, 128}, type, true);
    benchScan({1, 2048, 8, 4, 128, 128}, type, false);
    benchAttention({1, 2048, 8, 4, 128}, type);
  }
}

void benchGemm(int64_t t, int64_t k, int64_t n) {
  std::vector<int64_t> dims = {t, k, n};
  std::vector<float> x = random(size_t(t * k)), w = random(size_t(k * n)), y = random(size_t(t * n));
  double flops = 2.0 * double(t * k * n);
  Op linear({"linear", Type::F32, dims, {}, {}}, flops), biased({"linear", Type::F32, dims, {}, {"bias"}}, flops);
  Op dx({"linear_dx", Type::F32, dims, {}, {}}, flops), dw({"linear_dw", Type::F32, dims, {}, {"accumulate"}}, flops);
  Op turned({"linear", Type::F32, dims, {}, {"transposed"}}, flops),
      narrow({"linear", Type::Bf16, dims, {}, {}}, flops);
  // Beside each the same product by dnnl_sgemm itself: no primitive, no bias, no rounding.
  auto raw = [&](char a, char b, int64_t m, int64_t columns, int64_t depth, float beta) {
    return best([&] {
      dnnl_sgemm(a, b, m, columns, depth, 1, x.data(), a == 'N' ? depth : m, w.data(), b == 'N' ? columns : depth, beta,
                 y.data(), columns);
    });
  };
  auto share = [&](Op &op, double reference, const std::function<void()> &call) {
    double seconds = best(call);
    std::printf("  %6.1f (%3.0f %%)", op.rate(seconds), 100 * reference / seconds);
  };
  std::printf("%5ldx%ldx%-5ld", t, k, n);
  double plain = raw('N', 'N', t, n, k, 0);
  share(linear, plain, [&] { pp_linear(&linear.rank, 0, x.data(), w.data(), nullptr, y.data()); });
  share(biased, plain, [&] { pp_linear(&biased.rank, 0, x.data(), w.data(), w.data(), y.data()); });
  share(turned, raw('N', 'T', t, n, k, 0), [&] { pp_linear(&turned.rank, 0, x.data(), w.data(), nullptr, y.data()); });
  share(narrow, plain, [&] { pp_linear(&narrow.rank, 0, x.data(), w.data(), nullptr, y.data()); });
  std::fill(y.begin(), y.end(), 1.0f); // what the bf16 product left is no f32
  size_t largest = size_t(std::max({t * k, k * n, t * n}));
  for (auto *values : {&x, &w, &y})
    values->resize(largest, 0.5f);
  share(dx, raw('N', 'T', t, k, n, 0), [&] { pp_linear_dx(&dx.rank, 0, y.data(), w.data(), x.data()); });
  share(dw, raw('T', 'N', k, n, t, 1), [&] { pp_linear_dw(&dw.rank, 0, x.data(), y.data(), w.data()); });
  std::printf("\n");
}

void gemm() {
  std::printf("products, GFLOP/s (share of dnnl_sgemm for the same product)\n");
  std::printf("tokens x in x out  y                with bias        transposed w     y in bf16        dx               "
              "dw +=\n");
  benchGemm(64, 32, 32);
  benchGemm(256, 128, 512);
  benchGemm(1024, 128, 512);
  benchGemm(1024, 256, 1024);
  benchGemm(1024, 512, 2048);
  benchGemm(256, 1024, 4096);
}

/// One loop at two sizes: arrays that fit the second-level cache, and arrays that do not.
void benchLoop(const char *name, const std::vector<double> &params,
               const std::function<void(Op &, std::vector<float *>)> &call,
               const std::function<std::vector<int64_t>(int64_t)> &dims, const char *note = "") {
  std::printf("%-22s", (name + std::string(note)).c_str());
  for (int64_t n : {int64_t(1) << 14, int64_t(1) << 22}) {
    Op op({name, Type::F32, dims(n), params, {}});
    std::vector<std::vector<float>> arrays;
    std::vector<float *> pointers;
    for (int i = 0; i < 8; ++i) {
      arrays.push_back(random(size_t(n)));
      for (float &value : arrays.back())
        value = 0.5f + 0.1f * value;
      pointers.push_back(arrays.back().data());
    }
    std::printf("  %8.3f", best([&] { call(op, pointers); }) / double(n) * 1e9);
  }
  std::printf("\n");
}

void loops() {
  std::printf("loops in f32, ns per element     at 2^14, at 2^22 elements (rows of 1024; cross-entropy 8192)\n");
  auto flat = [](int64_t n) { return std::vector<int64_t>{n}; };
  auto rows = [](int64_t n) { return std::vector<int64_t>{n / 1024, 1024}; };
  using P = std::vector<float *>;
  benchLoop(
      "add", {}, [](Op &op, P p) { pp_add(&op.rank, 0, p[0], p[1], p[2]); }, flat);
  benchLoop(
      "gelu", {}, [](Op &op, P p) { pp_gelu(&op.rank, 0, p[0], p[1]); }, flat);
  benchLoop(
      "gelu_bwd", {}, [](Op &op, P p) { pp_gelu_bwd(&op.rank, 0, p[0], p[1], p[2]); }, flat);
  benchLoop(
      "swiglu", {}, [](Op &op, P p) { pp_swiglu(&op.rank, 0, p[0], p[1], p[2]); }, flat);
  benchLoop(
      "swiglu_bwd", {}, [](Op &op, P p) { pp_swiglu_bwd(&op.rank, 0, p[0], p[1], p[2], p[3], p[4]); }, flat);
  benchLoop(
      "glu", {7, 1.702, 1}, [](Op &op, P p) { pp_glu(&op.rank, 0, p[0], p[1], p[2]); }, flat);
  benchLoop(
      "glu_bwd", {7, 1.702, 1}, [](Op &op, P p) { pp_glu_bwd(&op.rank, 0, p[0], p[1], p[2], p[3], p[4]); }, flat);
  benchLoop(
      "layernorm", {1e-5}, [](Op &op, P p) { pp_layernorm(&op.rank, 0, p[0], p[1], p[2], p[3], p[4], p[5]); }, rows);
  benchLoop(
      "layernorm_bwd", {},
      [](Op &op, P p) { pp_layernorm_bwd(&op.rank, 0, p[0], p[1], p[2], p[3], p[4], p[5], p[6], p[7]); }, rows);
  benchLoop(
      "rmsnorm", {1e-5}, [](Op &op, P p) { pp_rmsnorm(&op.rank, 0, p[0], p[1], p[2], p[3]); }, rows);
  benchLoop(
      "rmsnorm_bwd", {}, [](Op &op, P p) { pp_rmsnorm_bwd(&op.rank, 0, p[0], p[1], p[2], p[3], p[4], p[5]); }, rows);
  benchLoop(
      "rope", {1e4}, [](Op &op, P p) { pp_rope(&op.rank, 0, p[0], nullptr, p[0]); },
      [](int64_t n) {
        return std::vector<int64_t>{1, n / 1024, 16, 64, 0};
      });
  std::vector<int32_t> targets(512, 7);
  auto logits = [](int64_t n) { return std::vector<int64_t>{n / 8192, 8192}; };
  auto loss = [&](Op &op, P p) { pp_cross_entropy(&op.rank, 0, p[0], targets.data(), p[1], p[2]); };
  benchLoop("cross_entropy", {1}, loss, logits);
  benchLoop("cross_entropy", {1, 30}, loss, logits, ", capped");
  benchLoop(
      "cross_entropy_stats", {}, [&](Op &op, P p) { pp_cross_entropy_stats(&op.rank, 0, p[0], targets.data(), p[1]); },
      [](int64_t n) {
        return std::vector<int64_t>{n / 8192, 8192, 0, 8192};
      });
  benchLoop(
      "bias_dw", {}, [](Op &op, P p) { pp_bias_dw(&op.rank, 0, p[0], p[1]); }, rows);
  benchLoop(
      "accumulate", {}, [](Op &op, P p) { pp_accumulate(&op.rank, 0, p[0], p[1]); }, flat);
  benchLoop(
      "sum_squares", {},
      [](Op &op, P p) {
        double sum;
        pp_sum_squares(&op.rank, 0, p[0], &sum);
      },
      flat);
  benchLoop(
      "adamw", {}, [](Op &op, P p) { pp_adamw(&op.rank, 0, p[0], nullptr, p[1], p[2], p[3], nullptr); }, flat);
}

} // namespace

int main(int count, char **names) {
  bool all = true, wanted[5] = {};
  const char *known[] = {"attention", "bounded", "gemm", "loops", "scans"};
  for (int i = 1; i < count; ++i) {
    if (!std::strcmp(names[i], "quick"))
      budget = 0.03;
    for (int j = 0; j < 5; ++j)
      if (!std::strcmp(names[i], known[j]))
        wanted[j] = true, all = false;
  }
  Op{{"add", Type::F32, {1}, {}, {}}}; // sets OpenMP to one thread before the first sgemm
  if (all || wanted[0])
    attention();
  if (all || wanted[1])
    bounded();
  if (all || wanted[2])
    gemm();
  if (all || wanted[3])
    loops();
  if (all || wanted[4])
    scans();
}
