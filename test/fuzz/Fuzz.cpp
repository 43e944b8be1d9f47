// pp-fuzz: proofs against execution, on random schedules and on their mutants; a verdict must be what really happens.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Every schedule that is drawn is compiled, proved and run for two steps; then mutants of its rank programs are proved
// and run. What is proved must compute what one rank computes; what is refused must hang, compute something else, or
// read what nobody wrote, or fall under a stricter rule that Judge.cpp gives a reason for.
#include "test/fuzz/Inputs.h"
#include "test/fuzz/Judge.h"
#include "test/fuzz/Mutations.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/CommandLine.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/Format.h"
#include "llvm/Support/FormatVariadic.h"
#include "llvm/Support/raw_ostream.h"
#include <atomic>
#include <random>
#include <thread>

using namespace pp::fuzz;
namespace cl = llvm::cl;

namespace {

cl::opt<int64_t> caseCount("cases", cl::desc("how many programs to judge"), cl::init(3000));
cl::opt<std::string> seedText("seed", cl::desc("a number that the cases are drawn from, or random"), cl::init("1"));
cl::opt<std::string> only("only", cl::desc("this mutation alone"), cl::value_desc("MUTATION"));
cl::list<std::string> library("library", cl::desc("these schedules of the library alone"), cl::value_desc("NAME,.."),
                              cl::CommaSeparated);
cl::opt<std::string> stdlib("stdlib", cl::desc("folder of the library"), cl::init(PP_STDLIB_DIR));
cl::opt<int64_t> onlyBase("base", cl::desc("the mutants of this schedule alone"), cl::init(-1));
cl::opt<int> size("size", cl::desc("1: small schedules, 3: up to 5 ranks, 8 stages, 6 microbatches"), cl::init(3));
cl::opt<int> jobs("jobs", cl::desc("threads"), cl::init(2));
cl::opt<int> mutants("mutants", cl::desc("mutants of each schedule"), cl::init(12));
cl::opt<std::string> keep("keep", cl::desc("folder for programs on which verdict and outcome disagree"));
cl::opt<bool> messages("messages", cl::desc("count the proofs' messages by mutation and outcome"));

uint64_t seed = 1;

/// A number as it is, or a new one.
bool readSeed() {
  if (seedText != "random")
    return !llvm::StringRef(seedText).getAsInteger(10, seed);
  seed = std::random_device()();
  return true;
}

/// The command that makes the cases of one schedule again.
std::string again(int64_t base) {
  std::string command = "pp-fuzz --seed=" + std::to_string(seed) + " --base=" + std::to_string(base);
  for (auto [name, now, usual] : {std::tuple("size", int(size), 3), std::tuple("mutants", int(mutants), 12)})
    if (now != usual)
      command += " --" + std::string(name) + "=" + std::to_string(now);
  command += library.empty() ? "" : " --library=" + llvm::join(library, ",");
  return command + (only.empty() ? "" : " --only=" + only);
}

/// One schedule and its mutants, first the schedule as it is.
struct Base {
  int64_t number = 0;
  Schedule schedule;
  std::string error; ///< the compiler refuses it
  std::vector<Case> cases;
};

/// Two mutants of what the schedule's author wrote. Most are refused before there is anything to run; what compiles
/// must run clean, or the proofs must see it.
template <typename Add> void judgeActions(Judge &judge, Base &base, int64_t number, Add add) {
  for (int64_t mutant = mutants; mutant < mutants + 2; ++mutant) {
    Dice dice(pp::hashOf(pp::hashOf(seed, uint64_t(number)), uint64_t(mutant)));
    Schedule schedule = base.schedule;
    std::string name = mutateActions(schedule, dice), why;
    if (name.empty())
      continue;
    if (judge.compile(schedule, why)) {
      add(*judge.copy(), name, mutant);
      base.cases.back().schedule = schedule.text();
      continue;
    }
    Case refused;
    refused.mutation = name;
    refused.verdict = {false, false, "compiler", why, std::nullopt};
    refused.base = number;
    refused.mutant = mutant;
    base.cases.push_back(refused);
  }
}

Base judgeBase(Judge &judge, int64_t number) {
  uint64_t own = pp::hashOf(seed, uint64_t(number));
  Dice dice(own);
  Base result;
  result.number = number;
  result.schedule = drawSchedule(dice, size, library);
  if (!judge.compile(result.schedule, result.error)) {
    if (result.error.empty())
      result.error = "refused without a word";
    return result;
  }
  auto add = [&](mlir::ModuleOp module, llvm::StringRef mutation, int64_t mutant) {
    Case judged = judge.judge(module, pp::hashOf(own, uint64_t(1000 + mutant)), (number + mutant) % 8 == 0);
    judged.mutation = mutation.str();
    judged.base = number;
    judged.mutant = mutant;
    result.cases.push_back(std::move(judged));
  };
  add(*judge.copy(), "none", -1);
  for (int64_t mutant = 0; mutant < mutants; ++mutant) {
    Dice own(pp::hashOf(pp::hashOf(seed, uint64_t(number)), uint64_t(mutant)));
    llvm::StringRef name;
    if (auto module = drawMutant(judge.compiled(), own, name, only))
      add(*module, name, mutant);
  }
  if (only.empty())
    judgeActions(judge, result, number, add);
  return result;
}

std::vector<Base> judgeAll() {
  std::vector<Base> bases(onlyBase >= 0 ? 1 : size_t((caseCount + mutants + 2) / (mutants + 3)));
  std::atomic<int64_t> next = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < jobs; ++i)
    threads.emplace_back([&] {
      Judge judge(stdlib);
      for (int64_t number = next++; number < int64_t(bases.size()); number = next++)
        bases[size_t(number)] = judgeBase(judge, onlyBase >= 0 ? int64_t(onlyBase) : number);
    });
  for (std::thread &thread : threads)
    thread.join();
  return bases;
}

