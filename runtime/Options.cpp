// Parses the trainer's command line strictly: every option once, every value in its range, the nearest name offered.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "runtime/Options.h"
#include "runtime/trainer/Outputs.h"
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <functional>

namespace pp {
namespace {

/// One option: how its value is read (null: it has none), and its lines of the help text.
struct OptionSpec {
  std::string name;
  std::string value; ///< as the help names it; empty: a switch
  std::string help;
  std::function<Status(const std::string &, Options &)> read;
  bool repeats = false; ///< may be given more than once
};

/// An option that reads its value into `place`, which may be optional, as a number from `low` to `high`.
template <typename Place, typename Number>
OptionSpec numberOption(std::string name, std::string value, std::string help, Number low, Number high, Place place) {
  return {name, std::move(value), std::move(help), [=](const std::string &word, Options &options) {
            Number number = 0;
            auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
            if (error != std::errc() || end != word.data() + word.size() || !(number >= low && number <= high))
              return invalid("`--", name, "` expects a ", std::is_integral_v<Number> ? "whole number" : "number",
                             " from ", low, " to ", high, ", got `", word, "`");
            std::invoke(place, options) = number;
            return Status();
          }};
}

template <typename Place>
OptionSpec wholeOption(std::string name, std::string value, std::string help, int64_t low, Place place,
                       int64_t high = mostSteps) {
  return numberOption(std::move(name), std::move(value), std::move(help), low, high, place);
}

OptionSpec pathOption(std::string name, std::string value, std::string help, std::string Options::*place) {
  return {name, std::move(value), std::move(help), [name, place](const std::string &path, Options &options) {
            options.*place = path;
            return path.empty() ? invalid("`--", name, "` expects a path, got nothing") : Status();
          }};
}

OptionSpec switchOption(std::string name, std::string help, bool Options::*place) {
  return {std::move(name), "", std::move(help), [place](const std::string &, Options &options) {
            options.*place = true;
            return Status();
          }};
}

/// "`a`, `b` or `c`".
std::string listed(std::span<const std::string> words, const char *last = "or") {
  std::string out;
  for (size_t i = 0; i < words.size(); ++i)
    out += (i == 0 ? "`" : i + 1 < words.size() ? "`, `" : text("` ", last, " `")) + words[i];
  return out + "`";
}

/// An option whose value is one of some words, each of which stands for a value of `place`.
template <typename Place, typename Value>
OptionSpec choiceOption(std::string name, std::string value, std::string help, Place place,
                        std::vector<std::string> words, std::vector<Value> values) {
  return {name, std::move(value), std::move(help), [=](const std::string &word, Options &options) {
            auto at = std::find(words.begin(), words.end(), word);
            if (at == words.end())
              return invalid("`--", name, "` expects ", listed(words), ", got `", word, "`");
            std::invoke(place, options) = values[size_t(at - words.begin())];
            return Status();
          }};
}

/// `FILE` or `NAME=FILE`; a path with `=` that is no name is `./a=b`.
Status readEval(const std::string &value, Options &options) {
  constexpr std::string_view ofNames = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.";
  const size_t end = value.find_first_not_of(ofNames);
  const bool isNamed = end != std::string::npos && end > 0 && value[end] == '=';
  EvalFile its = {isNamed ? value.substr(0, end) : "", isNamed ? value.substr(end + 1) : value};
  if (its.data.empty())
    return invalid("`--eval` expects `FILE` or `NAME=FILE`, got ", value.empty() ? "nothing" : text("`", value, "`"));
  for (const EvalFile &other : options.evals) {
    if (its.name.empty() || other.name.empty())
      return invalid("`--eval ", its.name.empty() ? its.data : other.data,
                     "`: of several files each needs a name, as `--eval NAME=FILE`");
    if (its.name == other.name)
      return invalid("`--eval`: `", other.data, "` and `", its.data, "` have one name, `", its.name, "`");
  }
  options.evals.push_back(std::move(its));
  return {};
}

/// An option with words that have commas between them, each from `known`, or any if that is empty.
OptionSpec wordsOption(std::string name, std::string help, std::vector<std::string> known,
                       std::vector<std::string> Options::*place) {
  return {name, "NAME,..", std::move(help), [=](const std::string &value, Options &options) {
            std::istringstream all(value + ",");
            for (std::string word; std::getline(all, word, ',');)
              if (known.empty() ? word.empty() : std::find(known.begin(), known.end(), word) == known.end())
                return invalid("`--", name, "` expects ", known.empty() ? "names" : listed(known),
                               " with commas between them, got `", value, "`");
              else
                (options.*place).push_back(word);
            return Status();
          }};
}

/// `NAME=VALUE,..`.
Status readColumns(const std::string &value, Options &options) {
  std::istringstream all(value + ",");
  for (std::string word; std::getline(all, word, ',');) {
    const size_t end = word.find('=');
    const std::string name = word.substr(0, end);
    const char *first = word.data() + name.size() + 1, *last = word.data() + word.size();
    double number = 0;
    if (name.empty() || end == std::string::npos)
      return invalid("`--columns` expects NAME=VALUE with commas between them, got `", value, "`");
    if (auto [read, error] = std::from_chars(first, last, number);
        error != std::errc() || read != last || !std::isfinite(number))
      return invalid("`--columns` expects a number for column `", name, "`, got `", word.substr(end + 1), "`");
    if (!options.columns.emplace(name, number).second)
      return invalid("`--columns ", value, "` has column `", name, "` twice");
  }
  return {};
}

Status readShardSize(const std::string &value, Options &options) {
  size_t digits = std::min(value.find_first_not_of("0123456789"), value.size());
  int64_t unit = 0;
  for (auto [name, bytes] : {std::pair("", int64_t(1)), {"KB", 1000}, {"MB", 1000000}, {"GB", 1000000000}})
    if (value.substr(digits) == name)
      unit = bytes;
  int64_t count = 0;
  auto [end, error] = std::from_chars(value.data(), value.data() + digits, count);
  if (unit == 0 || error != std::errc() || count < 1 || count > INT64_MAX / unit)
    return invalid("`--shard-size` expects a number of bytes, as 5GB, 200MB or 4096, got `", value, "`");
  options.shardBytes = count * unit;
  return {};
}

const std::vector<OptionSpec> &allOptions() {
  static const std::vector<OptionSpec> specs = {
      pathOption("data", "FILE|random",
                 "text (bytes as tokens), a token file of llm.c, or random tokens; u8:FILE, u16:FILE,\n"
                 "u32:FILE: a file of tokens only, of 8, 16 or 32 bits each; mix:FILE: several with weights",
                 &Options::data),
      pathOption("source", "FILE|random",
                 "what the encoder reads, if the model has one; without it, the encoder reads\n"
                 "the tokens before those of the decoder",
                 &Options::source),
      wholeOption("steps", "N", "train up to step N (20); the learning rate decays until then", 1, &Options::steps),
      wholeOption("epochs", "N", "instead of --steps: as many steps as it takes to read the data N times", 1,
                  &Options::epochs, 1000000),
      switchOption("shuffle", "read the sequences of the data in another order in each epoch", &Options::shuffle),
      choiceOption("pack", "KIND",
                   "rows of documents: whole (a document that does not fit begins a row), split (it goes on in\n"
                   "the next row), or stream (documents are not told apart)",
                   &Options::packing, {"whole", "split", "stream"},
                   std::vector{Packing::Whole, Packing::Split, Packing::Stream}),
      {"eval", "[NAME=]FILE",
       "say the loss over all rows of this file after the last step; nothing learns from it;\n"
       "may be given for several files, each with a name",
       readEval, /*repeats=*/true},
      wholeOption("eval-every", "N", "and after every N steps", 1, &Options::evalEvery),
      switchOption("eval-first", "and before step 1", &Options::evalFirst),
      pathOption("logprobs", "FILE",
                 "write the logarithm of each target's probability over the first epoch of --data at the end",
                 &Options::logprobs),
      {"logprobs-column", "NAME", "--logprobs writes the dataset of --data again, with the logarithms as column NAME",
       [](const std::string &name, Options &options) {
         options.logprobsColumn = name;
         const bool isTaken = name == "tokens" || name == "documents" || name == "counted";
         return name.empty() || isTaken ? invalid("`--logprobs-column` expects the name of a column, got `", name, "`")
                                        : Status();
       }},
      {"columns", "NAME=VALUE,..",
       "the value of all tokens in these columns, where the data have no such column; without it\n"
       "the model's default, if there is one",
       readColumns},
      pathOption("batches", "FILE", "write what the steps would read and how many targets count, and end",
                 &Options::batches),
      numberOption("lr", "X", "peak learning rate", 0.0, 1e6, &Options::lr),
      wholeOption("seed", "N", "seed of the first weights and of random tokens (1)", 0, &Options::seed, INT64_MAX),
      pathOption("load", "FILE|DIR",
                 "start from the weights of a .safetensors file, or of a folder with a published model",
                 &Options::load),
      pathOption("adapter", "DIR", "start from the adapters of a folder as the peft library writes it",
                 &Options::adapter),
      pathOption("merge", "DIR", "after the last step, write the model with its adapters added to its weights",
                 &Options::merge),
      switchOption("init", "start from random weights, although the program was made from a published folder",
                   &Options::init),
      wordsOption("allow-unused", "tensors of --load that need not be weights of this model; `*` is any text", {},
                  &Options::allowUnused),
      pathOption("save", "DIR", "write a checkpoint there after the last step", &Options::save),
      wholeOption("save-every", "N", "write a checkpoint after every N steps, too, behind the steps that follow", 1,
                  &Options::saveEvery),
      switchOption("save-sync", "let the next step wait until the checkpoint is written: needs no copy in memory",
                   &Options::saveSync),
      wholeOption("keep", "K", "keep K checkpoints (1): DIR is the newest, DIR.step-N those before it", 1,
                  &Options::keep, 1000000),
      choiceOption("save-type", "TYPE",
                   "f32, bf16 or f16: of saved weights (as in the folder that was read; else as the program)",
                   &Options::saveType, {"f32", "bf16", "f16"}, std::vector{Type::F32, Type::Bf16, Type::F16}),
      {"shard-size", "SIZE",
       "at most so many bytes of weights, or of optimizer state, in a file, as 200MB (5GB); the weight\n"
       "files of a folder that --load read are kept as they are",
       readShardSize},
      wholeOption("stop-at", "N", "end after step N, although --steps says more", 1, &Options::stopAt),
      pathOption("resume", "DIR", "continue from a checkpoint, bit for bit; seed, lr, and steps or epochs come from it",
                 &Options::resume),
      wordsOption("changed",
                  "what may differ: data, optimizer or shape (of steps) from the resumed run,\n"
                  "config from the folder that the program was made from",
                  {"data", "optimizer", "shape", "config"}, &Options::changed),
      pathOption("grads", "FILE", "write all gradients of the first step, .safetensors", &Options::grads),
      pathOption("log", "FILE", "write one JSON line for each step", &Options::log),
      pathOption("tensorboard", "DIR", "write loss, rate, norm and speed of each step for TensorBoard",
                 &Options::tensorboard),
      numberOption("peak-flops", "X", "FLOP/s of a rank at best, as 989e12: the run says which share of them it uses",
                   1.0, 1e18, &Options::peakFlops),
      pathOption("trace", "FILE", "write what every rank did and when, in Chrome's trace format", &Options::trace),
      pathOption("profile", "FILE", "write the times of tasks and messages, for pp-compile --costs", &Options::profile),
      switchOption("profile-ops", "and those of each kind of op; an op takes longer while it is timed",
                   &Options::profileOps),
      wholeOption("audit", "N",
                  "after every N steps, compare checksums of the messages of the step and of weights that\n"
                  "several devices keep; a flipped bit ends the run with the name of what has it",
                  1, &Options::auditEvery),
      choiceOption(
          "sends", "KIND",
          "buffered: a send may be done before its receive is posted; rendezvous: never\n"
          "(default: MPI decides by size; rendezvous with --in-process)",
          [](Options &options) -> Sends & { return options.transport.sends; }, {"buffered", "rendezvous"},
          std::vector{Sends::Buffered, Sends::Rendezvous}),
      numberOption("timeout", "SECONDS", "a message that takes longer ends the run (600)", 0.001, 1e9,
                   [](Options &options) -> double & { return options.transport.timeoutSeconds; }),
      numberOption("delay", "SECONDS",
                   "each message of a step is so long on its way, which takes no core: shows what hides behind\n"
                   "computation (needs --in-process)",
                   0.0, 3600.0, [](Options &options) -> double & { return options.transport.delaySeconds; }),
      choiceOption("transport", "KIND",
                   "mpi: ranks are processes under mpirun; nccl: the same, but GPUs send to each other;\n"
                   "copies: as nccl on one machine, by copies alone, and several ranks may share a GPU\n"
                   "(default: what the program was linked with)",
                   &Options::carrier, {"mpi", "nccl", "copies"},
                   std::vector{Carrier::Mpi, Carrier::Nccl, Carrier::Copies}),
      switchOption("no-graph",
                   "launch every kernel of every step on the GPU, not one graph\n(--trace and --profile do so, too)",
                   &Options::noGraph),
      switchOption("in-process", "run all ranks as threads of this process, without mpirun", &Options::inProcess),
      switchOption("info", "print what this program is, and exit", &Options::info),
      switchOption("version", "print which pp linked it, and exit", &Options::version),
      switchOption("help", "print this text and exit; also -h", &Options::help)};
  return specs;
}

size_t editDistance(const std::string &a, const std::string &b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j)
    row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      size_t above = row[j];
      row[j] = std::min({above + 1, row[j - 1] + 1, diagonal + (a[i - 1] != b[j - 1])});
      diagonal = above;
    }
  }
  return row[b.size()];
}

