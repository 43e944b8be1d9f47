// Reads what pp-compile is asked to prove, and writes what was proved.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "tools/Proofs.h"
#include "tools/Forms.h"
#include "tools/FrontendFlags.h"

using namespace mlir;
using namespace pp;
namespace cl = llvm::cl;

namespace {
enum class Table { None, Text, Json };

/// Those of ChannelMap in their order, and all of them.
enum class Channels { Rank, Direction, Pair, Edge, Serial, All };

cl::opt<Channels> channels(
    "channels", cl::desc("prove progress for this map of messages to lanes"), cl::init(Channels::Edge),
    cl::cat(proofOptions()),
    cl::values(clEnumValN(Channels::Rank, "rank", "one lane for each rank"),
               clEnumValN(Channels::Direction, "direction", "a forward and a backward lane for each rank"),
               clEnumValN(Channels::Pair, "pair", "one lane for every two ranks"),
               clEnumValN(Channels::Edge, "edge", "one lane for every directed edge (default, what programs use)"),
               clEnumValN(Channels::Serial, "serial", "a post blocks all behind it on its rank"),
               clEnumValN(Channels::All, "all", "each of these maps")));
cl::opt<std::string> memoryLimit("memory-limit", cl::desc("bytes that a rank may allocate: 16GiB, 500M, 4096"),
                                 cl::value_desc("BYTES"), cl::cat(proofOptions()));
cl::opt<Table> prove("prove", cl::desc("print what was proved, and write nothing else without --emit"),
                     cl::init(Table::None), cl::ValueOptional, cl::cat(proofOptions()),
                     cl::values(clEnumValN(Table::Text, "", "as a table"),
                                clEnumValN(Table::Text, "text", "as a table"),
                                clEnumValN(Table::Json, "json", "as JSON")));
} // namespace

cl::OptionCategory &pp::proofOptions() { // a function, for options in other files may be initialised first
  static cl::OptionCategory category("proof options");
  return category;
}

NamedValues pp::channelNames() { return namedValues(channels); }

/// `16GiB`, `1.5G`, `4096`: a number, and what it counts in.
static std::optional<int64_t> parseBytes(StringRef text) {
  static constexpr std::pair<StringLiteral, double> kUnits[] = {{"KiB", 1024.0},
                                                                {"MiB", 1048576.0},
                                                                {"GiB", 1073741824.0},
                                                                {"TiB", 1099511627776.0},
                                                                {"kB", 1e3},
                                                                {"MB", 1e6},
                                                                {"GB", 1e9},
                                                                {"TB", 1e12},
                                                                {"k", 1e3},
                                                                {"M", 1e6},
                                                                {"G", 1e9},
                                                                {"T", 1e12}};
  double unit = 1, amount;
  for (auto [name, bytes] : kUnits)
    if (text.consume_back(name)) {
      unit = bytes;
      break;
    }
  if (text.trim().getAsDouble(amount) || !(amount >= 0) || amount * unit > 9e18)
    return std::nullopt;
  return static_cast<int64_t>(amount * unit);
}

FailureOr<ProofOptions> pp::requestedProofs() {
  ProofOptions options;
  options.channels = static_cast<ChannelMap>(channels.getValue());
  if (channels == Channels::All)
    options.channels.reset();
  if (memoryLimit.empty())
    return options;
  std::optional<int64_t> bytes = parseBytes(memoryLimit);
  if (!bytes)
    return usage("expected a number of bytes after --memory-limit, as in 16GiB, 500M or 4096; got `" + memoryLimit +
                 "`");
  options.memoryLimit = *bytes;
  return options;
}

bool pp::wantsProof() { return prove != Table::None; }
bool pp::wantsProofAlone() { return wantsProof() && !isFormRequested(); }

void pp::writeProof(ModuleOp module, const PassTimes &times, llvm::raw_ostream &os) {
  for (auto program : module.getOps<pipeline::ProgramOp>()) {
    Proof proof(program, times);
    if (prove == Table::Json)
      printProofJson(proof, os);
    else
      printProof(proof, os);
  }
}
