// What --search prints: rows as they come, the table, the command line of each row, and words for what stands in it.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "analysis/Proof.h"
#include "tools/search/Searcher.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/FormatVariadic.h"

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;

namespace {

constexpr size_t kRows = 10, kReasons = 8, kUnjudged = 3;

/// Explains a seed of the planner by the begin of its name, before `+ J`.
struct SeedWords {
  StringRef begin, shown, words;
};
const SeedWords kSeeds[] = {
    {"wave ", "wave N",
     "units in the order of a wave of forwards and backwards, stretched in the N-th of several ways"},
    {"repetend ", "repetend N",
     "one microbatch's units, spaced in the N-th way, repeated as closely as ranks and memory allow"},
    {"list of ", "list of X", "the units of X in its order, each as soon as its inputs and the memory are there"},
    {"1F1B of ", "1F1B of N", "1F1B with at most N stashes on a rank"},
    {"V of ", "V of N", "a V with at most N stashes on a rank"},
    {"loop of ", "loop of N", "a loop with at most N stashes on a rank"},
    {"stages", "stages", "one microbatch after the other"}};

std::string quoted(const std::string &word) {
  bool isPlain = !word.empty() &&
                 llvm::all_of(word, [](char c) { return llvm::isAlnum(c) || StringRef("_./=,:+-@%").contains(c); });
  std::string text = "'";
  for (char c : word)
    text += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return isPlain ? word : text + "'";
}

/// The words of a command line that say what the program is: without its output, the schedule where another one takes
/// its place, and what --search itself reads.
std::vector<std::string> programWords(const SearchCommand &command, bool isWritten,
                                      const std::vector<std::string> &scheduleDefines) {
  std::vector<std::string> kept;
  for (size_t i = 1; i < command.words.size(); ++i) {
    StringRef word = command.words[i], bare = word.ltrim('-'), name = bare.split('=').first;
    bool isOption = word.starts_with("-") && word != "-";
    std::string next = i + 1 < command.words.size() ? command.words[i + 1] : "";
    bool isDefine = isOption && bare.starts_with("D");
    bool takesNext = isOption && (bare == "D" || bare == "o" || bare == "schedule" || bare == "emit");
    StringRef define = bare == "D" ? StringRef(next) : bare.drop_front(isDefine ? 1 : 0);
    bool isOfSchedule = isDefine && llvm::is_contained(scheduleDefines, define.split('=').first.str());
    bool isDropped = isOption && llvm::is_contained({"search", "search-seconds", "emit", "o", "prove", "plan"}, name);
    isDropped |= !isWritten && isOption && (name == "schedule" || isOfSchedule);
    if (!isDropped)
      kept.push_back(command.words[i]);
    if (takesNext && ++i && !isDropped)
      kept.push_back(next);
  }
  return kept;
}

} // namespace

std::string pp::megatronLayout(ProgramOp program) {
  std::string text;
  int64_t stages = 0, run = 0, ranks = static_cast<int64_t>(program.getRanks());
  for (auto piece : program.getOps<PieceOp>()) {
    bool isInTurn = piece.getCoord().isStage() && piece.getAtAttr() && piece.getAtAttr().getRanks().size() == 1 &&
                    piece.getAtAttr().getRanks().front() == stages % ranks;
    if (!isInTurn)
      return "";
    text += stages++ == 0 ? "E" : "|";
    std::set<int64_t> layers;
    for (Attribute part : piece.getParts())
      layers.insert(cast<IntegerAttr>(cast<ArrayAttr>(part)[1]).getInt());
    layers.erase(-1);
    run = static_cast<int64_t>(layers.size());
    if (run > 0)
      text += run == 1 ? "t" : "t*" + std::to_string(run);
  }
  return stages < 2 || stages % ranks != 0 ? "" : text + "L";
}

std::string Searcher::rowText(double seconds, const PlanOutcome &outcome) const {
  return llvm::formatv("{0,7:F1} s: step {1,10}, peak {2,11}  ", seconds, planTime(outcome.step, isUnitTime),
                       formatBytes(outcome.peak));
}

/// What needs least of all that was tried, where nothing fits.
std::string Searcher::nearestText() const {
  if (nearest.second.empty())
    return "";
  return llvm::formatv("; the nearest is `{0}`, which needs at least {1:F2} times as much", nearest.second,
                       nearest.first);
}

/// The command line that simulates this row again.
std::string Searcher::commandOf(const Candidate &candidate) const {
  FrontendOptions its = optionsOf(candidate, candidate.layout.microbatches);
  std::string text = command.words.front();
  for (const std::string &word : programWords(command, candidate.file.empty(), scheduleDefines))
    text += " " + quoted(word);
  if (!candidate.file.empty())
    text += " --schedule=" + quoted(its.schedule);
  size_t own =
      options.defines.size() - (candidate.file.empty() ? 0 : llvm::count_if(options.defines, [&](auto &define) {
        return llvm::is_contained(scheduleDefines, define.first);
      }));
  for (const auto &[name, value] : llvm::drop_begin(its.defines, own))
    text += " -D " + quoted(name + "=" + value);
  if (candidate.cut)
    text += " --plan";
  if (isOwnLimit)
    text += " --memory-limit=" + std::to_string(request.proofs.memoryLimit);
  return text + " --emit=stats";
}

