// Executes rank programs in one thread over a rendezvous transport that is as unkind as its promises allow.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A rank that can go on is drawn at random; where none can and not all have ended, the program hangs: decided exactly,
// not by a clock. What memory nobody may read holds NaN: at the start all that the trainer has not filled, then every
// slot after its last use, and, between any two kernels, a slot that is being received into.
#ifndef PP_TEST_FUZZ_MACHINE_H
#define PP_TEST_FUZZ_MACHINE_H

#include "runtime/Program.h"
#include "runtime/Rank.h"
#include "runtime/kernels/Specs.h"
#include "test/fuzz/Dice.h"
#include <map>
#include <memory>
#include <vector>

namespace pp::fuzz {

/// The outcome of a run.
enum class Truth {
  Clean,      ///< every number of every step as on one rank
  Wrong,      ///< it ended with other numbers
  NotANumber, ///< it read what nobody had written, or what was dead
  Hang,       ///< no rank could go on
  Fault,      ///< a kernel or the transport refused
  LeftOver    ///< a message was posted and not completed; the trainer refuses to go on
};

struct Outcome {
  Truth truth = Truth::Clean;
  std::string why;
};

/// One kernel of a body: its number in the table of ops, and per pointer the launch's slot (-1: null) and an offset.
/// `lists` are the runs of pointers (first, count) that the kernel takes as one list each.
struct KernelCall {
  int32_t op;
  std::vector<std::pair<int32_t, int64_t>> pointers;
  std::vector<std::pair<size_t, size_t>> lists;
};
using BodyCode = std::vector<KernelCall>;

/// A range of bytes of the arena.
struct Range {
  int64_t begin = 0, end = 0;
  [[nodiscard]] int64_t bytes() const { return end - begin; }
};

/// A launch, one end of a message, or the complete of one.
struct Step {
  enum class Kind { Launch, Send, Receive, Joint, Complete } kind = Kind::Launch;
  std::string name;
  const BodyCode *body = nullptr; ///< launch
  std::vector<int64_t> places;    ///< launch: offsets of its slots' tensors, then of its scratch
  Range read, written;            ///< post: what the transport takes and fills; empty if nothing
  int64_t offset = 0, shard = -1; ///< post: its slot, and that of its shard
  std::vector<int64_t> cuts;      ///< joint that gathers or scatters
  int64_t peer = -1, channel = 0; ///< post
  std::vector<int64_t> group;     ///< joint
  std::pair<int, int64_t> joint;  ///< joint: its kind and root
  int32_t message = -1;           ///< post, complete: number on the rank
  std::vector<Range> dead;        ///< what nobody reads after this step
};

/// The arguments of a kernel's function: addresses in the arena, lists of them, and the scalars that adamw reads last.
struct KernelArguments {
  KernelArguments(const PreparedOp &op, const KernelCall &call, const Step &step, char *arena, const void *scalars);
  KernelArguments(const KernelArguments &) = delete;
  void *addresses[32] = {}, *values[16] = {};
  KeyList keys, gradients;
};

struct RankCode {
  RankProgram tables; ///< weights, state, gradients, inputs, losses, messages
  std::vector<Step> steps;
};

struct Code {
  Program program;
  std::vector<RankCode> ranks;
};

/// When the transport reads what is sent and writes what is received: any time between post and complete is its right.
enum class Adversary {
  Early, ///< when the second end is posted, as the threads transport does
  Eager, ///< reads when the send is posted, writes at the last moment
  Late,  ///< both at the last moment
  Mixed  ///< drawn for each message
};

class Machine {
public:
  Machine(const Code &code, const Kernels &kernels, Adversary adversary, uint64_t seed);
  ~Machine();

  char *arena(size_t rank) { return arenas[rank]; }
  /// Runs one step of all ranks.
  Outcome run(OptimizerScalars optimizer);

private:
  struct Message;
  struct End;
  struct Lane;

  void step(size_t rank);
  void launch(size_t rank, const Step &step);
  void post(size_t rank, const Step &step);
  void open(Message &message, const Step &step);
  bool complete(size_t rank, const Step &step);
  void meet(Message &message);
  /// Spoils the memory that messages on their way may write; by `Early` they do not.
  void scribble(size_t rank);
  void take(End &end);
  void fail(Truth truth, const std::string &why);

  const Code &code;
  const Kernels &kernels;
  Adversary adversary;
  Dice dice;
  OptimizerScalars scalars;
  std::vector<char *> arenas;
  std::vector<size_t> next;
  std::vector<bool> blocked; ///< could not go on, and no message has met since
  std::map<std::vector<int64_t>, Lane> lanes;
  std::vector<std::map<int32_t, End *>> requests; ///< posted and not completed, by rank and number
  Outcome outcome;
};

/// Fills with NaN.
void poison(char *begin, int64_t bytes);

} // namespace pp::fuzz

#endif // PP_TEST_FUZZ_MACHINE_H
