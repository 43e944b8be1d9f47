// What an emitted program says about itself: the JSON of `pp_program_json` and `pp_rank_table`, read once at start.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// pp_program_json:
//   {"name": "quickstart", "target": "cuda" (absent: cpu),
//    "model": "llama", "schedule": "one_f_one_b", "ranks": 4, "microbatches": 8, "updates": 2 (absent: 1),
//    "mesh": {"order": [["tensor", 1], ["context", 1], ["data", 2], ["pipeline", 4]]} (absent: a rank is one device),
//    "batch": 2, "sequence": 128, "vocab": 256, "precision": "f32" | "bf16" | "f16" | "f64", "parameters": 123456,
//    "folder": "/models/tiny" (absent: none; a run without --load begins with the weights there),
//    "flops_per_step": 1.5e9, "tokens_per_step": 2048,
//    "documents": true (absent: false; true: each update's loss is divided by its targets that count), "pad": 0,
//    "group": 2 (absent: 1; so many documents of the data stay together in a row),
//    "columns": [{"name": "adv", "width": 16 (absent: one value for each token), "int": true (absent: numbers),
//                 "default": 0.0 (absent: data must have it),
//                 "made": true (absent: it is of the data; true: `group` is where a token's group begins in its row,
//                 `member` which document of its group it is of)}] (absent: none; what the model reads beside tokens),
//    "divisor": 20 (absent: weights of targets; all losses are divided by what has this number, runtime/Rank.h),
//    "reports": ["divergence"] (absent: none; the names of values that are logged, and not trained),
//    "report_divisors": [0] (of each, as "divisor"; -1: a total, which is divided by nothing),
//    "optimizer": {"lr": 3e-3, "beta1": 0.9, "beta2": 0.95, "epsilon": 1e-8, "weight_decay": 0.1, "clip": 1.0,
//                  "warmup": 10, "decay_steps": 0, "min_lr": 0.1,
//                  "schedule": "cosine" | "linear" | "constant" | "wsd", "decay": 0, "lag": 0 | 1,
//                  "loss_scale": 65536.0, "scale_window": 2000}}
//   (decay_steps 0: the run's --steps; min_lr is a share of lr; clip 0: no clipping; the last two for f16 alone: the
//   first factor of the loss, and after how many good steps it doubles, 0: it stays.)
// json of a rank:
//   {"rank": 0, "arena_bytes": 1048576, "peak": {"act": 1024, ..., "total": 1048576}, "kernel_bytes": 65536,
//    "message_bytes": 128, "nccl_bytes": 72351744, "nccl_multiprocessors": 8,
//   "nccl_multiprocessors_of_collectives": 4 (these three of programs for cuda),
//    "ops":      [{"kernel": "linear", "type": "f32", "dims": [256, 128, 512], "params": [], "flags": ["bias"],
//                  "moved": [0, 128] (absent: none; bytes by which each pointer moves on)}],
//    "units":    [{"name": "0F0", "phase": "F", "task": "s0.F", "microbatch": 0, "flops": 1e6,
//                  "line": "1f1b.pipe:14:7" (absent: not known;
//                  in a function `task_list.pipe:15:20 called at mine.pipe:6:5`)}],
//    "messages": [{"kind": "send" | "receive", "peer": 1, "channel": 0, "bytes": 65536, "label": "act(0, 0)",
//                  "offset": 4096 (absent: in host memory),
//                  "line": "1f1b.pipe:14:7" (of one inside bodies all lines, as `llama.pipe:30:27, llama.pipe:31:5`)},
//                 {"kind": "all_reduce", "group": [0, 1], "channel": 7, "count": 1, "type": "f64", "label": "norm"},
//                 {"kind": "broadcast" | "reduce", "group": [0, 1], "root": 1, "channel": 7, "count": 64, ...},
//                 {"kind": "all_gather" | "reduce_scatter", "group": [0, 1], "cuts": [0, 128, 256], "count": 64, ...},
//                 {"kind": "all_reduce", "group": [0], "axes": ["data"], "channel": 17, "count": 64, ...},
//                 {"kind": "all_gather", "group": [0], "axes": ["context"], "zigzag": true (absent: false), ...},
//                 {"kind": "all_to_all", "group": [0], "axes": ["context"], "sequences": 2, "length": 32,
//                  "to": "columns" | "runs", "count": 1024, "inside": true, ...} (count: what a device gives and gets),
//                 {"kind": "all_to_all", "group": [0], "axes": ["expert"], "to": "sections" (equal ones), ...},
//                 {"kind": "all_gather", "group": [0], "axes": ["tensor"], "neighbours": 2 (absent: all of the line),
//                  "inside": true, ...}],
//    "weights":  [{"name": "model.norm.weight", "shape": [128], "stored": "plain", "type": "f32", "offset": 0,
//                  "init": {"kind": "normal" | "zero" | "one", "deviation": 0.02}, "save": true, "tied": false}],
//    "state":    [{"name": "model.norm.weight", "kind": "m" | "v" | "u" | "master" | "previous", "shape": [128],
//                  "type": "f32", "offset": 512}],
//    "grads":    [{"name": "model.norm.weight", "shape": [128], "stored": "plain", "type": "f32", "offset": 1024}],
//    "inputs":   [{"kind": "tokens" | "targets" | "source" | "starts" | "positions" | "rows" | "column",
//                  "microbatch": 0, "offset": 4096, "first": 64, "length": 32, "column": 1 (its number, of columns)}],
//    "losses":   [{"microbatch": 0, "offset": 8192, "type": "f32", "further": 8256 (absent: no second loss),
//                  "reports": [8320] (absent: none), "z": [8196] (absent: none)}],
//    "norm":     {"offset": 8256},
//    "forward":  {"units": 24, "messages": 10, "inputs": [..], "losses": [..]}}
// Offsets are bytes in the rank's arena. A weight stands once for every place that must hold it when a step begins;
// over all ranks exactly one place of each name has save = true. `shape` is ours ([in, out]); `stored` says how a
// checkpoint has it, `transposed`: [out, in]. `tied`: a copy of a weight that another place owns, same name, same
// value. State lies on the weight's owner; for 16 bits `master` holds the f32 master. `previous` is the weight as it
// was one update before the step begins, `previous2` two updates, and so on, where units read those. Grads are complete
// after the step, and lie on the owner: those of the last update.
// Inputs are i32[batch, length], tokens first to first + length of each sequence (absent: all that a device reads), as
// the trainer writes them before each step; columns [batch, length, width] of i32, f32, or f64 in f64. A loss is one
// scalar already scaled: the sum over an update's microbatches (and ranks) is the mean over them. `norm` is one f64,
// the squared norm of all gradients. `forward` (absent: there is none) is the second step, which evaluates: its units
// and messages are those from these numbers on, its inputs and losses have places of their own. Where a piece is cut
// over ranks, weights, state and grads have `begin` and `count`
// too: `shape` is that of the whole tensor, and at `offset` lie `count` elements of it from `begin` on; with `run` and
// `stride`, so many of each `stride` of them: columns of a matrix. Where a weight is cut over the devices of a rank
// they have `"base": 64, "dims": [[32, 128, 32], [64, 1, 64]]`, and `"copies": 2` where so many neighbours have the
// same: the element at [i, j] here is number base + 128 i + j of the whole; the third number says how many of the
// indices there are, and beyond them is padding, which is 0 and no element of a file. `begin` and `count` are then in
// what lies here.
//
// Each device of a rank reads the rank's text, and ranks in it become devices: the peer of a message the device of that
// rank with the same other coordinates, a group those of its ranks, and with `axes` all devices of them along these. A
// number in `dims`, `base`, `moved`, `begin`, `count` or `offset` may be `{"by": ["tensor"], "of": [0, 64]}`: that of
// the device's coordinates. A message with `inside` is posted and completed inside task bodies, as often as they run.
// Of a gather or scatter with `axes` that stands outside, each member's shard lies in the whole, where it belongs.
#ifndef PP_RUNTIME_PROGRAM_H
#define PP_RUNTIME_PROGRAM_H

