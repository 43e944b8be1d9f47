// The calls that pp-gpu-kernels times: ops with their shapes, and what their arguments point at.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_BENCH_GPU_CASES_H
#define PP_BENCH_GPU_CASES_H

#include "runtime/kernels/Op.h"
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace pp {

/// One argument of a call: elements of the op's type, of sums, tokens, or nothing.
struct Argument {
  enum Kind { Elements, SumsOf, Tokens, Nothing } kind;
  int64_t count;
  bool moved = true; ///< its bytes are counted
};

struct Case {
  OpSpec spec;
  std::vector<Argument> arguments;
  int list = -1; ///< the argument that is a list of the two behind it
  int secondList = -1;
};

inline Argument elements(int64_t n, bool moved = true) { return {Argument::Elements, n, moved}; }
inline Argument sums(int64_t n, bool moved = true) { return {Argument::SumsOf, n, moved}; }
inline Argument tokens(int64_t n) { return {Argument::Tokens, n}; }

inline void products(std::vector<Case> &cases, Type type, int64_t t, int64_t k, int64_t n) {
  cases.push_back({{"linear", type, {t, k, n}, {}, {}},
                   {elements(t * k), elements(k * n), {Argument::Nothing, 0}, elements(t * n)}});
  cases.push_back(
      {{"linear", type, {t, k, n}, {}, {"bias"}}, {elements(t * k), elements(k * n), elements(n), elements(t * n)}});
  cases.push_back({{"linear_dx", type, {t, k, n}, {}, {}}, {elements(t * n), elements(k * n), elements(t * k)}});
  cases.push_back(
      {{"linear_dw", type, {t, k, n}, {}, {"accumulate"}}, {elements(t * k), elements(t * n), sums(k * n)}});
}

/// Products that do their neighbour's work: the first linear of an MLP, the second one and the residual, the derivative
/// behind it, dw.
inline void pairs(std::vector<Case> &cases, Type type, int64_t t, int64_t h, int64_t f) {
  cases.push_back({{"linear_gelu", type, {t, h, f}, {}, {"bias"}},
                   {elements(t * h), elements(h * f), elements(f), elements(t * f), elements(t * f)}});
  cases.push_back({{"linear_add", type, {t, f, h}, {}, {"bias"}},
                   {elements(t * f), elements(f * h), elements(h), elements(t * h), elements(t * h)}});
  cases.push_back({{"linear_dx_gelu", type, {t, f, h}, {}, {}},
                   {elements(t * h), elements(f * h), elements(t * f), elements(t * f)}});
  cases.push_back({{"linear_dw_bias", type, {t, h, f}, {}, {"accumulate"}},
                   {elements(t * h), elements(t * f), sums(h * f), sums(f)}});
}

inline void attentions(std::vector<Case> &cases, int64_t b, int64_t s, int64_t heads, int64_t groups, int64_t d,
                       bool causal) {
  std::vector<int64_t> dims = {b, s, heads, groups, d, 0, s, 0};
  std::vector<std::string> flags = causal ? std::vector<std::string>{"causal"} : std::vector<std::string>{};
  int64_t q = b * s * heads * d, k = b * s * groups * d, rows = b * heads * s;
  cases.push_back({{"attention", Type::Bf16, dims, {}, flags}, {elements(q), elements(k), elements(q), sums(rows)}, 1});
  cases.push_back(
      {{"attention_bwd", Type::Bf16, dims, {}, flags},
       {elements(q), elements(q), sums(rows), sums(rows), elements(k), elements(q), elements(k), elements(q)},
       4,
       6});
}

/// Scans of h heads, k of keys, and their backward. (Decays here grow states beyond all bounds, which takes no longer.)
inline void scans(std::vector<Case> &cases, int64_t s, int64_t h, int64_t k, int64_t d, int64_t e,
                  const std::vector<std::string> &flags, bool byChannel = false) {
  const std::vector<int64_t> dims = {1, s, h, k, d, e};
  const std::vector<double> params = byChannel ? std::vector<double>{0, 1} : std::vector<double>{};
  const Argument none{Argument::Nothing, 0}, q = elements(s * k * d), v = elements(s * h * e),
                                             g = sums(s * h * (byChannel ? d : 1)), beta = sums(s * h);
  cases.push_back({{"scan", Type::Bf16, dims, params, flags}, {q, q, v, g, beta, none, none, v, none}});
  cases.push_back(
      {{"scan_bwd", Type::Bf16, dims, params, flags}, {v, q, q, v, g, beta, none, none, none, q, q, v, g, beta, none}});
}

/// What moves memory: bytes per second are to be held beside the copy's.
inline void streams(std::vector<Case> &cases, int64_t t, int64_t h, int64_t f, int64_t vocabulary) {
  Type type = Type::Bf16;
  auto add = [&](const char *kernel, std::vector<int64_t> dims, std::vector<double> params,
                 std::vector<Argument> arguments) {
    cases.push_back({{kernel, type, std::move(dims), std::move(params), {}}, std::move(arguments)});
  };
  add("copy", {t * f}, {}, {elements(t * f), elements(t * f)});
  add("add", {t * h}, {}, {elements(t * h), elements(t * h), elements(t * h)});
  add("rmsnorm", {t, h}, {1e-5}, {elements(t * h), elements(h), elements(t * h), sums(t)});
  add("rmsnorm_bwd", {t, h}, {}, {elements(t * h), elements(t * h), elements(h), sums(t), elements(t * h), sums(h)});
  add("layernorm", {t, h}, {1e-5}, {elements(t * h), elements(h), elements(h), elements(t * h), sums(t), sums(t)});
  add("layernorm_bwd", {t, h}, {},
      {elements(t * h), elements(t * h), elements(h), sums(t), sums(t), elements(t * h), sums(h), sums(h)});
  add("rope", {1, t, h / 128, 128, 0}, {1e4}, {elements(t * h), {Argument::Nothing, 0}, elements(t * h)});
  add("swiglu", {t * f}, {}, {elements(t * f), elements(t * f), elements(t * f)});
  add("swiglu_bwd", {t * f}, {}, {elements(t * f), elements(t * f), elements(t * f), elements(t * f), elements(t * f)});
  add("gelu", {t * f}, {}, {elements(t * f), elements(t * f)});
  add("gelu_bwd", {t * f}, {}, {elements(t * f), elements(t * f), elements(t * f)});
  add("bias_dw", {t, f}, {}, {elements(t * f), sums(f)});
  add("attention_delta", {1, t, h / 128, 128}, {}, {elements(t * h), elements(t * h), sums(t * h / 128)});
  add("embedding", {t, h, vocabulary}, {}, {tokens(t), elements(vocabulary * h, false), elements(t * h)});
  cases.push_back({{"embedding_dw", type, {t, h, vocabulary}, {}, {"accumulate"}},
                   {tokens(t), elements(t * h), sums(vocabulary * h, false)}});
  add("cross_entropy", {t, vocabulary}, {1}, {elements(t * vocabulary), tokens(t), elements(t * vocabulary), sums(1)});
  add("sum_squares", {h * f}, {}, {sums(h * f), sums(2)});
  add("adamw", {h * f}, {},
      {sums(h * f), {Argument::Nothing, 0}, elements(h * f), sums(h * f), sums(h * f), sums(h * f)});
}

/// The arithmetic of a call of `products`, `pairs`, `attentions` or `scans`, of these in chunks of 32 rows; 0 of what
/// moves memory.
inline double flopsOf(const OpSpec &spec) {
  double d[6] = {};
  std::copy_n(spec.dims.begin(), std::min<size_t>(spec.dims.size(), 6), d);
  if (spec.kernel == "scan" || spec.kernel == "scan_bwd") {
    const bool delta = !spec.flags.empty(), isForward = spec.kernel == "scan";
    const double states = isForward ? (delta ? 6 : 4) : delta ? 16 : 12;
    const double keys = isForward ? (delta ? 4 : 2) : delta ? 12 : 6, values = isForward ? 2 : delta ? 8 : 6;
    return d[0] * d[1] * d[2] * (states * d[4] * d[5] + 32 * (keys * d[4] + values * d[5]));
  }
  if (spec.kernel.starts_with("linear"))
    return 2 * d[0] * d[1] * d[2];
  if (spec.kernel != "attention" && spec.kernel != "attention_bwd")
    return 0;
  double pairs =
      spec.flags.empty() ? d[1] * d[1] : d[1] * (d[1] + 1) / 2; // a causal query sees itself and those before
  return (spec.kernel == "attention" ? 4 : 10) * d[0] * d[2] * d[4] * pairs;
}

/// All that are timed, in the order of the rows.
inline std::vector<Case> timedCases() {
  std::vector<Case> cases;
  streams(cases, 8192, 4096, 14336, 32000);
  streams(cases, 8192, 768, 3072, 8192); // narrow rows, as GPT-2's
  for (int64_t t : {1024, 4096})
    for (auto [k, n] : {std::pair<int64_t, int64_t>{4096, 4096}, {4096, 14336}, {14336, 4096}})
      products(cases, Type::Bf16, t, k, n);
  products(cases, Type::Bf16, 8192, 768, 3072);
  products(cases, Type::F32, 2048, 2048, 2048);
  for (auto [t, h] : {std::pair<int64_t, int64_t>{8192, 768}, {8192, 1600}, {4096, 4096}})
    pairs(cases, Type::Bf16, t, h, 4 * h);
  pairs(cases, Type::F32, 2048, 1024, 4096);
  attentions(cases, 8, 1024, 12, 12, 64, true); // GPT-2's
  for (auto [b, s] : {std::pair<int64_t, int64_t>{4, 1024}, {1, 4096}, {1, 16384}}) {
    attentions(cases, b, s, 32, 8, 128, true);
    attentions(cases, b, s, 32, 32, 128, true);
    attentions(cases, b, s, 32, 32, 64, true);
  }
  attentions(cases, 1, 4096, 32, 8, 128, false);
  attentions(cases, 1, 4096, 16, 16, 256, true);
  scans(cases, 4096, 32, 16, 128, 128, {"delta"});       // Qwen3-Next's
  scans(cases, 4096, 32, 32, 128, 128, {"delta"}, true); // Kimi Linear's
  scans(cases, 4096, 80, 1, 128, 64, {});                // Mamba 2's, of 2.7B
  return cases;
}

} // namespace pp

#endif // PP_BENCH_GPU_CASES_H
