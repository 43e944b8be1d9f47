// Checks the specs of ops against what their kernels take, and takes pairs of ops apart.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "runtime/kernels/Specs.h"
#include "runtime/Program.h"
#include "runtime/Rank.h"
#include <algorithm>
#include <bit>
#include <cmath>
#include <optional>

using namespace pp;

namespace {

/// The names of a record's sizes or numbers: how many come once, how many stand in brackets; a bit for each with a `?`.
struct Names {
  size_t once = 0, repeated = 0;
  uint32_t marked = 0;

  constexpr explicit Names(std::string_view text) {
    for (size_t i = 0; i < text.size(); ++i) {
      if (i == 0 || text[i - 1] == ' ')
        ++(repeated > 0 || text[i] == '[' ? repeated : once);
      if (text[i] == '?')
        marked |= 1u << (once + repeated - 1);
    }
  }
  [[nodiscard]] constexpr bool isMarked(size_t i) const {
    return marked >> (i < once ? i : once + (i - once) % repeated) & 1;
  }
  /// How many numbers must be there.
  [[nodiscard]] constexpr size_t least() const { return once - size_t(std::popcount(marked)); }
};

struct KernelFacts {
  std::string_view name;
  Names dims, params;
  uint32_t flags;
};
constexpr KernelFacts kernelFacts[] = {
#define PP_KERNEL(name, dims, params, flags, ...) {#name, Names(dims), Names(params), flags},
#include "runtime/kernels/Kernels.def"
};

constexpr struct {
  std::string_view name;
  OpFlag flag;
} flagNames[] = {
#define PP_FLAG(flag, name) {name, flag},
#include "runtime/kernels/Kernels.def"
};

std::optional<Kernel> findKernel(const std::string &name) {
  for (int i = 0; i < kernelCount; ++i)
    if (name == kernelFacts[i].name)
      return Kernel(i);
  return std::nullopt;
}

bool isAttention(Kernel kernel) { return kernel == Kernel::attention || kernel == Kernel::attention_bwd; }

/// Updates by the rank's rate, which a group of weights may multiply.
bool isUpdate(Kernel kernel) {
  return kernel == Kernel::adamw || kernel == Kernel::adamw_all || kernel == Kernel::sgd || kernel == Kernel::muon;
}

std::string checkDropout(double rate, double site) {
  return !(rate >= 0 && rate < 1) ? "a rate of " + std::to_string(rate) + "; expected one of at least 0 and below 1"
         : site >= 1 << 16        ? "site " + std::to_string(int64_t(site)) + " has more than 16 bits"
                                  : "";
}

/// `best` of equal groups of at least so many experts have the k that are chosen.
bool areGroups(int64_t experts, int64_t k, double groups, double best, int64_t least) {
  auto count = int64_t(groups);
  return count >= 1 && experts % count == 0 && (count == 1 || experts / count >= least) && best >= 1 &&
         best <= groups && k <= int64_t(best) * (experts / count);
}

std::string counted(size_t n, const char *noun) { return std::to_string(n) + " " + noun + (n == 1 ? "" : "s"); }

bool hasTargets(Kernel kernel) {
  return kernel == Kernel::cross_entropy || kernel == Kernel::cross_entropy_loss ||
         kernel == Kernel::cross_entropy_dz || kernel == Kernel::token_mean || kernel == Kernel::token_mean_bwd;
}

/// Of a shard; those from `vocabulary` on are padding.
std::string checkColumns(int64_t first, int64_t width, int64_t vocabulary) {
  return first >= vocabulary || width > vocabulary
             ? "columns " + std::to_string(first) + " to " + std::to_string(first + width - 1) +
                   " do not fit a vocabulary of " + std::to_string(vocabulary)
             : "";
}

/// What a kernel asks of its dims beyond their number; empty when they are fine.
std::string checkDims(const PreparedOp &op) {
  const int64_t *d = op.dims;
  const bool isMean = op.kernel == Kernel::token_mean || op.kernel == Kernel::token_mean_bwd;
  if (isMean && !(op.params[2] >= 0 && op.params[2] < divisorCount))
    return "divisor " + std::to_string(int64_t(op.params[2])) + "; expected 0 to " + std::to_string(divisorCount - 1);
  if (hasTargets(op.kernel) && !isMean && !(op.params[2] >= 0 && op.params[2] <= mostAhead))
    return "targets " + std::to_string(int64_t(op.params[2])) + " places further on; expected 0 to " +
           std::to_string(mostAhead);
  if (hasTargets(op.kernel) && !(op.params[3] >= 0 && std::isfinite(op.params[3])))
    return "a z-loss of " + std::to_string(op.params[3]) + "; expected at least 0";
  switch (op.kernel) {
  case Kernel::attention:
  case Kernel::attention_bwd:
    if (d[2] % d[3])
      return std::to_string(d[2]) + " heads are no multiple of " + std::to_string(d[3]) + " kv heads";
    if (!op.has(Causal) && (op.params[0] > 0 || op.has(Documents)))
      return "windows and documents need the flag `causal`";
    if (op.has(Packed) && (op.chunkCount != 1 || op.chunks[0].length != d[1] || op.chunks[0].position != d[5] ||
                           op.has(OpFlag(Zigzag | Accumulate | Sums | AccumulateKv))))
      return "with the flag `packed` keys are those of the queries, and nothing is added to";
    return op.has(Dropped) ? checkDropout(op.params[3], op.params[4]) : "";
  case Kernel::scan:
  case Kernel::scan_bwd:
    return d[2] % d[3] ? std::to_string(d[2]) + " heads are no multiple of " + std::to_string(d[3]) + " heads of keys"
                       : "";
  case Kernel::dropout:
    return checkDropout(op.params[0], double(d[4]));
  case Kernel::route:
  case Kernel::choice_counts:
  case Kernel::route_bwd:
    if (d[2] > d[1])
      return std::to_string(d[2]) + " choices of " + std::to_string(d[1]) + " experts";
    if (op.has(Sparsemixer) && (d[2] != 2 || d[1] < 2))
      return std::to_string(d[2]) + " choices of a sparsemixer, which has 2";
    if (op.kernel == Kernel::route && !(op.params[8] >= 0 && op.params[8] < double(d[1])))
      return std::to_string(int64_t(op.params[8])) + " of " + std::to_string(d[1]) + " experts without rows";
    if (op.kernel == Kernel::route && !areGroups(d[1], d[2], op.params[4], op.params[5], op.has(Largest) ? 1 : 2))
      return "choices among " + std::to_string(int64_t(op.params[5])) + " of " + std::to_string(int64_t(op.params[4])) +
             " groups of " + std::to_string(d[1]) + " experts";
    if (const int64_t held = d[1] - int64_t(op.params[8]); op.kernel == Kernel::route && held % d[4])
      return std::to_string(held) + " experts are not cut in " + std::to_string(d[4]) + " sections";
    if (op.kernel == Kernel::route &&
        d[5] > d[0] * (d[4] == 1 ? d[2] : std::min(d[2], (d[1] - int64_t(op.params[8])) / d[4])))
      return std::to_string(d[5]) + " rows of a section are more than can come";
    return d[0] % d[3] ? "groups of " + std::to_string(d[3]) + " do not divide " + std::to_string(d[0]) + " tokens"
                       : "";
  case Kernel::expert_linear:
  case Kernel::expert_linear_dx:
  case Kernel::expert_linear_dw:
  case Kernel::expert_bias:
  case Kernel::expert_bias_dw:
    if (const int64_t sections = op.kernel == Kernel::expert_bias || op.kernel == Kernel::expert_bias_dw ? d[3] : d[4];
        d[0] % sections)
      return std::to_string(d[0]) + " rows are not cut in " + std::to_string(sections) + " sections";
    return "";
  case Kernel::rope:
    return op.pairs == 0 ? "a head of width " + std::to_string(d[3]) + " has no pairs; expected an even width" : "";
  case Kernel::positions:
  case Kernel::positions_dw:
    if (int64_t last = op.positionOf(d[1] - 1, d[1], d[3]); last >= d[4])
      return "positions " + std::to_string(d[3]) + " to " + std::to_string(last) + " do not fit a context of " +
             std::to_string(d[4]);
    return "";
  case Kernel::embedding:
  case Kernel::embedding_dw:
    return d[3] >= d[4] || d[2] > d[4] ? "rows " + std::to_string(d[3]) + " to " + std::to_string(d[3] + d[2] - 1) +
                                             " do not fit a vocabulary of " + std::to_string(d[4])
                                       : "";
  case Kernel::cross_entropy_stats:
  case Kernel::cross_entropy_dz:
    return checkColumns(d[2], d[1], d[3]);
  case Kernel::token_stats:
  case Kernel::token_stats_bwd:
  case Kernel::token_shard:
    if (const int64_t picks = op.kernel == Kernel::token_shard ? d[4] : d[2]; picks > mostPicks)
      return std::to_string(picks) + " columns to pick of each row; expected at most " + std::to_string(mostPicks);
    return op.kernel == Kernel::token_shard       ? checkColumns(d[2], d[1], d[3])
           : op.kernel == Kernel::token_stats_bwd ? checkColumns(d[3], d[1], d[4])
                                                  : "";
  case Kernel::token_merge:
    return d[2] < 4 ? std::to_string(d[2]) + " statistics of each row; expected 3 and what is picked" : "";
  case Kernel::segment_sum:
  case Kernel::token_mean:
  case Kernel::token_mean_bwd:
    if (op.positionOf(d[1] - 1, d[1], d[2]) >= d[3])
      return "places " + std::to_string(d[2]) + " to " + std::to_string(op.positionOf(d[1] - 1, d[1], d[2])) +
             " do not fit rows of " + std::to_string(d[3]);
    return d[0] % d[1] ? std::to_string(d[0]) + " tokens are no rows of " + std::to_string(d[1]) : "";
  case Kernel::sum_heads:
    return d[4] + d[1] > d[3] ? "columns " + std::to_string(d[4]) + " to " + std::to_string(d[4] + d[1] - 1) +
                                    " do not fit a width of " + std::to_string(d[3])
                              : "";
  case Kernel::slice_columns:
  case Kernel::place_columns:
    if (op.kernel == Kernel::place_columns && d[0] % d[4])
      return std::to_string(d[0]) + " rows are no multiple of " + std::to_string(d[4]);
    return d[2] + d[3] > d[1] ? "columns " + std::to_string(d[2]) + " to " + std::to_string(d[2] + d[3] - 1) +
                                    " do not fit a width of " + std::to_string(d[1])
                              : "";
  default:
    return "";
  }
}

bool takesTensors(Kernel kernel) { return kernel == Kernel::adamw_all || kernel == Kernel::sum_squares_all; }

/// Losses whose logits may have a cap.
bool takesCap(Kernel kernel) {
  return kernel == Kernel::cross_entropy || kernel == Kernel::cross_entropy_stats ||
         kernel == Kernel::cross_entropy_dz || kernel == Kernel::token_stats || kernel == Kernel::token_shard ||
         kernel == Kernel::token_stats_bwd;
}

/// A pair of numbers that are both there or both left out.
bool endsWithPair(Kernel kernel) { return isUpdate(kernel) || kernel == Kernel::route; }

bool takesParams(const OpSpec &spec, const KernelFacts &facts, Kernel kernel) {
  const size_t count = spec.params.size(), least = facts.params.least(), most = facts.params.once;
  if (isAttention(kernel) && std::count(spec.flags.begin(), spec.flags.end(), "dropout"))
    return count == 6 || count == 7;
  if (kernel == Kernel::rope && spec.dims[3] > 0 && count > 1)
    return count <= 1 + size_t(spec.dims[3]) / 2 || (count == 4 + size_t(spec.dims[3]) / 2 && spec.dims[3] % 2 == 0);
  return count >= least && count <= most && !(endsWithPair(kernel) && count == least + 1);
}

bool takesRows(Kernel kernel) { return kernel == Kernel::embedding || kernel == Kernel::embedding_dw; }

} // namespace