//===-- The report ----------------------------------------------------------------------------------------------===//

constexpr llvm::StringRef truths[] = {"clean", "wrong", "NaN", "hang", "fault", "left over"};

/// Rows by mutation, columns by verdict and outcome.
void printTable(const std::vector<Base> &bases) {
  std::map<std::string, std::map<std::string, int>> rows;
  std::vector<std::string> columns = {"cases", "proved clean", "stricter", "DISAGREE", "not compiled"};
  for (llvm::StringRef truth : llvm::ArrayRef(truths).drop_front())
    columns.push_back("refused " + truth.str());
  for (const Base &base : bases)
    for (const Case &each : base.cases) {
      std::string column = !each.agrees()           ? "DISAGREE"
                           : !each.verdict.compiled ? "not compiled"
                           : each.verdict.proved    ? "proved clean"
                           : each.isClean()         ? "stricter"
                                                    : "refused " + truths[size_t(each.outcome.truth)].str();
      for (const std::string &row : {each.mutation, std::string("all")}) {
        ++rows[row][column];
        ++rows[row]["cases"];
      }
    }
  llvm::outs() << llvm::left_justify("mutation", 18);
  for (const std::string &column : columns)
    llvm::outs() << "  " << column;
  llvm::outs() << "\n";
  auto print = [&](llvm::StringRef name) {
    if (!rows.count(name.str()))
      return;
    llvm::outs() << llvm::left_justify(name, 18);
    for (const std::string &column : columns)
      llvm::outs() << llvm::format("  %*d", int(column.size()), rows[name.str()][column]);
    llvm::outs() << "\n";
  };
  print("none");
  for (llvm::StringRef name : mutationNames())
    print(name);
  for (auto &[name, row] : rows)
    if (name.find(' ') != std::string::npos) // of actions
      print(name);
  print("all");
}

/// Counts of anything by name, most frequent first is not needed: names in order.
void printCounts(llvm::StringRef title, const std::map<std::string, int> &counts) {
  if (counts.empty())
    return;
  llvm::outs() << "\n" << title << "\n";
  for (const auto &[name, count] : counts)
    llvm::outs() << llvm::format("%7d  ", count) << name << "\n";
}

