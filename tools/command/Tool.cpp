// Reads the command lines of the tools: a verb of `pp` stands for options of pp-compile.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//   pp draw FILE  =  pp-compile FILE --emit=timeline        pp FILE --emit=timeline does the same
#include "tools/command/Tool.h"
#include "frontend/syntax/Source.h"
#include "passes/Memory.h"
#include "tools/Effects.h"
#include "tools/Proofs.h"
#include "tools/command/Compile.h"
#include "tools/command/Translate.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/InitLLVM.h"
#include "llvm/Support/Path.h"
#include "llvm/Support/StringSaver.h"

using namespace mlir;
using namespace pp;
namespace cl = llvm::cl;

namespace {
/// A verb: what it does, the options that it stands for, and options that its --help shows whatever the form is.
struct Verb {
  StringRef name, what, words, shown;
};
const Verb kVerbs[] = {
    {"draw", "draw the step: in the terminal, or into OUT.svg, OUT.html (a page) or OUT.json (a trace)",
     "--emit=timeline", "emit messages memory costs watch serve from-hf config-note"},
    {"prove", "prove the schedule, and print what was proved", "--prove", "from-hf config-note"},
    {"stats", "count the simulated step: makespan, bubble, memory, messages, as JSON", "--emit=stats",
     "watch from-hf config-note"},
    {"plan", "write a schedule with the shortest order of units that is found", "--plan --emit=pipe",
     "emit from-hf config-note"},
    {"search", "find the mesh, schedule and stages that are fastest, and print the ten best", "--search",
     "from-hf config-note"},
    {"json", "write the proved programs of all ranks, for drivers in other languages", "--emit=json",
     "from-hf config-note"},
    {"import-csv", "write the `.pipe` file of a schedule CSV of PyTorch", "--import-csv", ""},
    {"export-csv", "write a schedule CSV for PyTorch", "--emit=torch", "from-hf config-note"},
    {"advise", "read a job of Megatron-LM or torchtitan, and say what would be faster (in the package for Python)", "",
     ""},
    {"verify", "check a program of `pp json` again (in the package for Python)", "", ""},
    {"lsp", "serve an editor", "--lsp", "stdlib"}};

constexpr StringLiteral kExitCodes =
    "\nexit codes:\n\n  0  it is done\n  1  the program is wrong, or a file that it needs, or a file cannot be "
    "written\n  2  the command line is wrong\n130  SIGINT ended --search, which said what it had found\n\n`-` as FILE "
    "is standard input; as OUT it is standard output, for text. If -D names a parameter twice, the last one counts. "
    "Output has colours on a terminal unless NO_COLOR is set; --color and --color=false decide.\n";
} // namespace

static llvm::BumpPtrAllocator memory;

static const char *keep(const llvm::Twine &word) { return llvm::StringSaver(memory).save(word).data(); }

static StringRef optionOf(StringRef word) {
  return word.starts_with("-") ? word.ltrim('-').split('=').first : StringRef();
}

/// The verb `draw` writes what the ending of -o says; for browsers it draws a figure.
static StringRef drawnInto(ArrayRef<const char *> words) {
  if (llvm::any_of(words, [](StringRef word) { return optionOf(word) == "serve"; }))
    return "--emit=svg";
  StringRef output;
  for (auto [i, word] : llvm::enumerate(words))
    if (optionOf(word) == "o")
      output = StringRef(word).contains('=') ? StringRef(word).split('=').second
               : i + 1 < words.size()        ? StringRef(words[i + 1])
                                             : "";
  return llvm::StringSwitch<StringRef>(llvm::sys::path::extension(output))
      .Case(".svg", "--emit=svg")
      .Case(".html", "--emit=report")
      .Case(".json", "--emit=trace")
      .Default("--emit=timeline");
}

/// Puts the options of a verb in its place; those that are given stand. Null: the words are options of pp-compile.
static FailureOr<const Verb *> takeVerb(SmallVectorImpl<const char *> &words) {
  if (words.size() < 2)
    return usage("say what to do: pp VERB FILE; see --help");
  StringRef first = words[1];
  auto *verb = llvm::find_if(kVerbs, [&](const Verb &one) { return one.name == first; });
  if (verb == std::end(kVerbs)) {
    SmallVector<StringRef> names;
    for (const Verb &one : kVerbs)
      names.push_back(one.name);
    if (first.starts_with("-") || first.contains('.') || llvm::sys::fs::exists(first))
      return static_cast<const Verb *>(nullptr);
    return usage("there is no verb `" + first + "`" + didYouMean(first, names) + "; " + thereAre(names));
  }
  if (verb->words.empty())
    return usage("`" + first + "` is in the wheel `pp-schedules`, the package for Python");
  words.erase(words.begin() + 1);
  SmallVector<StringRef> its;
  verb->words.split(its, ' ');
  for (StringRef word : llvm::reverse(its))
    if (llvm::none_of(words, [&](StringRef given) { return optionOf(given) == optionOf(word); }))
      words.insert(words.begin() + 1, keep(first == "draw" ? drawnInto(words) : word));
  return verb;
}