/// Rows in two runs of each sequence: takes the last dim, where the second run begins.
static std::string readRuns(OpSpec &spec, PreparedOp &op) {
  if (!std::count(spec.flags.begin(), spec.flags.end(), "zigzag"))
    return "";
  if (spec.dims.size() < 2 || spec.dims[1] % 2)
    return "two runs of rows need an even number of them";
  op.second = spec.dims.back();
  spec.dims.pop_back();
  return op.second < spec.dims[1] / 2 ? "the second run begins at position " + std::to_string(op.second) : "";
}

/// With the flag `packed`, reads and removes the last dim, which says how the columns of a row are shared out. An
/// attention has no such dim.
static std::string readPacked(OpSpec &spec, PreparedOp &op) {
  const bool isRope = op.kernel == Kernel::rope, takesMore = kernelFacts[int(op.kernel)].flags & Packed;
  if (isAttention(op.kernel) || !takesMore || !std::count(spec.flags.begin(), spec.flags.end(), "packed"))
    return "";
  if (spec.dims.empty() || spec.dims.back() < 1)
    return isRope ? "with the flag `packed` at least one head passes"
                  : "with the flag `packed` p has at least one column";
  if (std::count(spec.flags.begin(), spec.flags.end(), "zigzag"))
    return "it takes not both flags, `packed` and `zigzag`";
  (isRope ? op.passing : op.gate) = spec.dims.back();
  spec.dims.pop_back();
  if (!isRope && !spec.dims.empty() && spec.dims[0] % op.gate)
    return std::to_string(spec.dims[0]) + " elements are not whole rows of " + std::to_string(op.gate);
  return "";
}