void printDisagreement(const Base &base, const Case &each) {
  llvm::outs() << "\nDISAGREE " << again(each.base) << ", mutant " << each.mutant << ", " << each.mutation << " of "
               << base.schedule.kind << " with " << base.schedule.ranks << " ranks, " << base.schedule.stages
               << " stages, " << base.schedule.microbatches << " microbatches: "
               << (each.verdict.proved ? "proved" : each.verdict.proof + " refuses it: " + each.verdict.message)
               << "; it is " << truths[size_t(each.outcome.truth)] << " " << each.outcome.why;
  if (!each.threads.empty())
    llvm::outs() << "; between threads: " << each.threads;
  llvm::outs() << "\n";
  if (keep.empty())
    return;
  std::error_code error = llvm::sys::fs::create_directories(keep);
  std::string path = keep + "/" + each.mutation + "-" + std::to_string(seed) + "-" + std::to_string(each.base) + "-" +
                     std::to_string(each.mutant) + ".mlir";
  llvm::raw_fd_ostream file(path, error);
  if (error)
    return;
  file << "// " << each.mutation << ": " << (each.verdict.proved ? "proved" : each.verdict.message) << "; "
       << truths[size_t(each.outcome.truth)] << " " << each.outcome.why << "\n";
  std::string text = each.schedule.empty() ? base.schedule.text() : each.schedule;
  for (llvm::StringRef rest = text; !rest.empty();) {
    auto [line, more] = rest.split('\n');
    file << "// | " << line << "\n";
    rest = more;
  }
  file << each.text;
}

int report(const std::vector<Base> &bases) {
  int passed = 0, failed = 0;
  std::map<std::string, int> rules, kinds, said;
  for (const Base &base : bases) {
    if (!base.error.empty()) {
      llvm::outs() << "\na legal schedule is refused, " << again(base.number) << ": " << base.error << "\n"
                   << base.schedule.text();
      ++failed;
      continue;
    }
    ++kinds[base.schedule.kind];
    for (const Case &each : base.cases) {
      (each.agrees() ? passed : failed) += 1;
      if (!each.agrees())
        printDisagreement(base, each);
      if (!each.rule.empty())
        ++rules[each.rule];
      if (!each.verdict.proved)
        ++said[each.verdict.proof + (each.verdict.compiled ? ", " + truths[size_t(each.outcome.truth)].str() : "") +
               ": " + shapeOf(each.verdict.message) + (messages ? "   [" + each.mutation + "]" : "")];
    }
  }
  printTable(bases);
  printCounts("schedules", kinds);
  printCounts("refused though clean, by a stricter rule", rules);
  if (messages)
    printCounts("what the proofs say", said);
  llvm::outs() << "\n" << passed << " passed, " << failed << " failed\n";
  return failed == 0 && passed > 0 ? 0 : 1;
}

} // namespace

int main(int argc, char **argv) {
  if (argc > 1 && llvm::StringRef(argv[1]) == "inputs")
    return runInputs(argc - 2, argv + 2);
  if (argc > 1 && llvm::StringRef(argv[1]) == "mutants")
    return writeMutants(argc - 2, argv + 2);
  if (argc > 1 && llvm::StringRef(argv[1]) == "verdicts")
    return writeVerdicts(argc - 2, argv + 2);
  cl::ParseCommandLineOptions(argc, argv, "pp-fuzz: the proofs of pp against execution\n");
  if (!only.empty() && !llvm::is_contained(mutationNames(), llvm::StringRef(only))) {
    llvm::errs() << "pp-fuzz: error: there is no mutation `" << only << "`\n";
    return 1;
  }
  for (const std::string &name : library)
    if (!isInLibrary(name)) {
      llvm::errs() << "pp-fuzz: error: no schedule `" << name << "` of the library is drawn\n";
      return 1;
    }
  if (!readSeed()) {
    llvm::errs() << "pp-fuzz: error: expected a number or `random` as seed, got `" << seedText << "`\n";
    return 1;
  }
  llvm::outs() << "pp-fuzz --seed=" << seed << " --cases=" << caseCount << "\n";
  llvm::outs().flush(); // a crash must leave it behind
  return report(judgeAll());
}