const OptionSpec *specOf(const std::string &name) {
  for (const OptionSpec &spec : allOptions())
    if (spec.name == name)
      return &spec;
  return nullptr;
}

Status unknownOption(const std::string &argument, const std::string &name) {
  if (!argument.starts_with("--"))
    return invalid("unexpected argument `", argument, "`; every option begins with `--`, see --help");
  std::vector<std::string> names;
  for (const OptionSpec &spec : allOptions())
    names.push_back(spec.name);
  if (auto nearest = nearestName(name, names))
    return invalid("unknown option `--", name, "`; did you mean `--", *nearest, "`?");
  return invalid("unknown option `--", name, "`; see --help");
}

/// An option, the other that it needs, or beside which it may not stand, and why.
struct PairSpec {
  const char *name, *other, *why = nullptr; ///< without a reason: `name` needs `other`
};
constexpr PairSpec allPairs[] = {
    {"save-every", "save"},
    {"save-sync", "save-every"},
    {"keep", "save"},
    {"save-type", "save"},
    {"shard-size", "save"},
    {"eval-every", "eval"},
    {"eval-first", "eval"},
    {"delay", "in-process"},
    {"profile-ops", "profile"},
    {"load", "resume", "both say where to start"},
    {"adapter", "resume", "both say where to start"},
    {"init", "load", "both say where to start"},
    {"init", "resume", "both say where to start"},
    {"steps", "epochs", "both say where to end"},
    {"in-process", "transport", "both say how messages go"},
    {"eval", "trace", "exclude each other, for steps of `--eval` are none of training"},
    {"eval", "profile", "exclude each other, for steps of `--eval` are none of training"},
    {"audit", "profile", "exclude each other, for times would hold those of checksums"},
    {"shard-size", "resume", "exclude each other, for the size of the checkpoint is kept"}};

