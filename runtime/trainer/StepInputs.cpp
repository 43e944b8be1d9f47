// Opens the data of a run, counts the targets of each step, and copies its rows to the ranks' memory or to a file.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "runtime/trainer/StepInputs.h"
#include "runtime/device/Device.h"
#include "runtime/files/SafeTensors.h"
#include <cstring>
#include <numeric>

namespace pp {

Status StepInputs::open(const std::string &name, const std::string &sourceData, uint64_t seed,
                        std::optional<Packing> packing, bool check) {
  PP_TRY(data.open(name, whole.vocab, seed, check, whole.columns));
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
  if (whole.group > 1 && packing && packed != Packing::Whole)
    return invalid("`--pack ", nameOf(packed), "`: this program reads groups of ", whole.group,
                   " documents, which are not cut; `--pack whole` is what it does");
  if (whole.group > 1 && packed != Packing::Whole && !(data.isOne() && data.tokens().isRandom()))
    return invalid("data `", name, "` has no documents; this program reads groups of ", whole.group);
  PP_TRY(data.cut(whole.sequence, packed, whole.pad, whole.group));
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
    PP_TRY(data.cut(was->sequence, packed, whole.pad, whole.group));
    if (hasSource)
      PP_TRY(sourceRows.open(source, "--source", was->sequence, Packing::Stream));
    before = {number, before.rows + row, before.tokens + row * was->sequence, data.placesAt(row),
              hasSource ? sourceRows.placeOf(row) : Rows::Place()};
    PP_TRY(data.cut(whole.sequence, packed, whole.pad, whole.group));
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
  tokens.assign(size_t(whole.updates), rowsPerUpdate() * whole.sequence);
  targets = whole.sequencesPerStep() * whole.sequence;
  weights.assign(tokens.begin(), tokens.end());
  if (!counts)
    return;
  targets = 0;
  for (size_t update = 0; update < weights.size(); ++update) {
    const int64_t begin = first + int64_t(update) * rowsPerUpdate();
    Counted sum;
    tokens[update] = 0;
    for (int64_t row = begin; row < begin + rowsPerUpdate(); ++row) {
      sum += data.counted(row, /*ahead=*/0);
      tokens[update] += data.filled(row);
    }
    targets += sum.targets;
    weights[update] = sum.weights;
  }
}

std::pair<int64_t, int64_t> StepInputs::rowsOf(int64_t update) const {
  const int64_t begin = rowOf(step) + std::max<int64_t>(update, 0) * rowsPerUpdate();
  return {begin, begin + (update < 0 ? whole.sequencesPerStep() : rowsPerUpdate())};
}

void StepInputs::setFurther(const std::vector<InputSpec> &specs, int64_t update, OptimizerScalars &scalars) {
  const auto [begin, end] = rowsOf(update);
  double known[mostAhead + 1] = {};
  for (const InputSpec &its : specs) {
    if (!counts || its.kind != InputSpec::Kind::Targets || its.ahead < 1 || its.ahead > mostAhead ||
        known[its.ahead] > 0)
      continue;
    for (int64_t row = begin; row < end; ++row)
      known[its.ahead] += data.counted(row, its.ahead).weights;
    scalars.divisors[its.ahead] = notZero(known[its.ahead]);
  }
}

double StepInputs::sumOf(int64_t number, int64_t update) const {
  const auto [begin, end] = rowsOf(update);
  double sum = 0;
  for (int64_t row = begin; row < end; ++row)
    sum += number == divisorOfDocuments ? double(data.documentsOf(row))
           : number == divisorOfGroups  ? double(data.groupsOf(row))
                                        : data.columnSum(row, size_t(number - divisorOfColumn));
  return sum;
}

int64_t divisorOf(const OpSpec &op) {
  if (!op.kernel.starts_with("token_mean"))
    return op.kernel.starts_with("cross_entropy") ? 0 : -1;
  return op.params.size() > 2 && op.params[2] > 0 && op.params[2] < divisorCount ? int64_t(op.params[2]) : 0;
}

void StepInputs::setDivisors(const std::vector<OpSpec> &ops, int64_t update, OptimizerScalars &scalars) {
  bool known[divisorCount] = {};
  for (const OpSpec &op : ops) {
    const int64_t number = divisorOf(op);
    if (number < divisorOfColumn || known[number])
      continue;
    const double sum = sumOf(number, update);
    scalars.divisors[number] = sum != 0 ? sum : 1;
    known[number] = true;
  }
}

double StepInputs::weight() const { return std::accumulate(weights.begin(), weights.end(), 0.0); }
int64_t StepInputs::filled() const { return std::accumulate(tokens.begin(), tokens.end(), int64_t(0)); }

/// The runs of each row that this device reads, in its order.
std::array<StepInputs::Run, 2> StepInputs::runsOf(const InputSpec &its) const {
  const int64_t devices = whole.mesh.size(Axis::Context), length = its.length / 2;
  if (devices == 1)
    return {{{its.first, its.length}, {its.first + its.length, 0}}};
  return {{{its.first + context * length, length}, {its.first + (2 * devices - 1 - context) * length, length}}};
}

/// An input of the step as the device reads it: its rows of a microbatch.
Status StepInputs::read(const InputSpec &its, Rows::What what, int32_t *next) {
  const bool own = its.kind == InputSpec::Kind::Source && hasSource;
  for (int64_t row = 0; row < whole.batch; ++row) {
    const int64_t number = rowOf(step) + firstRow(its.microbatch) + row, drawn = began.rows + number;
    if (its.kind == InputSpec::Kind::Rows && drawn > INT32_MAX)
      return invalid("step ", step, " reads sequence ", drawn, "; dropout and routers know ", INT32_MAX, " of them");
    for (const Run &run : runsOf(its)) {
      if (run.length == 0)
        continue;
      if (own)
        sourceRows.read(number, Rows::What::Tokens, next, run.first, run.length, its.ahead);
      else
        data.read(number, what, next, run.first, run.length, its.ahead);
      for (int64_t i = 0; its.kind == InputSpec::Kind::Positions && i < run.length; ++i)
        next[i] = int32_t(run.first + i) - next[i];
      for (int64_t i = 0; its.kind == InputSpec::Kind::Rows && i < run.length; ++i)
        next[i] = next[i] ? int32_t(drawn) : -1;
      next += run.length;
    }
  }
  return {};
}

char *StepInputs::writeColumn(int64_t n, size_t column, int64_t from, int64_t count, int64_t bytes, char *next) {
  const ColumnSpec &its = whole.columns[column];
  values.resize(size_t(count * its.values()));
  if (its.isMade) {
    made.resize(size_t(count));
    data.read(n, its.name == "member" ? Rows::What::Members : Rows::What::Groups, made.data(), from, count);
    values.assign(made.begin(), made.end());
  } else {
    data.readColumn(n, column, values.data(), from, count);
  }
  auto put = [&](auto value) { memcpy(next, &value, sizeof value), next += sizeof value; };
  for (double value : values)
    if (bytes == 8)
      put(value);
    else if (its.isInt)
      put(int32_t(value));
    else
      put(float(value));
  return next;
}

/// A column as the device reads it: its rows of a microbatch.
void StepInputs::readColumn(const InputSpec &its, char *next) {
  for (int64_t row = 0; row < whole.batch; ++row)
    for (const Run &run : runsOf(its))
      next = writeColumn(rowOf(step) + firstRow(its.microbatch) + row, its.column, run.first, run.length,
                         whole.columnBytes(whole.columns[its.column]), next);
}

Status StepInputs::fill(const std::vector<InputSpec> &specs, int64_t weightsAt, Device &device) {
  constexpr Rows::What whats[] = {Rows::What::Tokens, Rows::What::Targets, Rows::What::Before, Rows::What::Starts,
                                  Rows::What::Starts, Rows::What::Filled,  Rows::What::Targets}; // by InputSpec::Kind
  auto hasWeights = [&](const InputSpec &its) { return weightsAt >= 0 && its.kind == InputSpec::Kind::Targets; };
  auto wordsOf = [&](const InputSpec &its) {
    int64_t words = whole.batch * its.length;
    if (its.kind == InputSpec::Kind::Column)
      words *= whole.columns[its.column].values() * whole.columnBytes(whole.columns[its.column]) / 4;
    return size_t(words);
  };
  size_t all = 0;
  for (const InputSpec &its : specs)
    all += wordsOf(its) * (hasWeights(its) ? 2 : 1);
  input.resize(all);
  std::vector<StepCopy> pieces;
  int32_t *begin = input.data();
  auto add = [&](const InputSpec &its, Rows::What what, int64_t offset) {
    const size_t count = wordsOf(its);
    pieces.push_back({offset, begin, count * sizeof(int32_t)});
    begin += count;
    if (its.kind == InputSpec::Kind::Column)
      return readColumn(its, reinterpret_cast<char *>(begin - count)), Status();
    return read(its, what, begin - count);
  };
  for (const InputSpec &its : specs) {
    PP_TRY(add(its, whats[size_t(its.kind)], its.offset));
    if (!hasWeights(its))
      continue;
    PP_TRY(add(its, Rows::What::Weights, weightsAt));
    weightsAt += int64_t(pieces.back().bytes);
  }
  return device.give(pieces);
}

std::vector<StepInputs::Column> StepInputs::columns() const {
  std::vector<Column> out = {{"tokens", "I32", Rows::What::Tokens},
                             {"targets", "I32", Rows::What::Targets},
                             {"starts", "I32", Rows::What::Starts}};
  if (hasWeights())
    out.push_back({"weights", "F32", Rows::What::Weights});
  for (size_t i = 0; i < whole.columns.size(); ++i)
    out.push_back(
        {"column." + whole.columns[i].name, whole.columns[i].isInt ? "I32" : "F32", Rows::What::Targets, int64_t(i)});
  return out;
}

Status StepInputs::open(SafeTensorsWriter &file, const std::string &path, const FileTensor &first, int64_t rows,
                        const std::map<std::string, std::string> &facts) const {
  std::vector<FileTensor> tensors = {first};
  for (const Column &its : columns()) {
    tensors.push_back({its.name, its.type, {rows, whole.sequence}});
    if (its.number >= 0 && whole.columns[size_t(its.number)].width > 0)
      tensors.back().shape.push_back(whole.columns[size_t(its.number)].width);
  }
  return file.open(path, tensors, facts);
}

Status StepInputs::writeRows(SafeTensorsWriter &file, int64_t begin, int64_t end) {
  for (const Column &its : columns()) {
    const int64_t each = its.number < 0 ? 1 : whole.columns[size_t(its.number)].values();
    input.resize(size_t(whole.sequence * each));
    for (int64_t row = begin; row < end; ++row) {
      data.cover(row, row + 1);
      if (its.number < 0)
        data.read(row, its.what, input.data());
      else
        writeColumn(row, size_t(its.number), 0, whole.sequence, 4, reinterpret_cast<char *>(input.data()));
      PP_TRY(file.write(input.data(), input.size() * sizeof(int32_t)));
    }
  }
  return {};
}

Status StepInputs::write(const std::string &path, int64_t count, const std::string &name,
                         const std::vector<float> &numbers) {
  SafeTensorsWriter file;
  PP_TRY(open(file, path, {name, "F32", {count, whole.sequence}}, count, {}));
  PP_TRY(file.write(numbers.data(), numbers.size() * sizeof(float)));
  PP_TRY(writeRows(file, 0, count));
  return file.finish();
}

Status StepInputs::writeDataset(const std::string &path, const std::string &column, const std::vector<float> &numbers) {
  const SafeTensors &dataset = *data.tokens().file();
  std::vector<float> ofTokens(static_cast<size_t>(tokenCount()));
  for (int64_t row = 0; row < int64_t(numbers.size()) / whole.sequence; ++row) {
    data.cover(row, row + 1);
    data.rows().scatter(row, numbers.data() + row * whole.sequence, ofTokens.data());
  }
  std::vector<FileTensor> tensors;
  for (const auto &[name, tensor] : dataset.tensors())
    if (name != column)
      tensors.push_back(tensor);
  tensors.push_back({column, "F32", {tokenCount()}});
  SafeTensorsWriter file;
  PP_TRY(file.open(path, tensors, dataset.metadata()));
  for (const auto &[name, tensor] : dataset.tensors())
    if (name != column)
      PP_TRY(file.write(dataset.data(tensor), size_t(tensor.end - tensor.begin)));
  PP_TRY(file.write(ofTokens.data(), ofTokens.size() * sizeof(float)));
  return file.finish();
}

Status StepInputs::write(const std::string &path, int64_t done, int64_t last) {
  SafeTensorsWriter file;
  PP_TRY(open(file, path, {"divisor", "F64", {(last - done) * whole.updates}}, (last - done) * whole.sequencesPerStep(),
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
  return data.fingerprint(whole.documents) + (whole.group > 1 ? text("; groups of ", whole.group) : "") +
         (hasSource ? "; source " + source.fingerprint(false) : "");
}

std::string StepInputs::checksum() const {
  return data.checksum(whole.documents) + (hasSource ? " " + source.checksum(false) : "");
}

} // namespace pp