std::string pp::readSpec(const OpSpec &given, PreparedOp &op, std::vector<Chunk> &chunks) {
  OpSpec spec = given;
  std::optional<Kernel> kernel = findKernel(spec.kernel);
  if (std::string why = readRuns(spec, op); !why.empty())
    return why;
  if (!kernel)
    return "there is no such kernel";
  op.kernel = *kernel;
  op.type = spec.type;
  if (std::string why = readPacked(spec, op); !why.empty())
    return why;
  const KernelFacts &facts = kernelFacts[int(*kernel)];
  if (int(spec.type) >= typeCount)
    return "unsupported type number " + std::to_string(int(spec.type));
  const auto [once, repeated, marked] = facts.dims;
  if (takesRows(*kernel) && spec.dims.size() == 3) // all rows of the table
    op.dims[4] = spec.dims[2];
  else if (repeated > 0 ? spec.dims.size() < once + repeated || (spec.dims.size() - once) % repeated
                        : spec.dims.size() != once)
    return "expected " + counted(once, "dim") +
           (repeated == 0           ? ""
            : repeated == 1         ? " and one for each tensor"
            : takesTensors(*kernel) ? " and two for each tensor"
                                    : " and two for each chunk") +
           ", got " + std::to_string(spec.dims.size());
  const size_t least = facts.params.least();
  if (!takesParams(spec, facts, *kernel))
    return "expected " + counted(least, "param") +
           (*kernel == Kernel::rope ? ", or a factor, a frequency for each pair that turns, and three of a growth"
            : *kernel == Kernel::embedding_dw ? " or 1"
            : takesCap(*kernel)               ? ", or a cap behind"
            : isUpdate(*kernel)               ? ", or two of a group behind"
            : *kernel == Kernel::route
                ? ", or two of groups behind, a least sum, what is added, experts without rows, and a jitter"
            : isAttention(*kernel) ? " to 3, or 6 or 7 with the flag `dropout`"
                                   : "") +
           ", got " + std::to_string(spec.params.size());
  for (size_t i = 0; i < spec.dims.size(); ++i)
    if (spec.dims[i] < (facts.dims.isMarked(i) ? 0 : 1))
      return "dim " + std::to_string(i) + " is " + std::to_string(spec.dims[i]);
  std::copy_n(spec.dims.begin(), std::min(spec.dims.size(), once), op.dims);
  for (size_t i = once; i < spec.dims.size(); i += repeated)
    chunks.push_back({spec.dims[i], spec.dims[i + repeated - 1]});
  op.chunks = chunks.data();
  op.chunkCount = int64_t(chunks.size());
  if (endsWithPair(*kernel))
    std::fill_n(op.params + least, 2, 1);
  if (*kernel == Kernel::embedding_dw)
    op.params[0] = -1;
  std::copy_n(spec.params.begin(), *kernel == Kernel::rope ? 1 : spec.params.size(), op.params);
  if (*kernel == Kernel::rope)
    op.pairs = spec.params.size() == 1 && op.dims[3] % 2 ? 0 : pairsOfRope(op.dims[3], spec.params);
  for (const std::string &name : spec.flags) {
    uint32_t flag = 0;
    for (const auto &known : flagNames)
      if (name == known.name)
        flag = known.flag & facts.flags;
    if (!flag)
      return "it takes no flag `" + name + "`";
    op.flags |= flag;
  }
  return checkDims(op);
}