Status checkPairs(const Options &options) {
  for (const auto &[name, other, why] : allPairs)
    if (!options.given.contains(name) || options.given.contains(other) != (why != nullptr))
      continue;
    else if (why)
      return invalid("`--", name, "` and `--", other, "` ", why, "; give one");
    else
      return invalid("`--", name, "` needs `--", other, specOf(other)->value.empty() ? "" : " ", specOf(other)->value,
                     "`");
  return {};
}

/// Refuses values that have no effect beside the values of other options.
Status checkTogether(const Options &options) {
  if (options.data == "random")
    for (const char *name : {"epochs", "shuffle", "logprobs"})
      if (options.given.contains(name))
        return invalid("`--", name, "` has no effect: random tokens have no end");
  for (const std::string &name : options.changed)
    if (const char *other = name == "config" ? "load" : "resume"; !options.given.contains(other))
      return invalid("`--changed ", name, "` needs `--", other, "`");
  if (!options.logprobsColumn.empty() && options.logprobs.empty())
    return invalid("`--logprobs-column` needs `--logprobs FILE`");
  for (const char *name : {"epochs", "logprobs", "source"})
    if (options.given.contains(name) && options.data.starts_with("mix:"))
      return invalid("`--", name, "` beside `--data ", options.data, "`: a mixture has neither an end nor one order");
  std::vector<std::pair<const char *, std::string>> ofOneFile = {{"source", options.source}};
  for (const EvalFile &its : options.evals)
    ofOneFile.push_back({"eval", its.data});
  for (const auto &[name, path] : ofOneFile)
    if (path.starts_with("mix:"))
      return invalid("`--", name, " ", path, "`: only `--data` reads a mixture");
  if (options.carrier >= Carrier::Nccl && options.transport.sends != Sends::Plain)
    return invalid("`--sends` has no effect with `--transport ", options.carrier == Carrier::Nccl ? "nccl" : "copies",
                   "`");
  if (options.steps && options.stopAt && *options.stopAt > *options.steps)
    return invalid("`--stop-at ", *options.stopAt, "` has no effect: the last step is ", *options.steps);
  return {};
}