#include "runtime/Kernels.h"
#include "runtime/Status.h"
#include "runtime/transport/Mesh.h"
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace pp {

/// Bytes of one element.
[[nodiscard]] constexpr size_t elementBytes(Type type) { return type == Type::F64 ? 8 : type == Type::F32 ? 4 : 2; }
/// `f32`, `bf16`, `f16`, `f64`.
[[nodiscard]] std::string_view elementName(Type type);

struct UnitSpec {
  std::string name;
  std::string phase;
  std::string task; ///< the body that it runs
  int64_t microbatch = -1;
  double flops = 0;
  std::string line; ///< of the schedule; empty: not known
};

/// A run of bytes of a whole that a shard has: where it lies in both.
struct ShardRange {
  int64_t whole, shard, bytes;
};

/// The ranges of one member's shard, read off `MessageSpec::cuts` on the way: a step allocates nothing.
class ShardRanges {
public:
  ShardRanges(const std::vector<int64_t> &cuts, size_t members, size_t member, bool inPlace, bool zigzag)
      : cuts(cuts), members(members), next(member), turn(zigzag ? members - 1 - member : member), inPlace(inPlace) {}
  [[nodiscard]] ShardRanges begin() const { return *this; }
  [[nodiscard]] std::default_sentinel_t end() const { return {}; }
  [[nodiscard]] bool operator==(std::default_sentinel_t) const { return next + 1 >= cuts.size(); }
  ShardRange operator*() const { return {cuts[next], inPlace ? cuts[next] : done, cuts[next + 1] - cuts[next]}; }
  ShardRanges &operator++() {
    done += (**this).bytes;
    const size_t round = next / members + 1, place = turn;
    turn = next % members;
    next = round * members + place;
    return *this;
  }

private:
  const std::vector<int64_t> &cuts;
  size_t members, next;
  size_t turn; ///< its place in the next round of members
  bool inPlace;
  int64_t done = 0; ///< bytes of the shard so far
};

/// Rows of one length that a member of an all_to_all gives another: where they begin and how far apart they lie in what
/// the one gives, and in what the other gets; in bytes.
struct Block {
  int64_t give, giveStride, take, takeStride, rows, bytes;
};

struct MessageSpec {
  enum class Kind : uint8_t { Send, Receive, AllReduce, Broadcast, Reduce, AllGather, ReduceScatter, AllToAll };
  Kind kind = Kind::Send;
  int32_t peer = -1;          ///< sends and receives; devices, as all below
  bool host = false;          ///< between the rank and its own host memory
  std::vector<int32_t> group; ///< collectives, ascending
  int32_t root = -1;          ///< broadcasts and reduces
  bool oneText = false;       ///< of a sum: its members run the same program, so they complete it in the same order
  bool inside = false;        ///< task bodies post it, as often as they run
  bool inPlace = false;       ///< of gathers and scatters: a shard lies in the whole, where it belongs
  std::string with;           ///< peer or root as people know it: `rank 1`
  std::vector<int64_t>
      cuts;            ///< gathers and scatters, of n members: the shard of the k-th is bytes cuts[k] to cuts[k + 1],
                       ///< cuts[n + k] to cuts[n + k + 1], ..
  bool zigzag = false; ///< in every second round the members come backwards
  /// An all_to_all moves this number of sequences of this length. A device has two runs of each with all columns, or
  /// all rows with its piece of the columns. Without sequences each member has an equal section for each other member.
  int64_t sequences = 0, length = 0;
  bool toColumns = false; ///< from runs to columns; else back
  int32_t channel = 0;
  int64_t bytes = 0;   ///< collectives too: count elements of `type`
  int64_t offset = -1; ///< sends and receives: where it lies in the arena; -1: not said
  int64_t count = 0;
  Type type = Type::F32;
  std::string label;
  std::string line; ///< of the schedule, or of the model where bodies post it; empty: not known
  [[nodiscard]] bool isCollective() const { return kind != Kind::Send && kind != Kind::Receive; }
  [[nodiscard]] bool isSharded() const { return kind == Kind::AllGather || kind == Kind::ReduceScatter; }
  /// Which member of the group this device is.
  [[nodiscard]] size_t memberOf(int32_t device) const;
  /// The ranges of the whole that the member's shard has, in order.
  [[nodiscard]] ShardRanges ranges(size_t member) const { return {cuts, group.size(), member, inPlace, zigzag}; }
  /// Whether the whole of a gather or scatter is one shard of each member after the other, of equal length.
  [[nodiscard]] bool hasEqualShards() const;
  /// The number of blocks that one member of an all_to_all gives another.
  [[nodiscard]] int64_t blocks() const { return sequences > 0 ? 2 * sequences : 1; }
  [[nodiscard]] Block block(size_t from, size_t to, int64_t index) const;
  /// The length of a member's shard; 0 where nothing is cut.
  [[nodiscard]] int64_t shardBytes(size_t member) const;
};

/// `send`, .. `reduce`: the kind as the json has it.
std::string_view kindName(MessageSpec::Kind kind);
/// The name of a collective's result: `sum`, `broadcast` or `gather`.
std::string_view jointName(const MessageSpec &message);
/// Whether two members take a collective for the same one, so that what one writes has room in the other.
[[nodiscard]] bool isSameCollective(const MessageSpec &a, const MessageSpec &b);
/// Bytes that come to this device from others in a message, if each member sends its own directly.
[[nodiscard]] int64_t bytesIn(const MessageSpec &message, int32_t device);
/// The message as errors name it, with its line.
[[nodiscard]] std::string describe(const MessageSpec &message);
/// The unit as errors name it: `0F3` and its line.
[[nodiscard]] std::string describe(const UnitSpec &unit);

/// How a checkpoint has an array: [out, in] or [experts, out, in] for our [in, out]; [1, n] for our [n]; or with the
/// columns of our two halves in turn.
enum class Stored : uint8_t { Plain, Transposed, Row, Alternate, Column };

/// A named array in the arena: a weight, a part of the optimizer's state, or a gradient.
struct TensorSpec {
  std::string name;
  std::vector<int64_t> shape; ///< ours: [in, out]
  Stored stored = Stored::Plain;
  Type type = Type::F32;
  int64_t offset = 0;
  int64_t begin = 0, count = -1; ///< what of it lies here; -1: all
  int64_t run = -1, stride = -1; ///< so many elements of each `stride`; -1: one after the other
  /// A dimension of a tensor that is cut over the devices of a rank: its indices here, their distance in the whole
  /// tensor, and the number of real indices; indices beyond that are padding.
  struct Dim {
    int64_t size, stride, valid;
    bool operator==(const Dim &) const = default;
  };
  std::vector<Dim> dims;  ///< empty: it is not cut; else `begin` and `count` are in what they say
  int64_t base = 0;       ///< where the first of them lies in the whole tensor
  int64_t copies = 1;     ///< so many neighbours along `tensor` have the same
  bool ofReplica = false; ///< each device along `data` has a part of its own, which may be empty
  bool ofExpert = false;  ///< and so has each along `expert`, but those with the same experts have the same
  [[nodiscard]] int64_t wholeElements() const;
  [[nodiscard]] int64_t elements() const;
  /// Matrices, one behind the other, whose rows are columns in a checkpoint; one of a single row where nothing turns.
  struct Turned {
    int64_t count, rows, columns;
  };
  [[nodiscard]] Turned turned() const;
  [[nodiscard]] int64_t bytes() const { return elements() * static_cast<int64_t>(elementBytes(type)); }
  /// Which element of the whole tensor the i-th one here is; -1: padding.
  [[nodiscard]] int64_t place(int64_t i) const;
  /// `count` elements from one here on, of which the whole tensor has every `step`-th; `whole` -1: they are padding.
  struct Stretch {
    int64_t whole, step, count;
  };
  [[nodiscard]] Stretch stretch(int64_t i) const;
  /// A run of elements that lie beside each other here and in the whole tensor.
  struct Range {
    int64_t here, whole, count;
  };
  /// All that lie here, in order, padding left out.
  [[nodiscard]] std::vector<Range> ranges() const;
};

struct WeightSpec : TensorSpec {
  enum class Init : uint8_t { Normal, Zero, One, Uniform };
  Init init = Init::Normal;
  double deviation = 0.02; ///< of Normal; the bound of Uniform
  bool save = true;
  bool frozen = false; ///< no update changes it
  bool tied = false;
};

struct StateSpec : TensorSpec {
  std::string kind; ///< m, v, u, master, previous, previous2, ..
  /// It begins as the weight itself does.
  [[nodiscard]] bool isWeight() const { return kind != "m" && kind != "v" && kind != "u"; }
};

struct InputSpec {
  /// Starts: where in the sequence each token's document begins. Positions: how far behind that the token stands.
  /// Rows: the number of its sequence in the run. Column: what the data have for the target.
  enum class Kind : uint8_t { Tokens, Targets, Source, Starts, Positions, Rows, Column };
  Kind kind = Kind::Tokens;
  int64_t microbatch = 0;
  int64_t offset = 0;
  int64_t first = 0, length = 0; ///< the tokens of each sequence that it holds
  int64_t ahead = 0;             ///< tokens, targets: each place has that of so many places on in its document
  size_t column = 0;             ///< the number of a column
};

/// What the data have for each token, beside it.
struct ColumnSpec {
  std::string name;
  int64_t width = 0; ///< 0: one value; else so many
  bool isInt = false;
  std::optional<double> absent; ///< of all tokens, where data have no such column; none: they must
  bool isMade = false;          ///< it follows from the rows: `group` or `member`
  bool isGiven = false;         ///< the command line says what is absent
  [[nodiscard]] int64_t values() const { return width > 0 ? width : 1; }
};

struct LossSpec {
  int64_t microbatch = 0;
  int64_t offset = 0;
  Type type = Type::F32;
  int64_t further = -1;         ///< where a second loss lies, which is told apart
  std::vector<int64_t> reports; ///< where the program's reports lie
  std::vector<int64_t> z;       ///< where z-losses of these lie
};

struct PeakSpec {
  std::string role;
  int64_t bytes = 0;
};

/// The step that runs forward alone.
struct ForwardSpec {
  size_t firstUnit = 0, firstMessage = 0; ///< in the tables of the rank; those before are the training step's
  std::vector<InputSpec> inputs;
  std::vector<LossSpec> losses;
};

/// The program of one device, from the JSON of its rank.
struct RankProgram {
  int32_t rank = 0;
  int32_t device = 0;
  std::string name;                ///< the device as people know it: `rank 1`
  int64_t arenaBytes = 0;          ///< all of the rank's block of memory
  int64_t hostBytes = 0;           ///< at its end: what the schedule moves to host memory
  int64_t kernelBytes = -1;        ///< scratch and tables of its kernels, at most; -1: not said
  int64_t messageBytes = -1;       ///< in which its sums over MPI are made, at most; -1: not said
  int64_t targetWeightBytes = 0;   ///< for the weights of targets that its data may have
  int64_t ncclBytes = -1;          ///< for a GPU: what NCCL's channels take of it, at most; -1: it is for a CPU
  int64_t ncclMultiprocessors = 0; ///< that its messages hold at once, at most, with 4 blocks of threads each
  int64_t ncclMultiprocessorsOfCollectives = 0; ///< the same if no other messages go over NCCL
  std::vector<PeakSpec> peaks;                  ///< by role, and `total`
  std::vector<OpSpec> ops;
  std::vector<UnitSpec> units;
  std::vector<MessageSpec> messages;
  std::vector<WeightSpec> weights;
  std::vector<StateSpec> state;
  std::vector<TensorSpec> grads;
  std::vector<InputSpec> inputs;
  std::vector<LossSpec> losses;
  int64_t normOffset = -1; ///< -1: this rank does not hold the norm
  std::optional<ForwardSpec> forward;
  [[nodiscard]] int64_t plannedPeak() const;
  /// Planned bytes of scratch beside the arena: for kernels, for messages, and for the weights of targets.
  [[nodiscard]] int64_t plannedScratch() const;
  /// The number of units, and of messages, in a training step.
  [[nodiscard]] size_t stepUnits() const { return forward ? forward->firstUnit : units.size(); }
  [[nodiscard]] size_t stepMessages() const { return forward ? forward->firstMessage : messages.size(); }
};

struct OptimizerSpec {
  std::string kind = "adamw"; ///< sgd; or muon, beside which AdamW has the rate restLr and the decay restDecay
  double momentum = 0, restLr = 0, restDecay = 0;
  bool nesterov = false;
  bool barrier = true;              ///< updates wait for the norm of all gradients
  std::string adjust;               ///< how long Muon's steps are
  std::vector<std::string> noDecay; ///< weights with such a text in their names do not shrink
  /// Weights with the text in their names, and what their rate, or their decay, is multiplied by; the first one counts.
  std::vector<std::pair<std::string, double>> lrScale, decayScale;
  double lr = 3e-3, beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8, weightDecay = 0, clip = 0;
  /// The schedule of the learning rate; runtime/trainer/Rate.h has the formulas.
  enum class Rate : uint8_t { Cosine, Linear, Constant, Wsd };
  Rate rate = Rate::Cosine;
  int64_t warmup = 0, decaySteps = 0;
  int64_t decay = 0;       ///< steps in which the rate of `wsd` falls
  int64_t lag = 0;         ///< 1: the first step counts as number 0, as in transformers
  double minLr = 0.1;      ///< a share of lr
  double lossScale = 1;    ///< the first one
  int64_t scaleWindow = 0; ///< good steps before it doubles; 0: it stays
};

[[nodiscard]] const char *nameOf(OptimizerSpec::Rate rate);

/// Adapters beside the weights of a model, which are frozen.
struct LoraSpec {
  int64_t rank = 0; ///< 0: there are none
  double alpha = 0, factor = 0;
  bool rslora = false;
  double dropout = 0; ///< of what A reads
};

/// The contents of pp_program_json.
struct Program {
  std::string name, model, schedule, precision;
  std::string function;           ///< a hash of what the model computes; empty: not known
  std::string folder;             ///< its weights are the first ones; empty: none
  std::string config;             ///< what its config.json says, as frontend/model/ConfigFacts.h has it
  std::string target = "cpu";     ///< what it was compiled for
  std::string fingerprint = "{}"; ///< JSON: what profiles and traces say that they were made from
  int32_t ranks = 1;
  Mesh mesh; ///< of the ranks and their devices
  int64_t microbatches = 1, updates = 1, batch = 1, sequence = 1, vocab = 1, parameters = 0;
  double flopsPerStep = 0, tokensPerStep = 0;
  bool readsSource = false; ///< the model has an encoder with tokens of its own
  bool documents = false;   ///< rows hold documents, and the loss is divided by the targets that count
  int32_t pad = 0;          ///< the token behind the last document of a row
  int64_t group = 1;        ///< so many documents of the data stay together in a row
  std::vector<ColumnSpec> columns;
  int64_t divisor = 0;                 ///< of all losses, as runtime/Rank.h numbers them; 0: the weights of targets
  std::vector<std::string> reports;    ///< names of values that are logged and not trained
  std::vector<int64_t> reportDivisors; ///< of each, as `divisor`; -1: a total, which is divided by nothing
  OptimizerSpec optimizer;
  LoraSpec lora;
  /// The weights of the model stay as they are read, and a checkpoint has the adapters alone.
  [[nodiscard]] bool adapts() const { return lora.rank > 0; }
  [[nodiscard]] int32_t devices() const { return mesh.devices(); }
  /// The number of replicas, each of which runs the schedule on its own microbatches.
  [[nodiscard]] int32_t replicas() const { return mesh.size(Axis::Data); }
  [[nodiscard]] int64_t sequencesPerStep() const { return microbatches * batch * replicas(); }
  /// `8 microbatches of 4 x 128 tokens`, and `on each of 2 replicas`.
  [[nodiscard]] std::string stepText() const;
  /// Bytes of one value of a column.
  [[nodiscard]] int64_t columnBytes(const ColumnSpec &column) const {
    return precision == "f64" && !column.isInt ? 8 : 4;
  }
  /// Gradients of f16 are those of a multiple of the loss.
  [[nodiscard]] bool scalesLoss() const { return precision == "f16"; }
  /// Updates read the norm, and a step whose gradients are not finite is skipped. Else the norm is for people alone.
  [[nodiscard]] bool readsNorm() const { return scalesLoss() || optimizer.clip > 0; }
};

/// Reads pp_program_json; a text that does not hold what it must is PP_INTERNAL.
Status readProgram(std::string_view json, Program &program);
/// Reads one rank's JSON and checks every offset against the arena and every peer against `program`; for the device of
/// that rank that lies in line with `rank.device`.
Status readRankProgram(std::string_view json, const Program &program, RankProgram &rank);

} // namespace pp

#endif // PP_RUNTIME_PROGRAM_H
