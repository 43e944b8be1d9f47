// Plans which rank hands in which piece of a tensor, and brings the pieces together on one of them.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "runtime/trainer/Gather.h"
#include <algorithm>
#include <cstring>
#include <set>
#include <tuple>

namespace pp {
namespace {

/// The programs of all devices of all ranks, rank by rank, those along `tensor` next to each other.
Status programsOf(Emitted &emitted, std::vector<const RankProgram *> &out) {
  const Mesh &mesh = emitted.program().mesh;
  for (int32_t rank = 0; rank < mesh.size(Axis::Pipeline); ++rank)
    for (int32_t first : mesh.line(mesh.firstOf(rank), {Axis::Context, Axis::Data}))
      for (int32_t device : mesh.line(first, {Axis::Tensor})) {
        const RankProgram *program = nullptr;
        PP_TRY(emitted.of(device, program));
        out.push_back(program);
      }
  return {};
}

/// Whether the device hands it in: the first of those that have the same. All along `tensor` have what is not cut, all
/// along `context` and `data` what is not cut over them; of what is, some have nothing.
bool isFirstWith(const TensorSpec &tensor, const Mesh &mesh, int32_t device) {
  const int32_t place = mesh.coordinate(device, Axis::Tensor);
  const bool isOwn = tensor.ofExpert ? tensor.count > 0 && mesh.coordinate(device, Axis::Copies) == 0
                     : tensor.ofReplica
                         ? tensor.count > 0
                         : mesh.coordinate(device, Axis::Data) == 0 && mesh.coordinate(device, Axis::Context) == 0;
  return isOwn && (tensor.dims.empty() ? place == 0 : place % tensor.copies == 0);
}

/// Collects the tensors of a kind that a device has. State is stored as its weight, which `stored` knows by name.
void collect(const RankProgram &program, TensorKind kind, const std::map<std::string, Stored> &stored,
             std::vector<Held> &out) {
  if (kind == TensorKind::Weights)
    for (const WeightSpec &weight : program.weights)
      if (weight.save)
        out.push_back({weight.name, weight, program.device});
  if (kind == TensorKind::Grads)
    for (const TensorSpec &grad : program.grads)
      out.push_back({grad.name, grad, program.device});
  if (kind == TensorKind::State)
    for (const StateSpec &state : program.state) {
      Held held{state.name + "." + state.kind, state, program.device};
      if (auto found = stored.find(state.name); found != stored.end())
        held.tensor.stored = found->second;
      out.push_back(held);
    }
}

/// Layouts of all weights; a rank's state may belong to a weight that begins the step elsewhere.
Status layouts(Emitted &emitted, std::map<std::string, Stored> &out) {
  std::vector<const RankProgram *> programs;
  PP_TRY(emitted.all(programs));
  for (const RankProgram *program : programs)
    for (const WeightSpec &weight : program->weights)
      out[weight.name] = weight.stored;
  return {};
}

/// If several ranks have the whole state of a tensor, each for its own update, only the first one gives it: leaves out
/// tensors that an earlier rank has at the same place along `tensor`.
void leaveCopies(const std::vector<const RankProgram *> &programs, const Mesh &mesh, std::vector<Held> &out) {
  using Part = std::tuple<std::string, int64_t, int64_t, int32_t>;
  std::set<Part> seen;
  for (const RankProgram *program : programs) {
    const int32_t place = mesh.coordinate(program->device, Axis::Tensor);
    std::set<Part> here;
    for (const StateSpec &state : program->state)
      if (state.elements() > 0)
        here.insert({state.name + "." + state.kind, state.begin, state.base, place});
    std::erase_if(out, [&](const Held &held) {
      return held.device == program->device && seen.contains({held.name, held.tensor.begin, held.tensor.base, place});
    });
    seen.merge(here);
  }
}

/// Each tensor once, or its shards one after the other, or side by side.
Status checkWhole(const Pieces &pieces) {
  const TensorSpec &last = pieces.back().tensor;
  if (!last.dims.empty()) { // cut over devices: their elements are as many as the whole has
    int64_t count = 0;
    for (const Held &piece : pieces)
      for (TensorSpec::Range range : piece.tensor.ranges())
        count += range.count;
    return count == last.wholeElements() ? Status()
                                         : internal("devices hand in ", count, " of the ", last.wholeElements(),
                                                    " elements of `", pieces.back().name, "`");
  }
  auto end = [](const TensorSpec &shard) { return shard.begin + (shard.run < 0 ? shard.elements() : shard.run); };
  int64_t reached = 0;
  for (size_t i = 0; i < pieces.size(); ++i) {
    const TensorSpec &shard = pieces[i].tensor;
    if (shard.begin < reached)
      return internal("devices ", pieces[std::max<size_t>(i, 1) - 1].device, " and ", pieces[i].device,
                      " both hand in `", pieces[i].name, "`");
    if (shard.begin > reached)
      return internal("no rank hands in all of `", pieces[i].name, "`");
    reached = end(shard);
  }
  if (reached < (last.run < 0 ? last.wholeElements() : last.stride))
    return internal("no rank hands in all of `", pieces.back().name, "`");
  return {};
}

} // namespace

Status piecesOf(Emitted &emitted, TensorKind kind, std::map<std::string, Pieces> &out) {
  std::map<std::string, Stored> stored;
  if (kind == TensorKind::State)
    PP_TRY(layouts(emitted, stored));
  const Mesh &mesh = emitted.program().mesh;
  std::vector<const RankProgram *> programs;
  PP_TRY(programsOf(emitted, programs));
  Pieces held;
  for (const RankProgram *program : programs)
    collect(*program, kind, stored, held);
  std::set<std::string> names;
  for (const Held &each : held)
    names.insert(each.name);
  std::erase_if(held, [&](const Held &each) { return !isFirstWith(each.tensor, mesh, each.device); });
  if (kind == TensorKind::State)
    leaveCopies(programs, mesh, held);
  std::stable_sort(held.begin(), held.end(), [](const Held &a, const Held &b) {
    return std::tie(a.name, a.tensor.begin, a.tensor.base) < std::tie(b.name, b.tensor.begin, b.tensor.base);
  });
  if (kind == TensorKind::State) // old versions of a weight that two pieces of one rank share
    held.erase(std::unique(held.begin(), held.end(),
                           [](const Held &a, const Held &b) {
                             return a.device == b.device && a.name == b.name && a.tensor.begin == b.tensor.begin &&
                                    a.tensor.base == b.tensor.base;
                           }),
               held.end());
  for (Held &each : held)
    out[each.name].push_back(std::move(each));
  for (const auto &[name, pieces] : out)
    PP_TRY(checkWhole(pieces));
  for (const std::string &name : names)
    if (!out.contains(name))
      return internal("no device hands in `", name, "`");
  return {};
}

Status ownState(RankMemory &memory, Pieces &out) {
  std::map<std::string, Stored> stored;
  PP_TRY(layouts(memory.emitted, stored));
  collect(memory.program, TensorKind::State, stored, out);
  return {};
}

Status gather(RankMemory &memory, const Pieces &pieces, int32_t to, std::vector<char> &out) {
  bool writer = memory.program.device == to;
  std::vector<char> shard;
  for (const Held &piece : pieces) {
    const TensorSpec &tensor = piece.tensor;
    bool mine = piece.device == memory.program.device;
    const size_t size = elementBytes(tensor.type), bytes = size_t(tensor.bytes());
    const bool isWhole = writer && tensor.dims.empty() && tensor.elements() == tensor.wholeElements();
    std::vector<char> &values = isWhole || !writer ? out : shard; // what has all of it needs no other place
    if (mine || writer)
      values.resize(bytes);
    if (mine)
      PP_TRY(memory.device.download(tensor.offset, values.data(), bytes));
    if (mine && !writer)
      PP_TRY(memory.transport.send(to, values.data(), bytes));
    if (writer && !mine)
      PP_TRY(memory.transport.receive(piece.device, values.data(), bytes));
    if (!writer || isWhole)
      continue;
    out.resize(size_t(tensor.wholeElements()) * size);
    for (TensorSpec::Range range : tensor.ranges())
      memcpy(out.data() + size_t(range.whole) * size, shard.data() + size_t(range.here) * size,
             size_t(range.count) * size);
  }
  return {};
}

Status eachBlock(const TensorSpec &tensor, const std::vector<char> &values,
                 const std::function<Status(const char *, int64_t)> &take) {
  const int64_t size = int64_t(elementBytes(tensor.type)), all = int64_t(values.size()) / size, most = 1 << 17;
  const auto [matrices, rows, columns] = tensor.turned();
  for (int64_t first = 0; rows == 1 && first < all; first += most)
    PP_TRY(take(values.data() + first * size, std::min(most, all - first)));
  if (rows == 1)
    return {};
  const int64_t side = std::max<int64_t>(32, 4096 / rows); // columns that become rows together, and stay in the cache
  std::vector<char> turned(size_t(side * rows * size));
  auto turn = [&, rows = rows, columns = columns](auto element, int64_t first, int64_t count) {
    const auto *from = reinterpret_cast<const decltype(element) *>(values.data()) + first;
    auto *to = reinterpret_cast<decltype(element) *>(turned.data());
    for (int64_t top = 0; top < rows; top += side)
      for (int64_t column = 0; column < count; ++column)
        for (int64_t row = top; row < std::min(top + side, rows); ++row)
          to[column * rows + row] = from[row * columns + column];
  };
  for (int64_t matrix = 0; matrix < matrices; ++matrix)
    for (int64_t left = 0; left < columns; left += side) {
      const int64_t count = std::min(side, columns - left), first = matrix * rows * columns + left;
      size == 8   ? turn(uint64_t(), first, count)
      : size == 4 ? turn(uint32_t(), first, count)
                  : turn(uint16_t(), first, count);
      PP_TRY(take(turned.data(), count * rows));
    }
  return {};
}

void turnForFile(const TensorSpec &tensor, std::vector<char> &values) {
  if (tensor.turned().rows == 1)
    return;
  std::vector<char> turned;
  turned.reserve(values.size());
  (void)eachBlock(tensor, values, [&](const char *from, int64_t count) {
    turned.insert(turned.end(), from, from + count * int64_t(elementBytes(tensor.type)));
    return Status();
  });
  values = std::move(turned);
}

Status writeGradients(RankMemory &memory, const std::string &path, double factor) {
  std::map<std::string, Pieces> tensors;
  PP_TRY(piecesOf(memory.emitted, TensorKind::Grads, tensors));
  bool writer = memory.program.device == 0;
  std::vector<FileTensor> entries;
  for (const auto &[name, pieces] : tensors)
    entries.push_back({name, fileType(pieces.front().tensor.type), fileShape(pieces.front().tensor)});
  SafeTensorsWriter file;
  if (writer)
    PP_TRY(file.open(path, entries, {{"format", "pt"}}));
  std::vector<char> values;
  for (const auto &[name, pieces] : tensors) {
    PP_TRY(gather(memory, pieces, /*to=*/0, values));
    if (!writer)
      continue;
    turnForFile(pieces.front().tensor, values);
    Type type = pieces.front().tensor.type;
    for (size_t at = 0; factor != 1 && at < values.size(); at += elementBytes(type))
      storeElement(values.data() + at, type, factor * SafeTensors::readerOf(fileType(type))(values.data() + at, 0));
    PP_TRY(file.write(values.data(), values.size()));
  }
  return writer ? file.finish() : Status();
}

} // namespace pp