/// Refuses options beside those that end the program before it trains.
Status checkAlone(const Options &options) {
  for (const char *alone : {"info", "version"})
    for (const auto &[other, value] : options.given)
      if (options.given.contains(alone) && other != alone && other != "help")
        return invalid("`--", other, "` has no effect beside `--", alone, "`");
  return {};
}

} // namespace

std::optional<std::string> nearestName(const std::string &word, std::span<const std::string> names) {
  std::optional<std::string> best;
  size_t least = std::max<size_t>(2, word.size() / 3) + 1;
  for (const std::string &name : names)
    if (size_t distance = editDistance(word, name); distance < least) {
      least = distance;
      best = name;
    }
  return best;
}

Status parseOptions(std::span<const char *const> arguments, Options &options) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    std::string argument = strcmp(arguments[i], "-h") == 0 ? "--help" : arguments[i];
    size_t equals = argument.find('=');
    std::string name =
        argument.starts_with("--") ? argument.substr(2, equals == std::string::npos ? equals : equals - 2) : argument;
    const OptionSpec *spec = specOf(name);
    if (!spec || !argument.starts_with("--"))
      return unknownOption(argument, name);
    if (options.given.contains(name) && !spec->repeats)
      return invalid("`--", name, "` is given twice");
    std::string value;
    if (spec->value.empty()) {
      if (equals != std::string::npos)
        return invalid("`--", name, "` takes no value, got `", argument.substr(equals + 1), "`");
    } else if (equals != std::string::npos) {
      value = argument.substr(equals + 1);
    } else if (i + 1 < arguments.size()) {
      value = arguments[++i];
    } else {
      return invalid("`--", name, "` expects ", spec->value, " after it");
    }
    PP_TRY(spec->read(value, options));
    options.given.emplace(name, value);
  }
  if (options.help)
    return {};
  PP_TRY(checkAlone(options));
  PP_TRY(checkPairs(options));
  return checkTogether(options);
}

