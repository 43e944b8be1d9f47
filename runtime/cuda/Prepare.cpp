// Prepares a rank's ops for the device `cuda`: bodies, products, rope tables, and one block of memory for all of them.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "runtime/cuda/Formula.h"
#include "runtime/cuda/Gemm.h"
#include "runtime/cuda/Memory.h"
#include "runtime/cuda/Sdpa.h"
#include "runtime/kernels/Specs.h"
#include "runtime/simt/KeyLists.h"
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <deque>
#include <map>
#include <new>
#include <set>
#include <tuple>

using namespace pp;

namespace {

/// cos, then sin, of the turns of all positions and pairs, [s][pairs] each.
template <class A>
std::vector<char> ropeTable(int64_t s, int64_t d, int64_t offset, const std::vector<double> &params) {
  int64_t pairs = pairsOfRope(d, params);
  std::vector<char> bytes(size_t(2 * s * pairs) * sizeof(A));
  A *cosines = reinterpret_cast<A *>(bytes.data()), *sines = cosines + s * pairs;
  for (int64_t t = 0; t < s; ++t)
    for (int64_t j = 0; j < pairs; ++j) {
      auto [cosine, sine] = ropeTurn(params, d, offset + t, j);
      cosines[t * pairs + j] = A(cosine);
      sines[t * pairs + j] = A(sine);
    }
  return bytes;
}

/// Counts over all ranks of this process: ops by the code that prepared them, and calls that did not use the library
/// after all.
struct Engines {
  std::atomic<int64_t> byCudnn{0}, byOurs{0}, deltas{0}, together{0}, apart{0}, unaligned{0}, withoutOutput{0};
} served;

pp_status_t multiply(const PreparedOp &op, const GemmOperands &operands) {
  return op.gemm->run(operands, op.scratch, op.launches->stream);
}
pp_status_t runLinear(const PreparedOp &op, void *const *a) {
  if (pp_status_t status = multiply(op, {a[0], a[1], a[3], a[2]}))
    return status;
  return op.gemm->shape().bias && !op.gemm->addsBias() ? addBias(op, a[2], a[3]) : PP_OK;
}
pp_status_t runLinearDx(const PreparedOp &op, void *const *a) { return multiply(op, {a[0], a[1], a[2]}); }
pp_status_t runLinearDw(const PreparedOp &op, void *const *a) {
  bool transposed = op.has(Transposed);
  return multiply(op, {a[transposed], a[!transposed], a[2]});
}

/// A pair in one kernel; for addresses that it does not take, in two.
pp_status_t runPair(const PreparedOp &op, void *const *a) {
  bool transposed = op.has(Transposed), adds = op.kernel == Kernel::linear_dw_bias && op.has(Accumulate);
  void *sums = adds ? op.scratch + align(op.gemm->scratchBytes()) : a[3];
  GemmOperands operands = op.kernel == Kernel::linear_gelu  ? GemmOperands{a[0], a[1], a[4], a[2], a[3]}
                          : op.kernel == Kernel::linear_add ? GemmOperands{a[0], a[1], a[4], a[2], nullptr, a[3]}
                          : op.kernel == Kernel::linear_dx_gelu
                              ? GemmOperands{a[0], a[1], a[3], nullptr, a[2]}
                              : GemmOperands{a[transposed], a[!transposed], a[2], nullptr, sums};
  if (!op.gemm->takes(operands)) {
    ++served.unaligned;
    return runParts(op, a);
  }
  if (pp_status_t status = multiply(op, operands))
    return status;
  return adds ? addSums(op, sums, a[3]) : PP_OK;
}

/// The delta of a backward, from its gradient and its output.
pp_status_t makeDelta(const PreparedOp &backward, void *dout, void *o, void *delta) {
  PreparedOp op = backward;
  op.kernel = Kernel::attention_delta;
  op.dims[3] = backward.dims[4];
  void *const arguments[] = {dout, o, delta};
  return attention_deltaBodies[int(op.type)](op, arguments);
}

/// A library's attention; for addresses or gradients that it does not take, our own.
pp_status_t runSdpa(const PreparedOp &op, void *const *a) {
  const bool backward = op.kernel == Kernel::attention_bwd, withoutOutput = backward && !a[7];
  const void *keys = a[backward ? 4 : 1];
  SdpaTensors its = {a[backward], inList<void>(keys, 0), inList<void>(keys, 1), a[backward ? 7 : 2],
                     a[backward ? 2 : 3]};
  if (backward)
    its.dout = a[0], its.dq = a[5], its.dk = inList<void>(a[6], 0), its.dv = inList<void>(a[6], 1);
  if (!withoutOutput && aligned(its.q, its.k, its.v, its.o, its.lse, its.dout, its.dq, its.dk, its.dv))
    return op.sdpa->run(its, op.scratch, op.launches->stream, whyNotLaunched);
  ++(withoutOutput ? served.withoutOutput : served.unaligned);
  if (backward && a[7]) // its delta may have been left to the library
    if (pp_status_t status = makeDelta(op, a[0], a[7], a[3]))
      return status;
  return (backward ? attentionBackwardBody(op) : attentionBody(op))(op, a);
}

pp_status_t runFormula(const PreparedOp &op, void *const *a) {
  return op.formula->run(op, static_cast<void *const *>(a[0]));
}
pp_status_t runNothing(const PreparedOp &, void *const *) { return PP_OK; }

Body bodyOf(const PreparedOp &op) {
  static constexpr const Body *bodies[] = {
#define PP_KERNEL(name, ...) name##Bodies,
#include "runtime/kernels/Kernels.def"
  };
  return op.kernel == Kernel::attention       ? attentionBody(op)
         : op.kernel == Kernel::attention_bwd ? attentionBackwardBody(op)
                                              : bodies[int(op.kernel)][int(op.type)];
}

/// Names a limit of these kernels that the op exceeds; empty if it fits.
std::string checkLimits(const PreparedOp &op) {
  auto tooMany = [](int64_t count, const char *what) {
    return count > mostChunks ? std::to_string(count) + " " + what + " are more than the " +
                                    std::to_string(mostChunks) + " that one call takes"
                              : "";
  };
  if (op.kernel == Kernel::quantize)
    return "products of 8 bits run on CPUs only for now";
  if (op.kernel == Kernel::attention_merge)
    return tooMany(op.dims[4], "parts");
  if (op.kernel == Kernel::cross_entropy_merge || op.kernel == Kernel::token_merge)
    return tooMany(op.dims[1], "parts");
  const bool isScan = op.kernel == Kernel::scan || op.kernel == Kernel::scan_bwd;
  if (!isScan && op.kernel != Kernel::attention && op.kernel != Kernel::attention_bwd)
    return "";
  if (std::string why = isScan ? "" : tooMany(op.chunkCount, "chunks"); !why.empty())
    return why;
  const size_t needed = isScan ? scanSharedBytes(op) : attentionSharedBytes(op), limit = sharedMemoryLimit();
  return needed > limit ? "heads of width " + std::to_string(op.dims[4]) + " need " + std::to_string(needed) +
                              " bytes of shared memory; a block of this device has at most " + std::to_string(limit)
                        : "";
}

/// A requested product and its plan; null if no kernel can run its epilogue.
struct Product {
  GemmShape shape;
  std::unique_ptr<Gemm> gemm;
};

} // namespace