/// Hides all options in --help but these, and those that have an effect.
static void showOnly(ArrayRef<StringRef> shown, llvm::function_ref<bool(StringRef)> hasEffect) {
  for (auto &entry : cl::getRegisteredOptions())
    if (!llvm::is_contained({"help", "version", "color"}, entry.getKey()) &&
        !llvm::is_contained(shown, entry.getKey()) && !hasEffect(entry.getKey()))
      entry.getValue()->setHiddenFlag(cl::Hidden);
}

/// Leaves in --help what has an effect on what the verb does.
static void showOptionsOf(const Verb &verb, ArrayRef<const char *> words) {
  auto &options = cl::getRegisteredOptions();
  for (StringRef word : ArrayRef(words).drop_front())
    if (auto found = options.find(optionOf(word)); found != options.end() && optionOf(word) != "help")
      found->second->addOccurrence(0, found->second->ArgStr, word.split('=').second);
  SmallVector<StringRef> shown;
  verb.shown.split(shown, ' ');
  if (wantsTranslation())
    llvm::append_range(shown, optionsOfTranslation());
  bool isForm = !wantsTranslation() && verb.name != "lsp";
  Effects effects = {/*isPipe=*/true, /*hasRanks=*/false, wantsProofAlone(), false, false};
  showOnly(shown, [&](StringRef option) { return isForm && isOptionRead(option, effects); });
}

static void printVerbs() {
  llvm::outs() << "OVERVIEW: pp: pipeline-parallel training schedules, drawn, proved, counted and searched\n\n"
                  "USAGE: pp VERB [options] FILE\n\n"
                  "A verb stands for options of pp-compile, which may follow: `pp draw FILE` is `pp FILE "
                  "--emit=timeline`.\n`pp VERB --help` shows those that have an effect.\n\nverbs:\n\n";
  for (const Verb &verb : kVerbs)
    llvm::outs() << "  " << llvm::left_justify(verb.name, 10) << " - " << verb.what << "\n";
  llvm::outs() << kExitCodes;
}

/// What a program tells of itself and of its options in --help.
static bool readWords(SmallVectorImpl<const char *> &words, const CodeMaker *maker) {
  std::string overview = "pp-compile: pipeline-parallel training schedules to native programs\n";
  SmallVector<const cl::OptionCategory *> shown = {&codeOptions(), &frontendFlags(), &compileOptions(), &proofOptions(),
                                                   &simulationOptions()};
  if (toolName() == "pp-translate") {
    overview = "pp-translate: schedules of other systems to `.pipe` files\n";
    showOnly(optionsOfTranslation(), [](StringRef) { return false; });
    shown = {&frontendFlags(), &translateOptions(), &compileOptions()};
  } else if (!maker) {
    shown.push_back(&translateOptions());
    FailureOr<const Verb *> verb = takeVerb(words);
    if (failed(verb))
      return false;
    bool helps = llvm::any_of(words, [](StringRef word) { return word == "-h" || optionOf(word) == "help"; });
    if (helps && !*verb) {
      printVerbs();
      std::exit(exitCode(success()));
    }
    if (helps) {
      showOptionsOf(**verb, words);
      words.assign({keep("pp " + (*verb)->name), "--help"});
    }
    overview = "pp" + (*verb ? " " + (*verb)->name.str() + ": " + (*verb)->what.str() : "") + "\n";
  }
  return readCommandLine(words, overview, shown, {formNames(), channelNames(), dialectNames()});
}

int pp::runTool(int argc, char **argv, const CodeMaker *maker) {
  llvm::InitLLVM init(argc, argv);
  keepFreeMemory();
  setCodeMaker(maker);
  setTool(argv[0]);
  setVersion(toolName(), maker ? maker->targets() : ArrayRef<llvm::StringLiteral>());
  SmallVector<const char *> words(argv, argv + argc);
  cl::extrahelp more(kExitCodes);
  if (!readWords(words, maker))
    return exitCode(failure());
  if (toolName() == "pp-translate" && !wantsTranslation())
    return exitCode(usage("say what to do: --import-csv; see --help"));
  return runCommand(words);
}