Status resolveWeights(const Program &program, Options &options) {
  if (options.init && program.folder.empty())
    return invalid("`--init` has no effect: this program was not made from a published folder");
  for (auto [name, path] : {std::pair("adapter", &options.adapter), {"merge", &options.merge}})
    if (!path->empty() && !program.adapts())
      return invalid("`--", name, "` has no effect: this program was compiled without `lora`");
  if (options.load.empty() && options.resume.empty() && !options.init)
    options.load = program.folder;
  if (!options.allowUnused.empty() && options.load.empty())
    return invalid("`--allow-unused` needs `--load`");
  return checkPaths(options);
}

Status giveColumns(const Options &options, const Program &program, std::vector<ColumnSpec> &columns) {
  for (const auto &[name, value] : options.columns) {
    auto its = std::find_if(columns.begin(), columns.end(),
                            [&](const ColumnSpec &column) { return !column.isMade && column.name == name; });
    const std::string said = text("`--columns ", name, "=", value, "`: ");
    if (its == columns.end()) {
      std::vector<std::string> names;
      for (const ColumnSpec &column : columns)
        if (!column.isMade)
          names.push_back(column.name);
      return invalid(said, "the model reads no column `", name, "`",
                     names.empty() ? std::string(" and no other one") : "; it reads " + listed(names, "and"));
    }
    if (its->isInt && !(value >= 0 && value < double(program.vocab) && value == std::floor(value)))
      return invalid(said, "the column has tokens of the vocabulary, 0 to ", program.vocab - 1);
    its->absent = value;
    its->isGiven = true;
  }
  return {};
}

std::string helpText(const Program &program) {
  std::string out =
      text("Trains `", program.model, "` with the schedule `", program.schedule, "` on ", program.mesh.describe(),
           ": as `mpirun -n ", program.devices(), " <program> --data FILE`, or alone with --in-process.\n\n");
  for (const OptionSpec &spec : allOptions()) {
    std::string left = "  --" + spec.name + (spec.value.empty() ? "" : " " + spec.value);
    left.resize(std::max<size_t>(left.size() + 2, 24), ' ');
    for (char c : spec.help)
      left += c == '\n' ? "\n" + std::string(24, ' ') : std::string(1, c);
    out += left + "\n";
  }
  out += text("\nSequence n of the run is tokens [w, w + ", program.sequence, "] with w = (n mod windows) * ",
              program.sequence,
              ", in the order of the file, and\nagain from its beginning; step t holds sequences (t-1) * ",
              program.sequencesPerStep(), " to t * ", program.sequencesPerStep(), " - 1, whatever the schedule.\n",
              "PP_THREADS=N gives each rank N threads for its kernels (1), and to draw first weights (all cores).\n\n",
              "exit codes: 0 done; 1 the command line or a file is wrong; 2 the system refused, or --audit found a "
              "flipped bit;\n",
              "3 another rank failed, ended or is overdue; 4 a library did not do what was compiled for;\n"
              "5 SIGTERM or SIGUSR1 told it to end, and --save has where it was.\n");
  return out;
}

} // namespace pp