#define PP_ANY_TYPE(name, body) const Body pp::name##Bodies[] = {body, body, body, body};
PP_ANY_TYPE(linear, runLinear)
PP_ANY_TYPE(linear_dx, runLinearDx)
PP_ANY_TYPE(linear_dw, runLinearDw)
PP_ANY_TYPE(formula, runFormula)
PP_ANY_TYPE(quantize, nullptr)
PP_ANY_TYPE(linear_gelu, runParts)
PP_ANY_TYPE(linear_add, runParts)
PP_ANY_TYPE(linear_dx_gelu, runParts)
PP_ANY_TYPE(linear_dw_bias, runParts)

struct Kernels::State {
  std::vector<PreparedOp> ops;
  std::vector<std::unique_ptr<Formula>> formulas;
  std::deque<PreparedOp> parts; ///< of pairs; they stay where they are
  std::vector<Product> products;
  std::vector<std::vector<Chunk>> chunks; ///< of each op; moved when this grows, their elements stay where they are
  Launches launches;
  DeviceBlock memory; ///< scratch, scalars, failures, sums of routers, tables
  int64_t scratchBytes = 0, bytes = 0;
  /// Tables by what they were made of: s, d, offset, theta, f64; where each will lie.
  std::set<std::vector<double>> turns;  ///< the params of ropes; they stay where they are
  std::set<std::vector<int64_t>> moves; ///< OpSpec::moved, where there are any; they stay, too
  std::map<std::tuple<int64_t, int64_t, int64_t, std::vector<double>, bool>, int64_t> tables;

