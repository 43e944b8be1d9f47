// Runs one rank: inputs of the step, the emitted step, the loss of all ranks; files and terminal between steps.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "runtime/trainer/Trainer.h"
#include "runtime/files/Folder.h"
#include "runtime/files/FolderConfig.h"
#include "runtime/files/Profile.h"
#include "runtime/trainer/Adapters.h"
#include "runtime/trainer/Rate.h"
#include "runtime/transport/Told.h"
#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <numeric>

namespace pp {
namespace {

constexpr size_t maxTraceEvents = size_t(1) << 20;
constexpr int64_t defaultSteps = 20;
constexpr int64_t folderSeconds = 60; ///< for which a rank waits to see the folder of a checkpoint
constexpr int64_t mostSkipped = 8;    ///< in a row, where no scale of the loss becomes smaller meanwhile

} // namespace

/// What all ranks hear of a step: numbers that each rank adds its own to, and which are 0 where it has none.
struct StepSums {
  StepSums(const Program &whole, double *begin)
      : losses(begin), norms(losses + whole.microbatches), further(norms + 2 * whole.devices()),
        z(further + whole.microbatches), reports(z + whole.microbatches),
        balance(reports[int64_t(whole.reports.size()) * whole.microbatches]), routerZ((&balance)[1]),
        rows((&balance)[2]), experts((&balance)[3]), dropped((&balance)[4]), ends(&balance + 5),
        done(ends[2 * whole.devices()]), hasZ((&done)[1]), hasFurther((&done)[2]), told((&done)[3]) {}
  static size_t sizeFor(const Program &whole) {
    return (3 + whole.reports.size()) * size_t(whole.microbatches) + size_t(4 * whole.devices() + 9);
  }

