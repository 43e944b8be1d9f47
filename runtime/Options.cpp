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

Status readWhole(const std::string &name, const std::string &value, int64_t low, int64_t high, int64_t &out) {
  auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), out);
  if (error != std::errc() || end != value.data() + value.size() || out < low || out > high)
    return invalid("`--", name, "` expects a whole number from ", low, " to ", high, ", got `", value, "`");
  return {};
}

Status readReal(const std::string &name, const std::string &value, double low, double high, double &out) {
  auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), out);
  if (error != std::errc() || end != value.data() + value.size() || !(out >= low && out <= high))
    return invalid("`--", name, "` expects a number from ", low, " to ", high, ", got `", value, "`");
  return {};
}

OptionSpec pathOption(std::string name, std::string value, std::string help, std::string Options::*place) {
  return {name, std::move(value), std::move(help), [name, place](const std::string &path, Options &options) {
            if (path.empty())
              return invalid("`--", name, "` expects a path, got nothing");
            options.*place = path;
            return Status();
          }};
}

OptionSpec wholeOption(std::string name, std::string help, int64_t low, std::optional<int64_t> Options::*place,
                       int64_t high = 1000000000) {
  return {name, "N", std::move(help), [name, low, high, place](const std::string &value, Options &options) {
            return readWhole(name, value, low, high, (options.*place).emplace());
          }};
}