  pp_status_t prepareProduct(PreparedOp &op, std::string &why);
  pp_status_t preparePair(const OpSpec &spec, PreparedOp &op, std::string &why);
  pp_status_t prepareOp(const OpSpec &spec, PreparedOp &op, std::string &why);
  void leaveDeltas();
  void placeOp(PreparedOp &op, char *base);
  pp_status_t placeAll(std::string &why);
};

pp_status_t Kernels::State::prepareProduct(PreparedOp &op, std::string &why) {
  GemmShape shape(op);
  auto found = std::find_if(products.begin(), products.end(), [&](const auto &each) { return each.shape == shape; });
  if (found == products.end()) {
    found = products.insert(found, {shape, nullptr});
    if (pp_status_t status = Gemm::create(shape, std::getenv("PP_TUNE") != nullptr, found->gemm, why))
      return status;
  }
  op.gemm = found->gemm.get();
  if (op.gemm)
    scratchBytes = std::max(scratchBytes, align(op.gemm->scratchBytes()));
  return PP_OK;
}

pp_status_t Kernels::State::preparePair(const OpSpec &spec, PreparedOp &op, std::string &why) {
  std::array<OpSpec, 2> specs = partsOf(spec);
  for (size_t i = 0; i < specs.size(); ++i) {
    op.parts[i] = &parts.emplace_back();
    parts.back().number = op.number;
    if (pp_status_t status = prepareOp(specs[i], parts.back(), why))
      return status;
  }
  if (pp_status_t status = prepareProduct(op, why))
    return status;
  op.body = op.gemm ? runPair : runParts;
  ++(op.gemm ? served.together : served.apart);
  if (op.gemm && op.kernel == Kernel::linear_dw_bias)
    scratchBytes = std::max(scratchBytes, align(op.gemm->scratchBytes()) + 4 * op.dims[2]);
  return PP_OK;
}

pp_status_t Kernels::State::prepareOp(const OpSpec &spec, PreparedOp &op, std::string &why) {
  why = readSpec(spec, op, chunks.emplace_back());
  if (why.empty())
    why = checkLimits(op);
  if (!why.empty())
    return PP_INVALID;
  op.launches = &launches;
  if (isPair(op.kernel))
    return preparePair(spec, op, why);
  if (!spec.moved.empty())
    op.moved = &*moves.insert(spec.moved).first;
  op.body = bodyOf(op);
  if (op.kernel == Kernel::formula) {
    op.formula = formulas.emplace_back(Formula::find(op, why)).get();
    if (!op.formula)
      return PP_INVALID;
    scratchBytes = std::max(scratchBytes, align(op.formula->scratchBytes(op)));
  }
  if (SdpaShape::fits(op))
    op.sdpa = SdpaPlan::shared(SdpaShape(op));
  if (op.kernel == Kernel::attention || op.kernel == Kernel::attention_bwd)
    ++(op.sdpa ? served.byCudnn : served.byOurs);
  if (op.sdpa) {
    op.body = runSdpa;
    scratchBytes = std::max(scratchBytes, op.sdpa->scratchBytes());
  }
  scratchBytes = std::max(scratchBytes, simtScratch(sizesOf(spec)));
  if (op.kernel == Kernel::rope) {
    op.turns = &*turns.insert(spec.params).first;
    tables[{ropeRows(op).count, op.dims[3], ropeRows(op).first, *op.turns, op.type == Type::F64}] = 0;
  }
  bool product = op.kernel == Kernel::linear || op.kernel == Kernel::linear_dx || op.kernel == Kernel::linear_dw;
  return product ? prepareProduct(op, why) : PP_OK;
}

/// If a library runs all backwards of a shape, each makes its delta from the output, if it gets the output: then our
/// own delta is not needed.
void Kernels::State::leaveDeltas() {
  for (PreparedOp &delta : ops) {
    if (delta.kernel != Kernel::attention_delta || !delta.has(Remade))
      continue;
    int64_t readers = 0;
    bool serves = std::all_of(ops.begin(), ops.end(), [&](const PreparedOp &op) {
      bool reads = op.kernel == Kernel::attention_bwd && op.type == delta.type && op.dims[4] == delta.dims[3] &&
                   std::equal(op.dims, op.dims + 3, delta.dims);
      readers += reads;
      return !reads || op.sdpa;
    });
    if (!serves || readers == 0)
      continue;
    delta.body = runNothing;
    ++served.deltas;
  }
}

void Kernels::State::placeOp(PreparedOp &op, char *base) {
  op.scratch = base;
  if (op.kernel != Kernel::rope)
    return;
  bool wide = op.type == Type::F64;
  RopeRows rows = ropeRows(op);
  char *table = base + tables[{rows.count, op.dims[3], rows.first, *op.turns, wide}];
  op.cosines = table;
  op.sines = table + rows.count * op.pairs * (wide ? 8 : 4);
}