  double *losses;                                       ///< by microbatch
  double *norms;                                        ///< of each device: its norm, and whether it has one
  double *further, *z;                                  ///< losses of further tokens, z-losses, by microbatch
  double *reports;                                      ///< by report and microbatch
  double &balance, &routerZ, &rows, &experts, &dropped; ///< of routers
  double *ends;                                         ///< of each device: the fewest rows of an expert, the most
  double &done, &hasZ, &hasFurther, &told; ///< ranks whose part of a save is done; what there is; who was told to end
};

Trainer::Trainer(Emitted &emitted, const Options &options, Transport &transport, Device &device, int32_t its)
    : emitted(emitted), options(options), transport(transport), device(device), whole(emitted.program()),
      runLog(whole, options), inputs(whole, its) {
  rank.rank = whole.mesh.rankOf(its);
  rank.ranks = whole.ranks;
  rank.device = its;
  rank.transport = &transport;
  rank.trace = &trace;
}

Outcome Trainer::run() {
  if (Status chosen = chooseCheckpoint(); !chosen.ok())
    return {chosen, together, mine};
  if (!options.batches.empty()) {
    Status written = settle(writeBatches());
    return {written, together, mine};
  }
  Status status = settle(makeReady());
  for (const std::string *folder : {&options.save, &options.merge})
    if (status.ok() && !folder->empty())
      status = checkShared(*folder);
  if (status.ok()) // last: a run that cannot begin leaves an older log as it is
    status = settle(speaks() ? runLog.open() : Status());
  // Ranks wait for each other while they prepare: one that fails ends the run, and does not ask the others first.
  if (status.ok())
    status = transport.prepare(*program);
  if (status.ok())
    status = settle({});
  if (status.ok())
    status = train();
  if (status.ok())
    status = finish();
  if (const bool its = mine; together) { // the ranks are still there, and a save behind the steps comes to its end
    (void)endSave(/*waits=*/true);
    mine = its;
  }
  return {status, together, mine, status.ok() && early};
}

Status Trainer::settle(Status status) {
  int32_t failed = -1;
  pp_status_t code = PP_OK;
  PP_TRY(transport.agree(status, failed, code));
  if (failed < 0)
    return {};
  together = true;
  mine = failed == rank.device;
  return mine ? status : Status(code, text(whole.mesh.name(failed), " failed"));
}

/// Writes what the steps would read.
Status Trainer::writeBatches() {
  PP_TRY(openData());
  if (!speaks())
    return {};
  PP_TRY(checkFile("batches", options.batches));
  return inputs.write(options.batches, state.step, lastStep);
}

Status Trainer::makeReady() {
  PP_TRY(emitted.of(rank.device, program));
  PP_TRY(openData());
  PP_TRY(openEvaluation());
  PP_TRY(openWeights());
  PP_TRY(device.allocate(*program, lossesAt() + lossBytes() - program->arenaBytes));
  if (speaks())
    PP_TRY(checkOutputs());
  PP_TRY(checkCopies());
  std::string why;
  if (pp_status_t code = Kernels::prepare(program->ops, kernels, why); code != PP_OK)
    return {code, why};
  PP_TRY(checkScratch());
  rank.kernels = kernels.get();
  if (whole.updates > 1)
    for (const UnitSpec &unit : program->units)
      rank.updateOf.push_back(int32_t(std::max<int64_t>(unit.microbatch, 0) /
                                      (unit.phase == "U" ? 1 : whole.microbatches / whole.updates)));
  if (isLate() && !device.name().empty())
    return invalid("`barrier = false` is for CPUs; on ", device.name(), " it is not supported yet");
  if (isLate())
    rank.judge = [this](double norm2) { return judge(norm2); };
  device.bind(rank);
  placeWeights();
  PP_TRY(fillArena());
  PP_TRY(openAudit());
  sums.resize(StepSums::sizeFor(whole));
  if (!options.profile.empty() && lastStep - state.step <= profileWarmUp)
    return invalid("`--profile` leaves out the first ", profileWarmUp, " steps; this run has ", lastStep - state.step);
  if (options.isTimed()) {
    size_t perStep = program->stepUnits() + 2 * program->stepMessages() + 1;
    trace.reserve(perStep * size_t(lastStep - state.step), maxTraceEvents);
    trace.setOps(options.profileOps);
  }
  return {};
}

/// Bytes for the weights of targets, which lie beside the arena; training and evaluation share them.
int64_t Trainer::weightBytes() const {
  auto bytesOf = [&](const std::vector<InputSpec> &inputs) {
    int64_t out = 0;
    for (const InputSpec &its : inputs)
      if (its.kind == InputSpec::Kind::Targets)
        out += whole.batch * its.length * int64_t(sizeof(float));
    return out;
  };
  const bool isNeeded = inputs.hasWeights() || std::any_of(evaluations.begin(), evaluations.end(),
                                                           [](const auto &its) { return its.inputs.hasWeights(); });
  return !isNeeded ? 0 : std::max(bytesOf(program->inputs), program->forward ? bytesOf(program->forward->inputs) : 0);
}

/// All steps have their targets and weights at the same addresses, because a replayed graph knows these.
void Trainer::placeWeights() {
  if (weightBytes() == 0)
    return;
  auto place = [&](const std::vector<InputSpec> &inputs, std::vector<OfTargets<const float>> &out) {
    int64_t next = program->arenaBytes;
    for (const InputSpec &its : inputs)
      if (its.kind == InputSpec::Kind::Targets) {
        const auto *begin = reinterpret_cast<const int32_t *>(device.at(its.offset));
        const int64_t count = whole.batch * its.length;
        out.push_back({begin, begin + count, reinterpret_cast<const float *>(device.at(next))});
        next += count * int64_t(sizeof(float));
      }
  };
  place(program->inputs, targetWeights[0]);
  if (program->forward)
    place(program->forward->inputs, targetWeights[1]);
}

/// Writes what the next step reads.
Status Trainer::fill(StepInputs &from) {
  rank.targetWeights = targetWeights[rank.forward];
  return from.fill(rank.forward ? program->forward->inputs : program->inputs,
                   rank.targetWeights.empty() ? -1 : program->arenaBytes, device);
}

/// Which checkpoint the run goes on from: the one that --resume names, or the newest one beside it if that is damaged.
/// Rank 0 reads all files, and all ranks take the same.
Status Trainer::chooseCheckpoint() {
  resumed = options.resume;
  if (resumed.empty())
    return {};
  std::array<double, 1> kept = {0}; // its step + 1
  int64_t step = -1;
  std::string damage;
  PP_TRY(settle(speaks() ? findWhole(resumed, step, damage) : Status()));
  kept[0] = speaks() ? double(step + 1) : 0;
  PP_TRY(transport.sum(kept));
  if (kept[0] == 0)
    return {};
  resumed = keptFolder(withoutEndSlash(followLinks(resumed)), int64_t(kept[0]) - 1);
  if (speaks()) {
    const std::string line = text("pp: warning: ", damage, "; the run goes on from `", resumed, "`\n");
    fwrite(line.data(), 1, line.size(), stderr);
  }
  return {};
}

/// Finds where the run starts and ends: by the command line, else by the checkpoint, else by the program.
Status Trainer::resolveState() {
  state.lr = whole.optimizer.lr;
  state.lossScale = whole.scalesLoss() ? whole.optimizer.lossScale : 1;
  state.steps = defaultSteps;
  if (!options.resume.empty()) {
    std::vector<StateChange> changes;
    PP_TRY(readRunState(whole, resumed, state, changes));
    for (const auto &[name, what] : changes)
      PP_TRY(accept(name, what));
    if (options.seed && *options.seed != state.seed)
      return invalid("`--seed ", *options.seed, "` differs from the resumed run's ", state.seed, "; leave it out");
  }
  state.seed = options.seed.value_or(state.seed);
  state.shardBytes = options.shardBytes.value_or(state.shardBytes);
  state.lr = options.lr.value_or(state.lr);
  skippedBefore = state.skipped;
  state.epochs = options.epochs.value_or(options.steps ? 0 : state.epochs);
  state.asksPacking = state.asksPacking || options.packing;
  return state.epochs ? Status() : endAt(options.steps.value_or(state.steps));
}

/// The last step is number `steps`, if the command line does not say an earlier one.
Status Trainer::endAt(int64_t steps) {
  if (!options.resume.empty() && steps != state.steps && whole.optimizer.decaySteps == 0)
    remarks.push_back(
        text("the resumed run's learning rate decayed towards step ", state.steps, ", this one's towards ", steps));
  state.steps = steps;
  if (options.stopAt && *options.stopAt > state.steps)
    return invalid("`--stop-at ", *options.stopAt, "` has no effect: the last step is ", state.steps);
  lastStep = std::min(state.steps, options.stopAt.value_or(state.steps));
  if (lastStep <= state.step)
    return invalid("nothing to do: the run in `", resumed, "` has already done ", state.step, " of ", lastStep,
                   " steps");
  return {};
}

/// A difference from the resumed run is an error, unless the command line allows it by name.
Status Trainer::accept(const std::string &name, const std::string &change) {
  if (std::find(options.changed.begin(), options.changed.end(), name) == options.changed.end())
    return invalid("`--resume ", options.resume, "`: ", change, "; with `--changed ", name,
                   "` the run goes on with it");
  remarks.push_back(change);
  return {};
}

/// The data are those of the resumed run. One rank has read all tokens to check them, and compares all of them; the
/// others know both ends of each file.
Status Trainer::checkData() {
  const bool resumes = !options.resume.empty() && !state.data.empty();
  const std::string data = inputs.fingerprint();
  const bool asks = !options.save.empty() || (resumes && !state.dataChecksum.empty());
  const std::string sum = speaks() && asks ? inputs.checksum() : std::string();
  if (resumes && state.data != data)
    PP_TRY(accept("data", text("the data was ", state.data, " and is ", data)));
  else if (resumes && !sum.empty() && !state.dataChecksum.empty() && state.dataChecksum != sum)
    PP_TRY(accept("data", text("the data was ", state.data, ", of checksum ", state.dataChecksum,
                               ", and has changed between its ends: the checksum is ", sum)));
  state.data = data;
  state.dataChecksum = sum;
  return {};
}

/// Opens the data, finds where the run begins, and where it ends if it counts epochs.
Status Trainer::openData() {
  PP_TRY(resolveState());
  if (options.data.empty())
    return invalid("no data to train on: give `--data FILE` (a text, or a token file), or `--data random`");
  if (!options.source.empty() && !whole.readsSource)
    return invalid("`--source`: this model has no encoder; it reads `--data` alone");
  PP_TRY(inputs.open(options.data, options.source, state.seed, options.packing ? options.packing : state.packing,
                     speaks()));
  PP_TRY(checkData());
  if (state.packing && *state.packing != inputs.packing())
    PP_TRY(accept("data", text("the data was packed `", nameOf(*state.packing), "` and is packed `",
                               nameOf(inputs.packing()), "`")));
  state.packing = inputs.packing();
  if (options.shuffle && !options.resume.empty() && !state.shuffle)
    PP_TRY(accept("data", "the data was read in its order and is shuffled"));
  state.shuffle = state.shuffle || options.shuffle;
  if (state.shuffle)
    PP_TRY(inputs.shuffle(state.seed));
  PP_TRY(inputs.goOn(state.step, state.was, state.began));
  if (!state.epochs)
    return {};
  if (inputs.rowsPerEpoch() == 0)
    return invalid("`--resume ", options.resume, "`: that run ends after ", state.epochs,
                   " epochs, and this data has no end; say `--steps N`");
  int64_t last = 0;
  PP_TRY(inputs.endAfter(state.epochs, last));
  return endAt(last);
}

Status Trainer::checkOutputs() {
  RankMemory view = memory();
  for (auto [option, path] : {std::pair("grads", &options.grads),
                              {"log", &options.log},
                              {"trace", &options.trace},
                              {"profile", &options.profile},
                              {"logprobs", &options.logprobs}})
    if (!path->empty())
      PP_TRY(checkFile(option, *path));
  if (!options.merge.empty()) {
    PP_TRY(merges.take(options.merge));
    PP_TRY(checkTarget(withoutEndSlash(followLinks(options.merge)), {}, /*isRead=*/false));
  }
  if (options.save.empty())
    return {};
  PP_TRY(saves.take(options.save));
  std::string remark;
  std::error_code none;
  const bool isRead = !options.resume.empty() && std::filesystem::equivalent(options.resume, options.save, none);
  PP_TRY(checkFolder(view, options.save, layout(), keeping(state.step), isRead, remark));
  if (!remark.empty())
    remarks.push_back(remark);
  if (!whole.folder.empty() && besides().empty())
    remarks.push_back(text("`", whole.folder, "`, from which the program was made, has no config.json any more: `",
                           options.save, "` will have weights alone"));
  return {};
}

/// Is there memory for the copies that are written behind the steps?
Status Trainer::checkCopies() {
  if (options.save.empty() || !options.saveEvery || options.saveSync)
    return {};
  std::vector<int64_t> bytes;
  PP_TRY(copyBytes(emitted, layout(), bytes));
  const int64_t own = bytes[size_t(rank.device)], all = std::accumulate(bytes.begin(), bytes.end(), int64_t(0));
  const bool isAlone = options.inProcess || transport.ranksBeside() >= whole.devices();
  return checkMemory(options.inProcess ? all : own, isAlone ? all : own * transport.ranksBeside());
}

/// Whether all ranks see the folder that rank 0 makes: each of them writes there.
Status Trainer::checkShared(const std::string &folder) {
  RankMemory view = memory();
  Save trial(/*later=*/false);
  constexpr int64_t most = 5;
  PP_TRY(entered(trial, trial.beginTrial(view, folder), most));
  trial.undo();
  return {};
}

/// Begins a save, which ended so on this rank, up to the folder in which all ranks write.
Status Trainer::entered(Save &its, const Status &begun, int64_t seconds) {
  PP_TRY(agreed(its, begun));
  PP_TRY(its.tell(transport));
  return agreed(its, its.enter(seconds));
}

/// Checks the meaning of the config.json beside the weights, if this run begins with them.
Status Trainer::checkConfigOf(const WeightFiles &model) {
  const auto &changed = options.changed;
  if (!options.resume.empty() || !model.isFolder() || std::count(changed.begin(), changed.end(), "config"))
    return {};
  if (!whole.config.empty())
    return checkConfig(whole.config, model.path());
  if (std::filesystem::exists(model.path() + "/config.json"))
    remarks.push_back(text("`", model.path(), "/config.json` is compared with the program's ops alone: ",
                           "the program was compiled without --from-hf"));
  const bool cut = whole.mesh.size(Axis::Tensor) > 1 || whole.mesh.size(Axis::Context) > 1;
  return checkConfig(program->ops, cut, whole.sequence, model.path());
}

/// Finds every weight in the files that are read, before anything is written.
Status Trainer::openWeights() {
  if (whole.adapts())
    return openAdapted();
  const std::string &path = options.resume.empty() ? options.load : resumed;
  if (path.empty())
    return {};
  PP_TRY(files.open(path));
  if (options.resume.empty() && files.isFolder())
    state.origin = files.path();
  if (options.shardBytes && files.isFolder())
    return invalid("`--shard-size` cannot cut the files of `", path, "`: they are kept");
  PP_TRY(checkConfigOf(files));
  RankMemory view = memory();
  return matchWeights(view, files, options.resume.empty() ? &options.allowUnused : nullptr, match);
}

/// The model comes from where the run began, and its adapters from their own folder, if there is one yet.
Status Trainer::openAdapted() {
  if (options.shardBytes)
    return invalid("`--shard-size` has no effect: adapters are saved in one file");
  RankMemory view = memory();
  if (options.resume.empty())
    state.origin = options.load;
  if (!state.origin.empty()) {
    PP_TRY(files.open(state.origin));
    PP_TRY(checkConfigOf(files));
    PP_TRY(matchWeights(view, files, options.resume.empty() ? &options.allowUnused : nullptr, match));
  }
  const std::string folder = withoutEndSlash(options.resume.empty() ? options.adapter : resumed);
  if (folder.empty())
    return {};
  PP_TRY(checkAdapterFolder(view, folder));
  PP_TRY(adapters.open(folder + "/" + WeightFiles::singleOf(adapterStem)));
  return matchAdapters(view, adapters, match);
}

/// The folder from which a saved folder gets its configuration and tokenizer: the folder that was read. If the run
/// began with random weights, a file of weights, or a checkpoint of such a run, it is the folder from which the program
/// was made.
std::string Trainer::besides() const {
  auto hasConfig = [](const std::string &folder) {
    std::error_code none;
    return !folder.empty() && std::filesystem::exists(folder + "/config.json", none);
  };
  const std::string read = files.isFolder() ? files.path() : "";
  return hasConfig(read) || !hasConfig(whole.folder) ? read : whole.folder;
}

WeightLayout Trainer::layout() const {
  if (!whole.adapts())
    return modelLayout();
  WeightLayout out;
  out.adapters = true;
  out.type = options.saveType;
  out.beside = besides();
  out.shardBytes = state.shardBytes;
  return out;
}

WeightLayout Trainer::modelLayout() const {
  WeightLayout out;
  if (files.isFolder()) {
    out.origin = &files;
    out.match = &match;
    out.keepsFiles = !state.origin.empty();
  }
  out.beside = besides();
  out.type = options.saveType;
  out.shardBytes = state.shardBytes;
  return out;
}

Status Trainer::fillArena() {
  RankMemory view = memory();
  if (!options.resume.empty())
    return loadCheckpoint(view, resumed, files, match, state);
  return loadWeights(view, match, state.seed, vanished);
}

Status Trainer::train() {
  PP_TRY(printHeader());
  if (options.evalFirst && state.step == 0) {
    std::vector<EvalSummary> evals;
    PP_TRY(evaluate(0, evals));
    if (speaks())
      PP_TRY(runLog.sayFirst(state.steps, evals));
  }
  for (int64_t step = state.step + 1; step <= lastStep; ++step) {
    StepSummary summary;
    PP_TRY(trainStep(step, summary));
    PP_TRY(endSave(/*waits=*/false));
    RankMemory view = memory();
    if (step == state.step + 1 && !options.grads.empty())
      PP_TRY(writeGradients(view, options.grads, 1 / summary.lossScale));
    if (isLate()) {
      bool isJudged = false;
      PP_TRY(endLate(step, mustBeJudged(step), isJudged, summary));
      endEarly(step, isJudged);
      if (!isJudged)
        continue;
    }
    endEarly(step, true);
    if (evaluatesAfter(step) && !early)
      PP_TRY(evaluate(step, summary.evals));
    endEarly(step, true);
    const bool last = step == lastStep;
    if (speaks())
      PP_TRY(runLog.say(step, state.steps, lastStep, summary));
    if (speaks() && summary.tokens == 0)
      printf("remark: no target of step %lld counts; its loss is 0\n", static_cast<long long>(step));
    if (!options.save.empty() && (last || (options.saveEvery && step % options.saveEvery == 0)))
      PP_TRY(save(step));
    if (last && !early && !options.merge.empty())
      PP_TRY(merge());
    if (step == state.step + 1 && !last)
      trace.clearSums(); // the first step touches every page
  }
  return options.logprobs.empty() || early ? Status() : writeLogprobs();
}

/// If a rank was told to end: behind this step, or behind the next one.
void Trainer::endEarly(int64_t step, bool mayEndHere) {
  if (!told || early || step == lastStep)
    return;
  early = true;
  lastStep = mayEndHere ? step : step + 1;
}

/// Which older checkpoints stay beside that of this step. The first save drops all checkpoints later than the run's
/// begin.
Keeping Trainer::keeping(int64_t step) const {
  return {options.keep, savedStep == 0 ? state.step + 1 : step,
          step < lastStep ? withoutEndSlash(followLinks(resumed)) : std::string(), ownSteps};
}

/// Writes a checkpoint behind the steps that follow, but for the last one: nothing follows it.
Status Trainer::save(int64_t step) {
  PP_TRY(endSave(/*waits=*/true));
  RunState done = state;
  done.step = step;
  RankMemory view = memory();
  const Keeping its = keeping(step);
  savedStep = step;
  ownSteps.insert(step);
  if (step == lastStep || options.saveSync) {
    Save now(/*later=*/false);
    return writeNow(now, now.begin(view, options.save, done, layout(), its), options.save);
  }
  PP_TRY(entered(behind, behind.begin(view, options.save, done, layout(), its), folderSeconds));
  PP_TRY(behind.gather(view));
  startJob([this] { return behind.write(); });
  return {};
}

Status Trainer::merge() {
  RankMemory view = memory();
  Save now(/*later=*/false);
  return writeNow(now, now.beginMerged(view, options.merge, modelLayout()), options.merge);
}

/// All of a save but its begin, which ended so.
Status Trainer::writeNow(Save &its, const Status &begun, const std::string &folder) {
  RankMemory view = memory();
  PP_TRY(entered(its, begun, folderSeconds));
  PP_TRY(its.gather(view));
  PP_TRY(agreed(its, its.write()));
  PP_TRY(its.share(view));
  PP_TRY(agreed(its, its.commit()));
  sayVanished(its, folder);
  return {};
}

/// All ranks have done a part of a save. If one has failed, nothing of it is left.
Status Trainer::agreed(Save &its, const Status &own) {
  const Status status = settle(its.named(own));
  if (!status.ok() && together)
    its.undo();
  return status;
}

/// A thread does a part of the save behind the steps.
void Trainer::startJob(std::function<Status()> job) {
  try {
    saved = std::async(std::launch::async, std::move(job)).share();
  } catch (const std::system_error &error) {
    std::promise<Status> failed;
    failed.set_value(refused("no thread starts: ", error.what()));
    saved = failed.get_future().share();
  }
}

/// This rank's part of the sum by which all ranks learn that a save behind the steps is done. A rank that failed counts
/// as all.
double Trainer::ownPart() const {
  if (!saved.valid() || saved.wait_for(std::chrono::seconds(0)) != std::future_status::ready)
    return 0;
  return saved.get().ok() ? 1 : whole.devices();
}

/// Until all ranks have done their part of it. Each says again and again how far it is: a rank whose disk is slow is
/// not taken for one that is lost.
Status Trainer::awaitParts() {
  const std::chrono::duration<double> pause(std::min(1.0, options.transport.timeoutSeconds / 4));
  for (std::vector<double> done(1); done[0] < whole.devices();) {
    done[0] = saved.wait_for(pause) == std::future_status::ready ? 1 : 0;
    PP_TRY(transport.sum(done));
  }
  return {};
}

/// The save behind the steps goes on when all ranks have done their part: first files, then the exchange of the folder.
/// `waits`: until it is done.
Status Trainer::endSave(bool waits) {
  while (saved.valid() && (std::exchange(areDone, false) || waits)) {
    PP_TRY(awaitParts());
    const Status own = saved.get();
    saved = {};
    const bool wasLast = std::exchange(isExchanging, false);
    PP_TRY(agreed(behind, own));
    if (wasLast) {
      sayVanished(behind, options.save);
      return {};
    }
    RankMemory view = memory();
    PP_TRY(behind.share(view));
    isExchanging = true;
    startJob([this] { return behind.commit(); });
  }
  return {};
}

void Trainer::sayVanished(const Save &its, const std::string &folder) const {
  if (speaks() && its.vanished > 0)
    printf("remark: %lld values are too small for f16, and `%s` has 0 for them\n", static_cast<long long>(its.vanished),
           folder.c_str());
}

/// Sets the numbers that the kernels of the step read, as far as the earlier steps are known.
void Trainer::setScalars(int64_t step, StepSummary &summary) {
  const OptimizerSpec &given = whole.optimizer;
  summary.lossScale = state.lossScale;
  rank.updates.clear();
  for (int64_t update = (step - 1) * whole.updates + 1; update <= step * whole.updates; ++update) {
    summary.lr = learningRate(given, state.lr, update, state.steps * whole.updates);
    rank.optimizer = {summary.lr,
                      given.beta1,
                      given.beta2,
                      given.epsilon,
                      given.weightDecay,
                      given.clip,
                      update - state.skipped,
                      state.lossScale,
                      {inputs.divisor(update - (step - 1) * whole.updates - 1)},
                      inputs.perToken(update - (step - 1) * whole.updates - 1),
                      /*holds=*/false,
                      given.momentum,
                      summary.lr,
                      given.weightDecay,
                      state.seed};
    inputs.setFurther(program->inputs, update - (step - 1) * whole.updates - 1, rank.optimizer);
    inputs.setDivisors(program->ops, update - (step - 1) * whole.updates - 1, rank.optimizer);
    if (given.kind == "muon") { // one factor for both rates
      rank.optimizer.lr = given.lr > 0 ? given.restLr * (summary.lr / given.lr) : given.restLr;
      rank.optimizer.weightDecay = given.restDecay;
    }
    if (whole.updates > 1)
      rank.updates.push_back(rank.optimizer);
  }
}

Status Trainer::trainStep(int64_t step, StepSummary &summary) {
  double start = transport.now();
  inputs.begin(step);
  summary.weights = inputs.weightsOfUpdates();
  summary.weight = inputs.weight();
  summary.hasWeights = inputs.hasWeights();
  setScalars(step, summary);
  PP_TRY(runStep(step, inputs, summary));
  if (isLate())
    setScalars(step, summary); // the judge may have changed the scale of the loss
  summary.seconds = transport.now() - start;
  summary.tokens = inputs.counted();
  if (isLate())
    return {};
  PP_TRY(checkLoss(step, summary));
  summary.skipped = !std::isfinite(summary.norm);
  if (summary.skipped && !whole.readsNorm())
    return settle(invalid("the gradients of step ", step, " are not finite, and without `clip` its update has taken ",
                          "them; a smaller --lr may help"));
  return adaptScale(step, summary.skipped, summary.lossScale);
}

Status Trainer::checkLoss(int64_t step, const StepSummary &summary) {
  return std::isfinite(summary.loss)
             ? Status()
             : settle(invalid("the loss of step ", step, " is ", summary.loss, "; a smaller --lr may help"));
}

/// Runs the emitted step, or the one that evaluates, on rows that are ready, with the rank's scalars.
Status Trainer::runStep(int64_t step, StepInputs &from, StepSummary &summary) {
  transport.markStep(step);
  rank.routed = {};
  PP_TRY(fill(from));
  rank.unit = -1;
  PP_TRY(beginAudit(step));
  int64_t began = Trace::now();
  const pp_rank_entry_t &entry = pp_rank_table[rank.rank];
  seekResults();
  pp_status_t code = device.run(rank.forward ? entry.eval : entry.step, rank, results);
  rank.trace->stepped(int32_t(step), began);
  if (code != PP_OK) {
    std::string unit = rank.unit >= 0 && rank.unit < int32_t(program->units.size())
                           ? ", " + describe(program->units[rank.unit])
                           : std::string();
    return {code, text(program->name, ", step ", step, unit, ": ", rank.message.empty() ? "failed" : rank.message)};
  }
  if (transport.outstanding() != 0)
    return internal(program->name, ", step ", step, ": ", transport.outstanding(),
                    transport.outstanding() == 1 ? " message was" : " messages were", " posted and never completed");
  PP_TRY(endAudit(step));
  if (transport.received() > received && !rank.forward) // a graph that is replayed does not pass through the transport
    stepBytes = transport.received() - received;
  received = transport.received();
  collect(from);
  return isLate() && !rank.forward ? Status() : summarize(summary);
}

Status Trainer::openAudit() {
  if (options.auditEvery == 0)
    return {};
  audit = std::make_unique<Audit>(emitted, *program, transport, device);
  return audit->open(options.auditEvery);
}

Status Trainer::beginAudit(int64_t step) {
  if (!audit || rank.forward)
    return {};
  if (audit->rests())
    PP_TRY(settle(audit->checkRest(step)));
  audit->begin(step, rank);
  return {};
}

/// Ends the run if the step that is audited has something wrong: before anything is said or saved of it.
Status Trainer::endAudit(int64_t step) {
  bool clean = true;
  if (audit && !rank.forward)
    PP_TRY(audit->end(step, rank, clean));
  return clean ? Status() : settle(audit->find(step));
}

/// All ranks know the norm, so all choose the next step's scale alike, if there is one.
Status Trainer::adaptScale(int64_t step, bool skipped, double scale) {
  bool adapts = whole.scalesLoss() && whole.optimizer.scaleWindow > 0;
  state.skippedInRow = skipped ? state.skippedInRow + 1 : 0;
  if (state.skippedInRow == mostSkipped && !whole.scalesLoss())
    return settle(invalid("the gradients of ", mostSkipped, " steps up to step ", step,
                          " are not finite; a smaller --lr may help"));
  if (skipped) {
    ++state.skipped;
    state.goodSteps = 0;
    state.lossScale /= adapts ? 2 : 1;
    if (adapts && state.lossScale < 1)
      return settle(invalid("the gradients of step ", step, " are not finite, even with the loss scaled by ", scale,
                            "; a smaller --lr may help"));
  } else if (adapts && ++state.goodSteps == whole.optimizer.scaleWindow) {
    state.goodSteps = 0;
    state.lossScale *= 2;
  }
  return {};
}

/// Finds the results of this rank's step: its losses, each with a further one or none, their z-losses, and the norm.
void Trainer::seekResults() {
  results.clear();
  // Devices along `tensor` have the same losses, and the first counts them.
  const bool counts = whole.mesh.coordinate(rank.device, Axis::Tensor) == 0;
  for (const LossSpec &loss : rank.forward ? program->forward->losses : program->losses) {
    std::vector<int64_t> offsets = {loss.offset, loss.further};
    offsets.insert(offsets.end(), loss.reports.begin(), loss.reports.end());
    offsets.insert(offsets.end(), loss.z.begin(), loss.z.end());
    for (int64_t offset : offsets)
      if (counts && offset >= 0)
        results.push_back({offset, nullptr, elementBytes(loss.type)});
  }
  if (program->normOffset >= 0 && !rank.forward && !isLate())
    results.push_back({program->normOffset, nullptr, sizeof(double)});
  resultAt.resize(results.size());
  for (size_t i = 0; i < results.size(); ++i)
    results[i].host = resultAt[i].data();
}

/// Each loss lives on one rank of each replica. Adding zeros moves it to all, and the microbatches are then added in
/// their order.
void Trainer::collect(const StepInputs &from) {
  std::fill(sums.begin(), sums.end(), 0.0);
  StepSums its(whole, sums.data());
  its.told = toldBy() ? 1 : 0;
  its.done = ownPart();
  auto next = results.begin();
  auto read = [&] {
    double wide = 0;
    float narrow = 0;
    const bool isWide = next->bytes == sizeof wide;
    memcpy(isWide ? static_cast<void *>(&wide) : &narrow, next->host, next->bytes);
    ++next;
    return isWide ? wide : double(narrow);
  };
  if (whole.mesh.coordinate(rank.device, Axis::Tensor) == 0)
    for (const LossSpec &loss : rank.forward ? program->forward->losses : program->losses) {
      its.losses[loss.microbatch] += read();
      if (loss.further >= 0) {
        its.further[loss.microbatch] += read();
        its.hasFurther = 1;
      }
      for (size_t i = 0; i < loss.reports.size(); ++i)
        its.reports[int64_t(i) * whole.microbatches + loss.microbatch] += read();
      for (size_t i = 0; i < loss.z.size(); ++i) {
        its.z[loss.microbatch] += read();
        its.hasZ = 1;
      }
    }
  if (next != results.end()) {
    its.norms[2 * rank.device] = read();
    its.norms[2 * rank.device + 1] = 1;
  }
  // Devices of `tensor` route alike.
  if (rank.routed.rows > 0 && whole.mesh.coordinate(rank.device, Axis::Tensor) == 0) {
    its.balance = rank.routed.balance / double(from.filled());
    its.routerZ = rank.routed.z / double(from.filled());
    its.rows = double(rank.routed.rows);
    its.experts = double(rank.routed.experts);
    its.dropped = double(rank.routed.dropped);
    its.ends[2 * rank.device] = double(rank.routed.fewest + 1); // 0: a device without experts
    its.ends[2 * rank.device + 1] = double(rank.routed.most);
  }
}

/// Summarizes what all ranks have collected.
Status Trainer::summarize(StepSummary &summary) {
  PP_TRY(transport.sum(sums));
  const StepSums all(whole, sums.data());
  sumRouters(all, summary);
  // A loss is divided by the weights of its update's targets, that of the step by those of all updates.
  for (int64_t i = 0; i < whole.microbatches; ++i) {
    const double its = summary.weight > 0 ? summary.weights[size_t(i / (whole.microbatches / whole.updates))] : 0;
    const double parts = its > 0 ? summary.weight / its : 1; // of even ones as many as there are updates, exactly
    summary.loss += all.losses[i] / parts;
    summary.further += all.further[i] / parts;
    summary.zLoss += all.z[i] / parts;
    summary.reports.resize(whole.reports.size());
    for (size_t report = 0; report < summary.reports.size(); ++report)
      summary.reports[report] += all.reports[int64_t(report) * whole.microbatches + i] / parts;
  }
  summary.hasZLoss = all.hasZ > 0;
  summary.hasFurther = all.hasFurther > 0;
  told |= all.told > 0;
  areDone = all.done >= whole.devices();
  for (int32_t other = whole.devices() - 1; other >= 0; --other)
    if (all.norms[2 * other + 1] != 0) {
      summary.norm = std::sqrt(all.norms[2 * other]) / summary.lossScale;
      summary.hasNorm = true;
    }
  for (double *value : {&summary.loss, &summary.further, &summary.zLoss, &summary.norm})
    *value = std::isnan(*value) ? std::fabs(*value) : *value; // the CPU decides about a sign, which would be printed
  return {};
}

/// Means over all tokens of the step; rows are of an expert in one layer and microbatch.
void Trainer::sumRouters(const StepSums &all, StepSummary &summary) const {
  const double *ends = all.ends;
  summary.hasExperts = all.rows > 0;
  if (!summary.hasExperts)
    return;
  summary.balance = all.balance;
  summary.z = all.routerZ;
  summary.meanRows = all.rows / all.experts;
  summary.dropped = all.dropped / (all.rows + all.dropped);
  double fewest = 0, most = 0;
  for (int32_t device = 0; device < whole.devices(); ++device, ends += 2) {
    if (ends[0] > 0)
      fewest = fewest > 0 ? std::min(fewest, ends[0]) : ends[0];
    most = std::max(most, ends[1]);
  }
  summary.fewestRows = int64_t(fewest) - 1;
  summary.mostRows = int64_t(most);
}

/// The plan is for one thread a rank on a CPU, or for kernels of GPUs.
Status Trainer::checkScratch() const {
  if (const int64_t bytes = weightBytes(); bytes > program->targetWeightBytes)
    return internal("the weights of targets of ", program->name, " need ", bytes, " bytes beside the arena, and ",
                    program->targetWeightBytes, " are planned");
  const char *wanted = std::getenv("PP_THREADS");
  bool onDevice = !device.name().empty(), isForDevice = program->ncclBytes >= 0;
  int64_t threads = wanted && !onDevice ? std::max(1, std::atoi(wanted)) : 1, planned = program->kernelBytes;
  bool isPlanned =
      planned >= 0 && onDevice == isForDevice && isForDevice == (std::string_view(Kernels::isa()) == "cuda");
  if (!isPlanned || kernels->scratchBytes() <= threads * planned)
    return {};
  return internal("the kernels of ", program->name, " need ", kernels->scratchBytes(), " bytes beside the arena, and ",
                  planned, " are planned", onDevice ? "" : " for each thread");
}

Status Trainer::printHeader() {
  std::vector<double> peaks(whole.ranks + 1);
  if (whole.mesh.isFirst(rank.device)) { // the rank's other devices are like it
    peaks[rank.rank] = double(program->plannedPeak());
    peaks[whole.ranks] = double(vanished);
  }
  PP_TRY(transport.sum(peaks));
  if (peaks.back() > 0)
    remarks.push_back(
        text(peaks.back(), " values of `", files.path(), "` are too small for f16; the run begins with 0"));
  peaks.pop_back();
  if (!speaks())
    return {};
  printf("%s, schedule %s, %s over %s, %s, %lld parameters\n", whole.model.c_str(), whole.schedule.c_str(),
         whole.mesh.describe().c_str(), std::string(transport.name()).c_str(), whole.precision.c_str(),
         static_cast<long long>(whole.parameters));
  std::string where = device.name();
  printf("a step: %s, %.3f GFLOP; kernels %s%s\n", whole.stepText().c_str(), whole.flopsPerStep * 1e-9, Kernels::isa(),
         (where.empty() ? where : ", " + where).c_str());
  printf("planned peak bytes a rank:");
  for (double peak : peaks)
    printf(" %.0f", peak);
  printf("\n");
  if (const int64_t rows = inputs.rowsPerEpoch())
    printf("data: %lld tokens, read once every %.1f steps\n", static_cast<long long>(inputs.tokenCount()),
           double(rows) / double(whole.sequencesPerStep()));
  printf("%s", inputs.describeMixture().c_str());
  if (inputs.sourceCount() > 0)
    printf("source: %lld tokens\n", static_cast<long long>(inputs.sourceCount()));
  for (const std::string &remark : remarks)
    printf("remark: %s\n", remark.c_str());
  fflush(stdout);
  return {};
}

Status Trainer::finish() {
  constexpr int columns = 12;
  std::vector<double> table(columns * whole.devices());
  const Trace::Sums &spent = trace.sums();
  double *row = table.data() + columns * rank.device;
  row[0] = double(program->plannedPeak());
  row[1] = double(device.usedBytes());
  row[2] = double(kernels->scratchBytes() + transport.scratchBytes());
  row[3] = double(spent.units);
  row[4] = double(spent.waits);
  row[5] = double(spent.posts);
  row[6] = double(spent.steps);
  row[7] = double(stepBytes);
  row[8] = double(device.takenBytes());
  row[9] = double(program->arenaBytes - program->hostBytes + program->plannedScratch());
  row[10] = double(audit ? audit->received : 0);
  row[11] = double(audit ? audit->copies : 0);
  PP_TRY(transport.sum(table));
  if (speaks()) {
    bool timed = device.isTimed(), knowsTaken = row[8] >= 0;
    printf("%s  planned peak B     used B  scratch B  received B/step%s%s\n",
           whole.mesh.devicesOfRank() > 1 ? "dev." : "rank", knowsTaken ? "    GPU planned B  GPU taken B" : "",
           timed ? "   kernels   waiting  messages  dispatch" : "");
    for (int32_t other = 0; other < whole.devices(); ++other) {
      const double *its = table.data() + columns * other;
      double all = std::max(its[6], 1.0) / 100;
      printf("%4d %15.0f %10.0f %10.0f %16.0f", other, its[0], its[1], its[2], its[7]);
      if (knowsTaken)
        printf(" %16.0f %12.0f", its[9], its[8]);
      if (timed)
        printf(" %8.2f%% %8.2f%% %8.2f%% %8.2f%%", its[3] / all, its[4] / all, its[5] / all,
               (its[6] - its[3] - its[4] - its[5]) / all);
      printf("\n");
    }
    double messages = 0, copies = 0;
    for (const double *its = table.data(); its < table.data() + table.size(); its += columns) {
      messages += its[10];
      copies += its[11];
    }
    if (audit)
      printf("audits: %lld steps, %.0f messages and %.0f copies of weights and states compared\n",
             static_cast<long long>(audit->audited), messages, copies);
    if (state.skipped > skippedBefore)
      printf("steps skipped: %lld of %lld, whose gradients were not finite\n",
             static_cast<long long>(state.skipped - skippedBefore), static_cast<long long>(lastStep - state.step));
    if (isLate())
      printf("updates done over: %lld of %lld\n", static_cast<long long>(redone),
             static_cast<long long>(lastStep - state.step));
    if (std::string engines = Kernels::engines(); !engines.empty()) // of this process
      printf("engines  %s\n", engines.c_str());
    fflush(stdout);
  }
  if (options.isTimed())
    PP_TRY(finishTrace());
  if (speaks() && early)
    printf("told to end: the run ends behind step %lld of %lld; `--resume %s` goes on with it\n",
           static_cast<long long>(lastStep), static_cast<long long>(state.steps), options.save.c_str());
  return {};
}

Status Trainer::finishTrace() {
  std::vector<RankTrace> traces(whole.devices());
  PP_TRY(gatherTraces(traces));
  if (speaks() && !options.trace.empty())
    PP_TRY(writeTrace(options.trace, whole, traces));
  return speaks() && !options.profile.empty() ? writeProfile(options.profile, whole, transport.name(), traces)
                                              : Status();
}

/// On device 0: the events of all devices.
Status Trainer::gatherTraces(std::vector<RankTrace> &traces) {
  std::vector<double> facts(3 * whole.devices());
  facts[3 * rank.device] = double(trace.size());
  facts[3 * rank.device + 1] = transport.now() * 1e9 - double(Trace::now());
  facts[3 * rank.device + 2] = double(trace.dropped());
  PP_TRY(transport.sum(facts));
  if (!speaks())
    return trace.size() ? transport.send(0, trace.data(), trace.size() * sizeof(Trace::Event)) : Status();
  double dropped = 0;
  for (int32_t other = 0; other < whole.devices(); ++other) {
    RankTrace &its = traces[other];
    PP_TRY(emitted.of(other, its.program));
    its.shift = int64_t(facts[3 * other + 1]);
    its.events.resize(size_t(facts[3 * other]));
    dropped += facts[3 * other + 2];
    if (other == rank.device)
      its.events.assign(trace.data(), trace.data() + trace.size());
    else if (!its.events.empty())
      PP_TRY(transport.receive(other, its.events.data(), its.events.size() * sizeof(Trace::Event)));
  }
  if (dropped > 0)
    printf("remark: the trace lacks the last %.0f events; a rank keeps %zu\n", dropped, maxTraceEvents);
  return {};
}

} // namespace pp