SizedCall pp::sizesOf(const OpSpec &spec) {
  return {spec.kernel, spec.dims, spec.params, int64_t(elementBytes(spec.type))};
}

std::array<double, 2> pp::ropeTurn(const std::vector<double> &params, int64_t d, int64_t position, int64_t j) {
  bool isTable = params.size() > 1;
  double frequency = isTable ? params[1 + size_t(j)] : std::pow(params[0], -2.0 * double(j) / double(d));
  double angle = double(position) * frequency, factor = isTable ? params[0] : 1;
  if (growsRope(d, params)) {
    const double *growth = params.data() + 1 + d / 2;
    factor *= 1 + growth[0] * std::log(1 + std::floor((double(position) + growth[2]) / growth[1]));
  }
  return {factor * std::cos(angle), factor * std::sin(angle)};
}

// --- Ops that stand for two plain ones: their specs, and their arguments among its own ---

bool pp::isPair(Kernel kernel) {
  return kernel == Kernel::linear_gelu || kernel == Kernel::linear_add || kernel == Kernel::linear_dx_gelu ||
         kernel == Kernel::linear_dw_bias;
}

std::array<OpSpec, 2> pp::partsOf(const OpSpec &pair) {
  const std::vector<int64_t> &d = pair.dims;
  if (pair.kernel == "linear_gelu")
    return {{{"linear", pair.type, d, {}, pair.flags}, {"gelu", pair.type, {d[0] * d[2]}, {}, {}}}};
  if (pair.kernel == "linear_add")
    return {{{"linear", pair.type, d, {}, pair.flags}, {"add", pair.type, {d[0] * d[2]}, {}, {}}}};
  if (pair.kernel == "linear_dx_gelu")
    return {{{"linear_dx", pair.type, d, {}, pair.flags}, {"gelu_bwd", pair.type, {d[0] * d[1]}, {}, {}}}};
  std::vector<std::string> flags = pair.flags;
  std::erase(flags, "transposed");
  return {{{"linear_dw", pair.type, d, {}, pair.flags}, {"bias_dw", pair.type, {d[0], d[2]}, {}, flags}}};
}