void Searcher::print() {
  std::lock_guard guard(lock);
  isPrinted = true;
  os << "schedules for " << written.devices() << (written.devices() == 1 ? " device, " : " devices, ")
     << written.sequences() << " sequences a step, " << limits.layers << " layers within " << memory
     << (isOwnLimit ? ", what the schedule as written needs" : "") << "; " << tried << " tried"
     << (isInterrupted ? ", then interrupted"
         : hasEnded    ? ""
                       : ", then time was over")
     << "; " << writtenTime << "\n";
  os << llvm::formatv("{0,3}  {1,10}  {2,10}  {3,6}  {4,11}  {5}\n", "", "step", "bound", "bubble", "peak", "schedule");
  std::set<const SeedWords *> words;
  bool isJustified = false;
  for (auto [number, row] : llvm::enumerate(ArrayRef(rows).take_front(kRows))) {
    const PlanOutcome &its = row.outcome;
    std::string seed = row.candidate.cut ? ": " + its.seed : "";
    os << llvm::formatv("{0,3}  {1,10}  {2,10}  {3,6}  {4,11}  {5}\n", number + 1, planTime(its.step, isUnitTime),
                        its.bound > 0 ? planTime(its.bound, isUnitTime) : "-",
                        llvm::formatv("{0:F3}", its.bubble).str(), formatBytes(its.peak),
                        row.candidate.describe(written) + seed);
    os << "     " << commandOf(row.candidate) << "\n";
    for (const SeedWords &known : kSeeds)
      if (row.candidate.cut && StringRef(its.seed).starts_with(known.begin))
        words.insert(&known);
    isJustified |= row.candidate.cut && StringRef(its.seed).contains(" + J");
  }
  os << "bound: no order of these units on these ranks makes a step shorter\n";
  for (const SeedWords &known : kSeeds)
    if (words.count(&known))
      os << known.shown << ": " << known.words << "\n";
  if (isJustified)
    os << "+ J: then every unit slid as late as it can go, and back as early as it can go\n";
  if (!rows.front().layout.empty())
    os << "stages of the best row as Megatron lays them out: " << rows.front().layout << "\n";
  printUnjudged();
  printReasons();
}

/// Prints candidates that may be shorter than the best row by their estimates.
void Searcher::printUnjudged() const {
  std::vector<SearchProbe> left;
  for (const SearchProbe &its : fittingProbes())
    if (its.estimate < rows.front().outcome.step && !llvm::is_contained(judged, its.candidate))
      left.push_back(its);
  llvm::stable_sort(left, [](const SearchProbe &a, const SearchProbe &b) { return a.estimate < b.estimate; });
  for (const SearchProbe &its : ArrayRef(left).take_front(kUnjudged))
    os << "time was over before this was judged: about " << planTime(its.estimate, isUnitTime) << "  "
       << its.candidate.describe(written) << "\n     " << commandOf(its.candidate) << "\n";
}

void Searcher::printReasons() const {
  std::vector<std::pair<int, std::string>> most;
  int count = 0;
  for (const auto &[kind, its] : reasons) {
    most.push_back(its);
    count += its.first;
  }
  llvm::stable_sort(most, [](const auto &a, const auto &b) { return a.first > b.first; });
  if (count > 0)
    os << "not possible: " << count << ", for " << most.size() << (most.size() == 1 ? " reason" : " reasons")
       << (most.size() > kReasons ? "; the most frequent:\n" : ":\n");
  for (const auto &[number, example] : ArrayRef(most).take_front(kReasons))
    os << llvm::formatv("{0,5}  {1}\n", number, example);
}

SearchResult Searcher::result() const {
  const SearchRow &row = rows.front();
  const Candidate &its = row.candidate;
  SearchResult made = {optionsOf(its, its.layout.microbatches), its.cut.has_value(), isInterrupted,
                       request.proofs.memoryLimit, ""};
  if (its.file.empty() || its.cut)
    return made;
  made.text =
      "# The best schedule that --search found is the library's: write `schedule " + its.call() + "` in `train`";
  for (const auto &[name, value] : its.layout.defines(written))
    made.text += ", and `" + StringRef(name).split('.').first.str() + " " + StringRef(name).split('.').second.str() +
                 " = " + value + "`";
  if (its.recompute)
    made.text += ", and compile with `-D recompute=" + *its.recompute + "`";
  made.text += ".\n# " + commandOf(its) + "\nimport \"std/" + its.file + ".pipe\"\n";
  return made;
}
