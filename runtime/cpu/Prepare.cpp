// Prepares a rank's ops: picks the ISA, creates the products, fills the rope tables, sizes the scratch.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "runtime/Status.h"
#include "runtime/cpu/Experts.h"
#include "runtime/cpu/Formula.h"
#include "runtime/cpu/Gemm.h"
#include "runtime/kernels/Specs.h"
#include <algorithm>
#include <cblas.h>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <dlfcn.h>
#include <mutex>
#include <new>
#include <omp.h>
#include <set>

using namespace pp;

namespace {

/// The cosines and the sines of the angles of all positions and pairs, [s][pairs] each.
struct RopeTable {
  int64_t s, d, pairs, offset;
  std::vector<double> params;
  bool wide;
  std::vector<float> narrow[2];
  std::vector<double> full[2];

  RopeTable(const PreparedOp &op)
      : s(ropeRows(op).count), d(op.dims[3]), pairs(op.pairs), offset(ropeRows(op).first), params(*op.turns),
        wide(op.type == Type::F64) {
    for (size_t i = 0; i < 2; ++i)
      wide ? full[i].reserve(size_t(s * pairs)) : narrow[i].reserve(size_t(s * pairs));
    for (int64_t t = 0; t < s; ++t)
      for (int64_t j = 0; j < pairs; ++j) {
        std::array<double, 2> turn = ropeTurn(params, d, offset + t, j);
        for (size_t i = 0; i < 2; ++i)
          if (wide)
            full[i].push_back(turn[i]);
          else
            narrow[i].push_back(float(turn[i]));
      }
  }
  bool serves(const PreparedOp &op) const {
    return s == ropeRows(op).count && d == op.dims[3] && offset == ropeRows(op).first && params == *op.turns &&
           wide == (op.type == Type::F64);
  }
  const void *data(int i) const { return wide ? static_cast<const void *>(full[i].data()) : narrow[i].data(); }
  int64_t bytes() const { return s * pairs * 2 * (wide ? 8 : 4); }
};

struct AlignedFree {
  void operator()(char *memory) const { std::free(memory); }
};

/// oneDNN of this distribution runs OpenMP threads; a rank is one thread unless the user says otherwise. The library is
/// only reached through oneDNN, so its function is looked up instead of linked.
void limitThreads(int threads) {
  if (void *set = dlsym(RTLD_DEFAULT, "omp_set_num_threads"))
    reinterpret_cast<void (*)(int)>(set)(threads);
  static std::once_flag once; // OpenBLAS has one number for the whole process
  std::call_once(once, [&] { openblas_set_num_threads(threads); });
}

constexpr int maxThreads = 1024;

/// Reads what the environment asks for, and checks it against this machine.
pp_status_t readEnvironment(int &threads, std::string &why) {
  threads = 1;
  if (const char *wanted = std::getenv("PP_THREADS")) {
    const char *last = wanted + std::strlen(wanted);
    if (auto [end, error] = std::from_chars(wanted, last, threads);
        error != std::errc() || end != last || threads < 1 || threads > maxThreads) {
      why = text("PP_THREADS expects a whole number from 1 to ", maxThreads, ", got `", wanted, "`");
      return PP_INVALID;
    }
  }
  const char *isa = std::getenv("PP_ISA");
  for (const char *known : {"plain", "avx2", "avx512", "avx512_bf16"})
    if (!isa || !std::strcmp(isa, known))
      return PP_OK;
  why = text("PP_ISA expects `plain`, `avx2`, `avx512` or `avx512_bf16`, got `", isa, "`");
  return PP_INVALID;
}

} // namespace

const IsaTable &pp::isaTable() {
  static const IsaTable &best = []() -> const IsaTable & {
#ifdef PP_X86_64
    const char *limit = std::getenv("PP_ISA");
    auto limited = [&](const char *isa) { return limit && !std::strcmp(limit, isa); };
    bool plain = limited("plain"), avx2 = limited("avx2");
    __builtin_cpu_init();
    bool wide = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    if (wide && !plain && !avx2)
      return __builtin_cpu_supports("avx512bf16") && !limited("avx512") ? avx512Bf16Table() : avx512Table();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c") && !plain)
      return avx2Table();
#endif
    return plainTable();
  }();
  return best;
}

struct Kernels::State {
  std::vector<PreparedOp> ops;
  std::deque<PreparedOp> parts; ///< of pairs; they stay where they are
  std::vector<std::unique_ptr<Gemm>> gemms;
  std::vector<std::unique_ptr<RopeTable>> tables;
  std::vector<std::unique_ptr<Formula>> formulas;
  std::set<std::vector<double>> turns;    ///< the params of ropes; they stay where they are
  std::set<std::vector<int64_t>> moves;   ///< OpSpec::moved, where there are any; they stay, too
  std::vector<std::vector<Chunk>> chunks; ///< of each op; moved when this grows, their elements stay where they are
  std::unique_ptr<char, AlignedFree> scratch;
  int64_t scratchBytes = 0, tableBytes = 0;

  pp_status_t prepareLinear(PreparedOp &op, std::string &why);
  pp_status_t prepareParts(const OpSpec &spec, PreparedOp &op, std::string &why);
  void prepareRope(PreparedOp &op);
  pp_status_t prepareOp(const OpSpec &spec, PreparedOp &op, std::string &why);
};