/// Allocates once, fills the tables, and tells the ops where all of it lies.
pp_status_t Kernels::State::placeAll(std::string &why) {
  int64_t scalars = align(scratchBytes), failures = scalars + align(sizeof(OptimizerScalars));
  const int64_t routed = failures + align(sizeof(int32_t));
  const bool hasRouters = std::any_of(ops.begin(), ops.end(), [](const PreparedOp &op) {
    return op.kernel == Kernel::route || op.kernel == Kernel::route_bwd;
  });
  bytes = routed + (hasRouters ? align(sizeof(RouterSums)) : 0);
  for (auto &[key, at] : tables) {
    at = bytes;
    int64_t pairs = pairsOfRope(std::get<1>(key), std::get<3>(key));
    bytes += align(2 * std::get<0>(key) * pairs * (std::get<4>(key) ? 8 : 4));
  }
  if (!memory.allocate(size_t(bytes), why))
    return PP_IO;
  char *base = memory.data();
  launches.scalars = reinterpret_cast<OptimizerScalars *>(base + scalars);
  launches.failures = reinterpret_cast<int32_t *>(base + failures);
  launches.routed = hasRouters ? reinterpret_cast<RouterSums *>(base + routed) : nullptr;
  for (const auto &[key, at] : tables) {
    auto [s, d, offset, params, wide] = key;
    std::vector<char> table = wide ? ropeTable<double>(s, d, offset, params) : ropeTable<float>(s, d, offset, params);
    if (!memory.upload(size_t(at), table.data(), table.size())) {
      why = "the device refused a copy";
      return PP_IO;
    }
  }
  for (PreparedOp &op : ops)
    placeOp(op, base);
  for (PreparedOp &op : parts)
    placeOp(op, base);
  return PP_OK;
}

Kernels::Kernels(std::unique_ptr<State> state) : state(std::move(state)) {}
Kernels::~Kernels() = default;

pp_status_t Kernels::prepare(const std::vector<OpSpec> &specs, std::unique_ptr<Kernels> &kernels,
                             std::string &message) {
  try {
    auto state = std::make_unique<State>();
    state->ops.resize(specs.size());
    for (size_t i = 0; i < specs.size(); ++i) {
      std::string why;
      state->ops[i].number = int32_t(i);
      if (pp_status_t status = state->prepareOp(specs[i], state->ops[i], why)) {
        message = "op " + std::to_string(i) + " `" + specs[i].kernel + "`: " + why;
        return status;
      }
    }
    state->leaveDeltas();
    if (pp_status_t status = state->placeAll(message))
      return status;
    kernels.reset(new Kernels(std::move(state)));
    return PP_OK;
  } catch (const std::bad_alloc &) {
    message = "no memory for the kernels' tables";
    return PP_IO;
  }
}

const PreparedOp *Kernels::find(int32_t op) const {
  return op >= 0 && size_t(op) < state->ops.size() ? &state->ops[size_t(op)] : nullptr;
}

int64_t Kernels::scratchBytes() const { return state->bytes; }
void Kernels::bindStream(void *stream) { state->launches.stream = stream; }
void *Kernels::scalars() const { return state->launches.scalars; }
int32_t *Kernels::failures() const { return state->launches.failures; }
void *Kernels::routed() const { return state->launches.routed; }
const char *Kernels::isa() { return "cuda"; }
std::string Kernels::whyFailed() {
  return "a kernel could not be launched" + (whyNotLaunched.empty() ? "" : ": " + whyNotLaunched);
}
std::string Kernels::attention() { return SdpaPlan::describe(); }
std::string Kernels::engines() {
  const Engines &all = served;
  const std::string why = SdpaPlan::firstRefusal();
  return "attention: " + std::to_string(all.byCudnn) + " ops by cuDNN, " + std::to_string(all.byOurs) +
         " by own kernels" + (why.empty() ? "" : " (" + why + ")") + ", " + std::to_string(all.deltas) +
         " deltas left to it; epilogues: " + std::to_string(all.together) + " products with, " +
         std::to_string(all.apart) + " without; " + std::to_string(all.unaligned) + " calls of unaligned addresses, " +
         std::to_string(all.withoutOutput) + " backwards without their output" +
         (multiprocessorsLeft > 0 ? "; products for " + std::to_string(multiprocessorsLeft) + " multiprocessors" : "");
}
