// Opens the data of a run, counts the targets of each step, and copies its rows to the ranks' memory or to a file.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "runtime/trainer/StepInputs.h"
#include "runtime/device/Device.h"
#include "runtime/files/SafeTensors.h"
#include <numeric>

namespace pp {

static constexpr int64_t mostSteps = 1000000000; ///< as of --steps

Status StepInputs::open(const std::string &name, const std::string &sourceData, uint64_t seed,
                        std::optional<Packing> packing, bool check) {
  PP_TRY(data.open(name, whole.vocab, seed, check));
  if (data.hasCounted() && !whole.documents)
    return invalid("data `", name,
                   "` has `counted`; this program divides its loss by all targets: compile it with "
                   "`data .., documents = true` (-D data.documents=true)");
  bool hasDocuments = false;
  PP_TRY(data.findDocuments(whole.documents && packing != Packing::Stream, hasDocuments));
  if (packing && *packing != Packing::Stream && !whole.documents)
    return invalid("`--pack ", nameOf(*packing),
                   "`: this program does not know where documents begin: compile it with "
                   "`data .., documents = true` (-D data.documents=true)");
  if (packing && *packing != Packing::Stream && !hasDocuments)
    return invalid("`--pack ", nameOf(*packing), "`: data `", name, "` has no documents");
  packed = packing.value_or(whole.documents && hasDocuments ? Packing::Whole : Packing::Stream);
  PP_TRY(data.cut(whole.sequence, packed, whole.pad));
  hasSource = !sourceData.empty();
  if (!hasSource)
    return {};
  PP_TRY(source.open(sourceData, whole.vocab, ~seed, check));
  return sourceRows.open(source, tokenPath(sourceData), whole.sequence, Packing::Stream);
}

Status StepInputs::shuffle(uint64_t seed) {
  if (const int64_t mine = rowsPerEpoch(), others = hasSource && !source.isRandom() ? sourceRows.rowsPerEpoch() : mine;
      mine != others)
    return invalid("`--shuffle`: `--data` has ", mine, " sequences and `--source` ", others,
                   "; they are read in one order, so they need as many");
  data.shuffle(seed);
  sourceRows.shuffle(seed);
  return {};
}

Status StepInputs::goOn(int64_t number, const std::optional<StepShape> &was, ShapeBegin &before) {
  auto start = [&](int64_t rowsPerStep) {
    data.startAt(before.data, before.step, rowsPerStep);
    sourceRows.startAt(before.source);
  };
  start(was ? was->rows : whole.sequencesPerStep());
  if (was) {
    const int64_t row = (number - before.step) * was->rows;
    PP_TRY(data.cut(was->sequence, packed, whole.pad));
    if (hasSource)
      PP_TRY(sourceRows.open(source, "--source", was->sequence, Packing::Stream));
    before = {number, before.rows + row, before.tokens + row * was->sequence, data.placesAt(row),
              hasSource ? sourceRows.placeOf(row) : Rows::Place()};
    PP_TRY(data.cut(whole.sequence, packed, whole.pad));
    if (hasSource)
      PP_TRY(sourceRows.open(source, "--source", whole.sequence, Packing::Stream));
    start(whole.sequencesPerStep());
  }
  began = before;
  return {};
}

Status StepInputs::endAfter(int64_t epochs, int64_t &last) {
  const int64_t perStep = whole.sequencesPerStep(), most = mostSteps * perStep,
                count = data.rows().rowsOf(epochs, most);
  if (count > most)
    return invalid("`--epochs ", epochs, "` of ", rowsPerEpoch(),
                   " sequences or so is more than can be counted: ", mostSteps, " steps of ", perStep,
                   ", or as many documents where each epoch packs them anew");
  if (whole.documents)
    data.rows().endAt(count);
  last = began.step + (count + perStep - 1) / perStep;
  return {};
}

int64_t StepInputs::readOnce() {
  const int64_t count = data.rows().rowsOf(1), perStep = whole.sequencesPerStep();
  data.rows().endAt(count);
  counts = true;
  return (count + perStep - 1) / perStep;
}

void StepInputs::begin(int64_t number) {
  step = number;
  const int64_t first = rowOf(step);
  data.cover(first, first + whole.sequencesPerStep());
  targets.assign(size_t(whole.updates), rowsPerUpdate() * whole.sequence);
  tokens = targets;
  for (size_t update = 0; counts && update < targets.size(); ++update) {
    const int64_t begin = first + int64_t(update) * rowsPerUpdate();
    targets[update] = tokens[update] = 0;
    for (int64_t row = begin; row < begin + rowsPerUpdate(); ++row) {
      targets[update] += data.counted(row, /*ahead=*/0);
      tokens[update] += data.filled(row);
    }
  }
}

void StepInputs::setFurther(const std::vector<InputSpec> &specs, int64_t update, OptimizerScalars &scalars) {
  const int64_t begin = rowOf(step) + std::max<int64_t>(update, 0) * rowsPerUpdate();
  const int64_t end = begin + (update < 0 ? whole.sequencesPerStep() : rowsPerUpdate());
  int64_t known[mostAhead + 1] = {};
  for (const InputSpec &its : specs) {
    if (!counts || its.kind != InputSpec::Kind::Targets || its.ahead < 1 || its.ahead > mostAhead || known[its.ahead])
      continue;
    for (int64_t row = begin; row < end; ++row)
      known[its.ahead] += data.counted(row, its.ahead);
    scalars.divisors[its.ahead] = std::max(double(known[its.ahead]), 1.0);
  }
}

int64_t StepInputs::counted() const { return std::accumulate(targets.begin(), targets.end(), int64_t(0)); }
int64_t StepInputs::filled() const { return std::accumulate(tokens.begin(), tokens.end(), int64_t(0)); }

/// What this device reads of each row, in its order.
std::array<StepInputs::Run, 2> StepInputs::runsOf(const InputSpec &its) const {
  const int64_t devices = whole.mesh.size(Axis::Context), length = its.length / 2;
  if (devices == 1)
    return {{{its.first, its.length}, {its.first + its.length, 0}}};
  return {{{its.first + context * length, length}, {its.first + (2 * devices - 1 - context) * length, length}}};
}

Status StepInputs::fill(const std::vector<InputSpec> &specs, Device &device) {
  constexpr Rows::What whats[] = {Rows::What::Tokens, Rows::What::Targets, Rows::What::Before,
                                  Rows::What::Starts, Rows::What::Starts,  Rows::What::Filled}; // by InputSpec::Kind
  size_t all = 0;
  for (const InputSpec &its : specs)
    all += size_t(whole.batch * its.length);
  input.resize(all);
  std::vector<StepCopy> pieces;
  int32_t *begin = input.data();
  for (const InputSpec &its : specs) {
    const int64_t count = whole.batch * its.length;
    pieces.push_back({its.offset, begin, size_t(count) * sizeof(int32_t)});
    const bool own = its.kind == InputSpec::Kind::Source && hasSource;
    const Rows::What what = own ? Rows::What::Tokens : whats[size_t(its.kind)];
    for (int64_t row = 0; row < whole.batch; ++row) {
      const int64_t number = rowOf(step) + firstRow(its.microbatch) + row, drawn = began.rows + number;
      if (its.kind == InputSpec::Kind::Rows && drawn > INT32_MAX)
        return invalid("step ", step, " reads sequence ", drawn, "; dropout and routers know ", INT32_MAX, " of them");
      int32_t *next = begin + row * its.length;
      for (const Run &run : runsOf(its)) {
        if (run.length == 0)
          continue;
        if (own)
          sourceRows.read(number, what, next, run.first, run.length, its.ahead);
        else
          data.read(number, what, next, run.first, run.length, its.ahead);
        for (int64_t i = 0; its.kind == InputSpec::Kind::Positions && i < run.length; ++i)
          next[i] = int32_t(run.first + i) - next[i];
        for (int64_t i = 0; its.kind == InputSpec::Kind::Rows && i < run.length; ++i)
          next[i] = next[i] ? int32_t(drawn) : -1;
        next += run.length;
      }
    }
    begin += count;
  }
  return device.give(pieces);
}

/// Tokens, targets and starts.
Status StepInputs::writeRows(SafeTensorsWriter &file, int64_t begin, int64_t end) {
  input.resize(size_t(whole.sequence));
  for (Rows::What what : {Rows::What::Tokens, Rows::What::Targets, Rows::What::Starts})
    for (int64_t row = begin; row < end; ++row) {
      data.cover(row, row + 1);
      data.read(row, what, input.data());
      PP_TRY(file.write(input.data(), input.size() * sizeof(int32_t)));
    }
  return {};
}

Status StepInputs::write(const std::string &path, int64_t count, const std::string &name,
                         const std::vector<float> &numbers) {
  const std::vector<int64_t> shape = {count, whole.sequence};
  SafeTensorsWriter file;
  PP_TRY(file.open(
      path, {{name, "F32", shape}, {"tokens", "I32", shape}, {"targets", "I32", shape}, {"starts", "I32", shape}}, {}));
  PP_TRY(file.write(numbers.data(), numbers.size() * sizeof(float)));
  PP_TRY(writeRows(file, 0, count));
  return file.finish();
}

Status StepInputs::write(const std::string &path, int64_t done, int64_t last) {
  const int64_t perStep = whole.sequencesPerStep(), count = (last - done) * perStep;
  const std::vector<int64_t> shape = {count, whole.sequence};
  SafeTensorsWriter file;
  PP_TRY(file.open(path,
                   {{"divisor", "F64", {(last - done) * whole.updates}},
                    {"tokens", "I32", shape},
                    {"targets", "I32", shape},
                    {"starts", "I32", shape}},
                   {{"step", std::to_string(done)}}));
  for (int64_t number = done + 1; number <= last; ++number) {
    begin(number);
    for (int64_t update = 0; update < whole.updates; ++update) {
      const double by = divisor(update);
      PP_TRY(file.write(&by, sizeof by));
    }
  }
  PP_TRY(writeRows(file, rowOf(done + 1), rowOf(last + 1)));
  return file.finish();
}

std::string StepInputs::fingerprint() const {
  return data.fingerprint(whole.documents) + (hasSource ? "; source " + source.fingerprint(false) : "");
}

} // namespace pp