pp_status_t Kernels::State::prepareLinear(PreparedOp &op, std::string &why) {
  GemmShape shape(op);
  for (const auto &gemm : gemms)
    if (gemm->shape() == shape)
      op.gemm = gemm.get();
  if (!op.gemm) {
    std::unique_ptr<Gemm> gemm;
    if (pp_status_t status = Gemm::create(shape, gemm, why))
      return status;
    op.gemm = gemm.get();
    gemms.push_back(std::move(gemm));
  }
  op.body = op.kernel == Kernel::linear ? runLinear : op.kernel == Kernel::linear_dx ? runLinearDx : runLinearDw;
  scratchBytes = std::max(scratchBytes, op.gemm->scratchBytes());
  return PP_OK;
}

pp_status_t Kernels::State::prepareParts(const OpSpec &spec, PreparedOp &op, std::string &why) {
  op.body = runParts;
  std::array<OpSpec, 2> specs = partsOf(spec);
  for (size_t i = 0; i < specs.size(); ++i) {
    op.parts[i] = &parts.emplace_back();
    if (pp_status_t status = prepareOp(specs[i], parts.back(), why))
      return status;
  }
  return PP_OK;
}

void Kernels::State::prepareRope(PreparedOp &op) {
  auto found = std::find_if(tables.begin(), tables.end(), [&](const auto &table) { return table->serves(op); });
  if (found == tables.end()) {
    found = tables.insert(tables.end(), std::make_unique<RopeTable>(op));
    tableBytes += (*found)->bytes();
  }
  op.cosines = (*found)->data(0);
  op.sines = (*found)->data(1);
}

pp_status_t Kernels::State::prepareOp(const OpSpec &spec, PreparedOp &op, std::string &why) {
  why = readSpec(spec, op, chunks.emplace_back());
  if (!why.empty())
    return PP_INVALID;
  if (isPair(op.kernel))
    return prepareParts(spec, op, why);
  if (!spec.moved.empty())
    op.moved = &*moves.insert(spec.moved).first;
  op.body = isaTable().bodies[int(op.kernel)][int(op.type)];
  if (op.kernel == Kernel::rope) {
    op.turns = &*turns.insert(spec.params).first;
    prepareRope(op);
  }
  if (op.kernel == Kernel::formula) {
    op.formula = formulas.emplace_back(Formula::find(op, why)).get();
    if (!op.formula)
      return PP_INVALID;
    op.body = runFormula;
    scratchBytes = std::max(scratchBytes, op.formula->scratchBytes());
  }
  if (!op.body)
    op.body = expertBody(op);
  if (!op.body)
    return prepareLinear(op, why);
  if (op.kernel == Kernel::scan || op.kernel == Kernel::scan_bwd)
    op.threads = omp_get_max_threads();
  scratchBytes = std::max(scratchBytes, op.threads * cpuScratch(sizesOf(spec)));
  return PP_OK;
}

Kernels::Kernels(std::unique_ptr<State> state) : state(std::move(state)) {}
Kernels::~Kernels() = default;

pp_status_t Kernels::prepare(const std::vector<OpSpec> &specs, std::unique_ptr<Kernels> &kernels,
                             std::string &message) {
  int threads = 1;
  if (pp_status_t code = readEnvironment(threads, message); code != PP_OK)
    return code;
  limitThreads(threads);
  try {
    auto state = std::make_unique<State>();
    state->ops.resize(specs.size());
    for (size_t i = 0; i < specs.size(); ++i) {
      std::string why;
      if (pp_status_t status = state->prepareOp(specs[i], state->ops[i], why)) {
        message = "op " + std::to_string(i) + " `" + specs[i].kernel + "`: " + why;
        return status;
      }
    }
    state->scratchBytes = (state->scratchBytes + 63) / 64 * 64;
    state->scratch.reset(static_cast<char *>(std::aligned_alloc(64, size_t(state->scratchBytes + 64))));
    if (!state->scratch)
      throw std::bad_alloc();
    for (PreparedOp &op : state->ops)
      op.scratch = state->scratch.get();
    for (PreparedOp &op : state->parts)
      op.scratch = state->scratch.get();
    kernels.reset(new Kernels(std::move(state)));
    return PP_OK;
  } catch (const std::bad_alloc &) {
    message = "no memory for the kernels' scratch and tables";
    return PP_IO;
  }
}

const PreparedOp *Kernels::find(int32_t op) const {
  return op >= 0 && size_t(op) < state->ops.size() ? &state->ops[size_t(op)] : nullptr;
}

void Kernels::bindStream(void *) {}
void *Kernels::scalars() const { return nullptr; }
int32_t *Kernels::failures() const { return nullptr; }
void *Kernels::routed() const { return nullptr; }

int64_t Kernels::scratchBytes() const { return state->scratchBytes + state->tableBytes; }

std::string Kernels::whyFailed() { return "oneDNN failed"; }
std::string Kernels::attention() { return ""; }
std::string Kernels::engines() { return ""; }
const char *Kernels::isa() { return isaTable().name; }