pp_status_t pp::runParts(const PreparedOp &pair, void *const *a) {
  const PreparedOp &product = *pair.parts[0], &other = *pair.parts[1];
  if (pair.kernel == Kernel::linear_gelu) { // x w b u y
    pp_status_t status = product.body(product, a);
    return status ? status : other.body(other, a + 3);
  }
  if (pair.kernel == Kernel::linear_add) { // x w b r y
    void *const first[] = {a[0], a[1], a[2], a[4]}, *const sum[] = {a[3], a[4], a[4]};
    pp_status_t status = product.body(product, first);
    return status ? status : other.body(other, sum);
  }
  bool makesDx = pair.kernel == Kernel::linear_dx_gelu; // dy w u dx; or x dy dw db
  void *const first[] = {a[0], a[1], a[makesDx ? 3 : 2]};
  void *const dx[] = {a[3], a[2], a[3]}, *const db[] = {a[1], a[3]};
  pp_status_t status = product.body(product, first);
  return status ? status : other.body(other, makesDx ? dx : db);
}

const void *const *pp::KeyList::of(const PreparedOp *op, const void *q, const void *const *given) {
  if (!op || !op->has(Packed))
    return given;
  const int64_t head = op->dims[4] * int64_t(elementBytes(op->type));
  own[0] = static_cast<const char *>(q) + op->dims[2] * head;
  own[1] = static_cast<const char *>(own[0]) + op->dims[3] * head;
  for (int i = 2; given && i < 2 + op->has(Documents) + op->has(Dropped); ++i)
    own[i] = given[i];
  return own;
}