OptionSpec switchOption(std::string name, std::string help, bool Options::*place) {
  return {std::move(name), "", std::move(help), [place](const std::string &, Options &options) {
            options.*place = true;
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

Status readSends(const std::string &value, Options &options) {
  if (value != "buffered" && value != "rendezvous")
    return invalid("`--sends` expects `buffered` or `rendezvous`, got `", value, "`");
  options.transport.sends = value == "buffered" ? Sends::Buffered : Sends::Rendezvous;
  return {};
}

Status readCarrier(const std::string &value, Options &options) {
  constexpr std::pair<const char *, Carrier> carriers[] = {
      {"mpi", Carrier::Mpi}, {"threads", Carrier::Threads}, {"nccl", Carrier::Nccl}};
  for (auto [name, carrier] : carriers)
    if (value == name)
      options.carrier = carrier;
  if (options.carrier == Carrier::Unsaid)
    return invalid("`--transport` expects `mpi`, `threads` or `nccl`, got `", value, "`");
  return {};
}

Status readSeed(const std::string &value, Options &options) {
  int64_t seed = 0;
  PP_TRY(readWhole("seed", value, 0, INT64_MAX, seed));
  options.seed = uint64_t(seed);
  return {};
}

Status readNames(const std::string &value, Options &options) {
  std::istringstream all(value);
  for (std::string name; std::getline(all, name, ',');)
    if (name.empty())
      return invalid("`--allow-unused` expects names with commas between them, got `", value, "`");
    else
      options.allowUnused.push_back(name);
  return options.allowUnused.empty() ? invalid("`--allow-unused` expects the name of a tensor, got nothing") : Status();
}

Status readChanged(const std::string &value, Options &options) {
  std::istringstream all(value);
  for (std::string name; std::getline(all, name, ',');)
    if (name != "data" && name != "optimizer" && name != "shape" && name != "config")
      return invalid("`--changed` expects `data`, `optimizer`, `shape` or `config`, with commas between them, got `",
                     value, "`");
    else
      options.changed.push_back(name);
  return options.changed.empty() ? invalid("`--changed` expects `data`, `optimizer`, `shape` or `config`, got nothing")
                                 : Status();
}

Status readPacking(const std::string &value, Options &options) {
  for (Packing packing : {Packing::Whole, Packing::Split, Packing::Stream})
    if (value == nameOf(packing))
      options.packing = packing;
  return options.packing ? Status() : invalid("`--pack` expects `whole`, `split` or `stream`, got `", value, "`");
}

Status readSaveType(const std::string &value, Options &options) {
  for (auto [name, type] : {std::pair("f32", Type::F32), {"bf16", Type::Bf16}, {"f16", Type::F16}})
    if (value == name)
      options.saveType = type;
  return options.saveType ? Status() : invalid("`--save-type` expects `f32`, `bf16` or `f16`, got `", value, "`");
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
      wholeOption("steps", "train up to step N (20); the learning rate decays until then", 1, &Options::steps),
      wholeOption("epochs", "instead of --steps: as many steps as it takes to read the data N times", 1,
                  &Options::epochs, 1000000),
      switchOption("shuffle", "read the sequences of the data in another order in each epoch", &Options::shuffle),
      {"pack", "KIND",
       "rows of documents: whole (a document that does not fit begins a row), split (it goes on in\n"
       "the next row), or stream (documents are not told apart)",
       readPacking},
      {"eval", "[NAME=]FILE",
       "say the loss over all rows of this file after the last step; nothing learns from it;\n"
       "may be given for several files, each with a name",
       readEval, /*repeats=*/true},
      {"eval-every", "N", "and after every N steps",
       [](const std::string &value, Options &options) {
         return readWhole("eval-every", value, 1, 1000000000, options.evalEvery);
       }},
      switchOption("eval-first", "and before step 1", &Options::evalFirst),
      pathOption("logprobs", "FILE",
                 "write the logarithm of each target's probability over the first epoch of --data at the end",
                 &Options::logprobs),
      pathOption("batches", "FILE", "write what the steps would read and how many targets count, and end",
                 &Options::batches),
      {"lr", "X", "peak learning rate",
       [](const std::string &value, Options &options) { return readReal("lr", value, 0, 1e6, options.lr.emplace()); }},
      {"seed", "N", "seed of the first weights and of random tokens (1)", readSeed},
      pathOption("load", "FILE|DIR",
                 "start from the weights of a .safetensors file, or of a folder with a published model",
                 &Options::load),
      pathOption("adapter", "DIR", "start from the adapters of a folder as the peft library writes it",
                 &Options::adapter),
      pathOption("merge", "DIR", "after the last step, write the model with its adapters added to its weights",
                 &Options::merge),
      switchOption("init", "start from random weights, although the program was made from a published folder",
                   &Options::init),
      {"allow-unused", "NAME,..", "tensors of --load that need not be weights of this model; `*` is any text",
       readNames},
      pathOption("save", "DIR", "write a checkpoint there after the last step", &Options::save),
      {"save-every", "N", "write a checkpoint after every N steps, too, behind the steps that follow",
       [](const std::string &value, Options &options) {
         return readWhole("save-every", value, 1, 1000000000, options.saveEvery);
       }},
      switchOption("save-sync", "let the next step wait until the checkpoint is written: needs no copy in memory",
                   &Options::saveSync),
      {"keep", "K", "keep K checkpoints (1): DIR is the newest, DIR.step-N those before it",
       [](const std::string &value, Options &options) { return readWhole("keep", value, 1, 1000000, options.keep); }},
      {"save-type", "TYPE", "f32, bf16 or f16: of saved weights (as in the folder that was read; else as the program)",
       readSaveType},
      {"shard-size", "SIZE",
       "at most so many bytes of weights, or of optimizer state, in a file, as 200MB (5GB); the weight\n"
       "files of a folder that --load read are kept as they are",
       readShardSize},
      wholeOption("stop-at", "end after step N, although --steps says more", 1, &Options::stopAt),
      pathOption("resume", "DIR", "continue from a checkpoint, bit for bit; seed, lr, and steps or epochs come from it",
                 &Options::resume),
      {"changed", "NAME,..",
       "what may differ: data, optimizer or shape (of steps) from the resumed run,\n"
       "config from the folder that the program was made from",
       readChanged},
      pathOption("grads", "FILE", "write all gradients of the first step, .safetensors", &Options::grads),
      pathOption("log", "FILE", "write one JSON line for each step", &Options::log),
      pathOption("tensorboard", "DIR", "write loss, rate, norm and speed of each step for TensorBoard",
                 &Options::tensorboard),
      {"peak-flops", "X", "FLOP/s of a rank at best, as 989e12: the run says which share of them it uses",
       [](const std::string &value, Options &options) {
         return readReal("peak-flops", value, 1, 1e18, options.peakFlops.emplace());
       }},
      pathOption("trace", "FILE", "write what every rank did and when, in Chrome's trace format", &Options::trace),
      pathOption("profile", "FILE", "write the times of tasks and messages, for pp-compile --costs", &Options::profile),
      {"audit", "N",
       "after every N steps, compare checksums of the messages of the step and of weights that\n"
       "several devices keep; a flipped bit ends the run with the name of what has it",
       [](const std::string &value, Options &options) {
         return readWhole("audit", value, 1, 1000000000, options.auditEvery);
       }},
      {"sends", "KIND",
       "buffered: a send may be done before its receive is posted; rendezvous: never\n"
       "(default: MPI decides by size; rendezvous with --in-process)",
       readSends},
      {"timeout", "SECONDS", "a message that takes longer ends the run (600)",
       [](const std::string &value, Options &options) {
         return readReal("timeout", value, 0.001, 1e9, options.transport.timeoutSeconds);
       }},
      {"delay", "SECONDS",
       "each message of a step is so long on its way, which takes no core: shows what hides behind\n"
       "computation (needs --in-process)",
       [](const std::string &value, Options &options) {
         return readReal("delay", value, 0, 3600, options.transport.delaySeconds);
       }},
      {"transport", "KIND",
       "mpi: ranks are processes under mpirun; threads: like --in-process; nccl: mpi, but\n"
       "GPUs send to each other (default: what the program was linked with)",
       readCarrier},
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

/// Refuses options that have an effect only together with others.
Status checkTogether(const Options &options) {
  if (!options.load.empty() && !options.resume.empty())
    return invalid("`--load` and `--resume` both say where to start; give one");
  if (!options.adapter.empty() && !options.resume.empty())
    return invalid("`--adapter` and `--resume` both say where to start; give one");
  if (options.saveEvery && options.save.empty())
    return invalid("`--save-every` needs `--save DIR`");
  if (options.saveSync && !options.saveEvery)
    return invalid("`--save-sync` needs `--save-every N`");
  if (options.keep > 1 && options.save.empty())
    return invalid("`--keep` needs `--save DIR`");
  if ((options.evalEvery || options.evalFirst) && options.evals.empty())
    return invalid("`--eval-", options.evalEvery ? "every" : "first", "` needs `--eval FILE`");
  if (!options.logprobs.empty() && options.data == "random")
    return invalid("`--logprobs` has no effect: random tokens have no end");
  if (!options.evals.empty() && options.isTimed())
    return invalid("`--eval` and `--", options.trace.empty() ? "profile" : "trace",
                   "`: its steps are none of training; give one");
  if (options.auditEvery && !options.profile.empty())
    return invalid("`--audit` and `--profile`: its times would hold those of checksums; give one");
  if (options.saveType && options.save.empty())
    return invalid("`--save-type` needs `--save DIR`");
  if (options.shardBytes && options.save.empty())
    return invalid("`--shard-size` needs `--save DIR`");
  if (options.shardBytes && !options.resume.empty())
    return invalid("`--shard-size` has no effect beside `--resume`: that of the checkpoint is kept");
  if (options.steps && options.epochs)
    return invalid("`--steps` and `--epochs` both say where to end; give one");
  for (const std::string &name : options.changed)
    if (name == "config" ? options.load.empty() : options.resume.empty())
      return invalid("`--changed ", name, "` needs `--", name == "config" ? "load" : "resume", "`");
  if (options.data == "random" && (options.epochs || options.shuffle))
    return invalid("`", options.epochs ? "--epochs" : "--shuffle", "` has no effect: random tokens have no end");
  for (auto [given, name] : {std::pair(options.epochs.has_value(), "epochs"),
                             {!options.logprobs.empty(), "logprobs"},
                             {!options.source.empty(), "source"}})
    if (given && options.data.starts_with("mix:"))
      return invalid("`--", name, "` beside `--data ", options.data, "`: a mixture has neither an end nor one order");
  std::vector<std::pair<const char *, std::string>> ofOneFile = {{"source", options.source}};
  for (const EvalFile &its : options.evals)
    ofOneFile.push_back({"eval", its.data});
  for (const auto &[name, path] : ofOneFile)
    if (path.starts_with("mix:"))
      return invalid("`--", name, " ", path, "`: only `--data` reads a mixture");
  if (options.init && !options.load.empty())
    return invalid("`--init` and `--load` both say where to start; give one");
  if (options.init && !options.resume.empty())
    return invalid("`--init` and `--resume` both say where to start; give one");
  if (options.inProcess && options.carrier != Carrier::Unsaid && options.carrier != Carrier::Threads)
    return invalid("`--in-process` is `--transport threads`; give one");
  if (options.carrier == Carrier::Nccl && options.transport.sends != Sends::Plain)
    return invalid("`--sends` has no effect with `--transport nccl`");
  if (options.transport.delaySeconds > 0 && !options.inProcess && options.carrier != Carrier::Threads)
    return invalid("`--delay` has no effect without `--in-process`");
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
    auto spec = std::find_if(allOptions().begin(), allOptions().end(),
                             [&](const OptionSpec &each) { return each.name == name; });
    if (spec == allOptions().end() || !argument.starts_with("--"))
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
  PP_TRY(checkTogether(options));
  options.inProcess |= options.carrier == Carrier::Threads;
  return {};
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
