// Fills and reads the named tensors of the arena: seeds, files, transposition and rounding in one place.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "runtime/trainer/Weights.h"
#include "runtime/Options.h"
#include "runtime/files/FolderConfig.h"
#include "runtime/files/Half.h"
#include "runtime/files/Random.h"
#include <algorithm>
#include <array>
#include <barrier>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fnmatch.h>
#include <optional>
#include <sched.h>
#include <set>
#include <system_error>
#include <thread>
#include <unistd.h>

namespace pp {
namespace {

/// Uploads a tensor that `make(first, count, out)` writes in blocks, so that no whole tensor lies beside the arena.
template <typename Make> Status uploadBlocks(const TensorSpec &place, Device &device, Make make) {
  const int64_t size = int64_t(elementBytes(place.type)), most = (1 << 20) / size, all = place.elements();
  std::vector<char> block(size_t(std::min(all, most) * size));
  for (int64_t first = 0; first < all; first += most) {
    const int64_t count = std::min(most, all - first);
    PP_TRY(make(first, count, block.data()));
    PP_TRY(device.upload(place.offset + first * size, block.data(), size_t(count * size)));
  }
  return {};
}

/// Elements that one thread draws at a time: a millisecond, and so much beside the arena.
constexpr int64_t drawnAtOnce = int64_t(1) << 15;

/// PP_THREADS, or the processors that this process may use, shared with the ranks beside it.
int64_t threadsToDraw(const Transport &transport) {
  if (const char *wanted = std::getenv("PP_THREADS"))
    return std::clamp(std::atoi(wanted), 1, 1024);
  cpu_set_t allowed;
  const int64_t all = sysconf(_SC_NPROCESSORS_ONLN) / std::max(transport.ranksBeside(), 1);
  return std::max<int64_t>(
      sched_getaffinity(0, sizeof allowed, &allowed) == 0 ? std::min<int64_t>(all, CPU_COUNT(&allowed)) : all, 1);
}

/// Threads that do the parts of a job, each the one with its number, while who asks for it does something else.
class Workers {
public:
  /// With a count of one there is no thread: the caller does the work.
  explicit Workers(int64_t count) {
    if (count < 2)
      return;
    turn.emplace(count + 1);
    for (int64_t number = 0; number < count; ++number) {
      try {
        threads.emplace_back([this, number] {
          for (turn->arrive_and_wait(); !ends; turn->arrive_and_wait()) {
            job(number);
            turn->arrive_and_wait();
          }
        });
      } catch (const std::system_error &) { // the system gives no more
        turn->arrive_and_drop();
      }
    }
  }
  ~Workers() {
    ends = true;
    if (turn)
      turn->arrive_and_wait();
    for (std::thread &thread : threads)
      thread.join();
  }
  Workers(const Workers &) = delete;
  Workers &operator=(const Workers &) = delete;

  [[nodiscard]] int64_t count() const { return std::max<int64_t>(int64_t(threads.size()), 1); }
  void begin(std::function<void(int64_t)> its) {
    job = std::move(its);
    if (threads.empty())
      job(0);
    else
      turn->arrive_and_wait();
  }
  void finish() {
    if (!threads.empty())
      turn->arrive_and_wait();
  }

private:
  std::optional<std::barrier<>> turn; ///< all threads and who asks: a job begins, or has ended
  std::vector<std::thread> threads;
  std::function<void(int64_t)> job;
  bool ends = false;
};

/// First values of the weights of a device. What has the same elements of one weight, as masters have, gets them of one
/// draw. Any thread may draw any element: it depends on its place alone.
class Draw {
public:
  void add(const WeightSpec &weight, const TensorSpec &place);
  Status run(uint64_t seed, RankMemory &memory);

private:
  struct Place {
    const TensorSpec *tensor;
    int64_t from; ///< where it begins among the elements that are drawn
    [[nodiscard]] int64_t end() const { return from + tensor->elements(); }
  };
  struct Drawn {
    const WeightSpec *weight;
    std::vector<Place> places; ///< the first one has all elements of the others
    uint64_t key = 0;
  };
  /// Elements of a weight that are drawn together, and their bytes for each place that holds the weight.
  struct Block {
    int64_t first = 0, end = 0;
    std::vector<std::vector<char>> bytes;
  };

  static void values(const Drawn &its, TensorSpec::Stretch place, double *out);
  static void fill(const Drawn &its, int64_t from, int64_t end, Block &block);
  static Status upload(const Drawn &its, const Block &block, Device &device);
  static Status draw(const Drawn &its, Workers &workers, Device &device);

  std::map<std::string, std::vector<Drawn>> weights;
};

/// The begin of `part` in `all`, if `all` has all of its elements.
std::optional<int64_t> placeWithin(const TensorSpec &all, const TensorSpec &part) {
  const int64_t from = part.begin - all.begin;
  const bool isCutAlike =
      all.dims == part.dims && all.base == part.base && all.run == part.run && all.stride == part.stride;
  if (!isCutAlike || (all.run >= 0 && from != 0) || from < 0 || from + part.elements() > all.elements())
    return std::nullopt;
  return from;
}

void Draw::add(const WeightSpec &weight, const TensorSpec &place) {
  std::vector<Drawn> &its = weights[weight.name];
  for (Drawn &each : its) {
    if (std::optional<int64_t> from = placeWithin(*each.places[0].tensor, place)) {
      each.places.push_back({&place, *from});
      return;
    }
    if (std::optional<int64_t> from = placeWithin(place, *each.places[0].tensor)) {
      for (Place &other : each.places)
        other.from += *from;
      each.places.insert(each.places.begin(), {&place, 0});
      return;
    }
  }
  its.push_back({&weight, {{&place, 0}}});
}

/// The first values of elements with these places in the whole tensor.
void Draw::values(const Drawn &its, TensorSpec::Stretch place, double *out) {
  const uint64_t key = its.key;
  auto make = [&](auto value) {
    for (int64_t k = 0; k < place.count; ++k)
      out[k] = value(uint64_t(place.whole + k * place.step));
  };
  const double deviation = its.weight->deviation;
  if (place.whole < 0 || its.weight->init == WeightSpec::Init::Zero)
    make([](uint64_t) { return 0.0; });
  else if (its.weight->init == WeightSpec::Init::One)
    make([](uint64_t) { return 1.0; });
  else if (its.weight->init == WeightSpec::Init::Uniform)
    make([=](uint64_t element) { return deviation * uniformAt(key, element); });
  else
    make([=](uint64_t element) { return deviation * normalAt(key, element); });
}

void Draw::fill(const Drawn &its, int64_t from, int64_t end, Block &block) {
  std::array<double, 512> drawn;
  for (int64_t i = from, count = 0; i < end; i += count) {
    TensorSpec::Stretch next = its.places[0].tensor->stretch(i);
    next.count = count = std::min({next.count, end - i, int64_t(drawn.size())});
    values(its, next, drawn.data());
    for (size_t number = 0; number < its.places.size(); ++number) {
      const Place &place = its.places[number];
      const Type type = place.tensor->type;
      const int64_t begin = std::max(i, place.from), size = int64_t(elementBytes(type));
      char *out = block.bytes[number].data() + (begin - block.first) * size;
      for (int64_t k = begin; k < std::min(i + count, place.end()); ++k, out += size)
        storeElement(out, type, drawn[size_t(k - i)]);
    }
  }
}

Status Draw::upload(const Drawn &its, const Block &block, Device &device) {
  for (size_t number = 0; number < its.places.size(); ++number) {
    const Place &place = its.places[number];
    const int64_t begin = std::max(block.first, place.from), end = std::min(block.end, place.end());
    const int64_t size = int64_t(elementBytes(place.tensor->type));
    if (begin < end)
      PP_TRY(device.upload(place.tensor->offset + (begin - place.from) * size,
                           block.bytes[number].data() + (begin - block.first) * size, size_t((end - begin) * size)));
  }
  return {};
}

/// One block is drawn while the one before it goes to the device; so no whole tensor lies beside the arena.
Status Draw::draw(const Drawn &its, Workers &workers, Device &device) {
  const int64_t all = its.places[0].end(), most = std::clamp<int64_t>(all, 1, workers.count() * drawnAtOnce);
  std::array<Block, 2> blocks;
  for (Block &block : blocks)
    for (const Place &place : its.places)
      block.bytes.emplace_back(size_t(most) * elementBytes(place.tensor->type));
  for (int64_t begin = 0; begin < all + most; begin += most) {
    Block &next = blocks[size_t(begin / most % 2)], &before = blocks[size_t(begin / most + 1) % 2];
    next.first = std::min(begin, all);
    next.end = std::min(begin + most, all);
    workers.begin([&](int64_t part) {
      const int64_t from = next.first + part * drawnAtOnce;
      fill(its, from, std::min(from + drawnAtOnce, next.end), next);
    });
    Status sent = upload(its, before, device);
    workers.finish();
    PP_TRY(sent);
  }
  return {};
}

Status Draw::run(uint64_t seed, RankMemory &memory) {
  int64_t parts = 0;
  for (const auto &[name, all] : weights)
    for (const Drawn &each : all)
      parts += (each.places[0].end() + drawnAtOnce - 1) / drawnAtOnce;
  Workers workers(std::min(threadsToDraw(memory.transport), parts));
  for (auto &[name, all] : weights)
    for (Drawn &each : all) {
      each.key = keyOf(seed, name);
      PP_TRY(draw(each, workers, memory.device));
    }
  return {};
}

/// The weight that a master, or an old version, belongs to; it may begin the step on another rank.
Status findWeight(RankMemory &memory, const std::string &name, const WeightSpec *&out) {
  auto search = [&](const RankProgram &program) {
    auto found = std::find_if(program.weights.begin(), program.weights.end(),
                              [&](const WeightSpec &weight) { return weight.name == name; });
    out = found == program.weights.end() ? nullptr : &*found;
    return out != nullptr;
  };
  if (search(memory.program))
    return {};
  std::vector<const RankProgram *> programs;
  PP_TRY(memory.emitted.all(programs));
  for (const RankProgram *program : programs)
    if (search(*program))
      return {};
  return internal("no rank holds the weight `", name, "` whose state rank ", memory.program.rank, " has");
}

/// What published files call a module where transformers, which saves it under the first name, also reads the second.
constexpr std::pair<std::string_view, std::string_view> otherNames[] = {
    {".attention_layer_norm.", ".input_layernorm."}, // both: OLMo Hybrid
    {".feedforward_layer_norm.", ".post_attention_layernorm."},
    {".block_sparse_moe.", ".mlp."}, // the MLPs of Kimi Linear's first layers
};

/// The place of the tensor in the files, with or without the prefix that Hugging Face puts before names.
FilePlace placeOf(const std::string &name, const WeightFiles &files) {
  if (FilePlace place = files.find(name))
    return place;
  for (const std::string prefix : {"model.", "transformer."}) {
    if (FilePlace place = files.find(prefix + name))
      return place;
    if (name.starts_with(prefix))
      if (FilePlace place = files.find(name.substr(prefix.size())))
        return place;
  }
  for (auto [own, other] : otherNames)
    if (size_t at = name.find(own); at != std::string::npos)
      return placeOf(std::string(name).replace(at, own.size(), other), files);
  return {};
}

bool isTokenTable(const std::string &name) {
  for (const char *end : {"embed_tokens.weight", "wte.weight", "embed_in.weight", "word_embeddings.weight"})
    if (name == end || name.ends_with(std::string(".") + end))
      return true;
  return false;
}

bool isOutputLayer(const std::string &name) {
  return name == "lm_head.weight" || name == "embed_out.weight" || name == "language_model.lm_head.weight";
}

/// Constants that published models store beside their weights.
bool isBuffer(const std::string &name) {
  for (const char *end :
       {".rotary_emb.inv_freq", ".attn.bias", ".attn.masked_bias", ".attention.bias", ".attention.masked_bias"})
    if (name.ends_with(end))
      return true;
  return false;
}

bool isNamedBy(const std::string &pattern, const std::string &name) {
  return pattern == name || fnmatch(pattern.c_str(), name.c_str(), 0) == 0;
}

std::string listOf(const std::vector<std::string> &names) {
  std::string list;
  for (size_t i = 0; i < names.size() && i < 4; ++i)
    list += text(i ? ", `" : "`", names[i], "`");
  return names.size() > 4 ? text(list, " and ", names.size() - 4, " more") : list;
}

Status missing(const std::vector<std::string> &names, const WeightFiles &files) {
  std::vector<std::string> had;
  for (const auto &[name, place] : files.tensors())
    had.push_back(name);
  auto nearest = nearestName(names[0], had);
  return invalid("`", files.path(), "` lacks ", listOf(names), " of this model; it has ", had.size(), " tensors",
                 nearest ? ", the nearest name is `" + *nearest + "`" : std::string());
}

bool haveSameValues(FilePlace a, FilePlace b) {
  if (a.tensor->shape != b.tensor->shape || a.tensor->type != b.tensor->type)
    return false;
  return memcmp(a.file->data(*a.tensor), b.file->data(*b.tensor), size_t(a.tensor->end - a.tensor->begin)) == 0;
}

/// An output layer in the files of a model that has none of its own: its output layer is the token table.
Status matchOutput(const std::string &output, FilePlace place, bool compare, WeightMatch &match) {
  for (const auto &[name, table] : match.weights) {
    if (!isTokenTable(name) || table.tensor == place.tensor)
      continue;
    if (compare && !haveSameValues(table, place))
      return invalid("`", place.file->path(), "`: `", output, "` differs from `", table.tensor->name,
                     "`, and this model's output layer is its token table (`tie_word_embeddings`)");
    match.copies[output] = name;
  }
  return {};
}

} // namespace

void storeElement(char *at, Type type, double value) {
  auto put = [at](auto element) { memcpy(at, &element, sizeof element); };
  if (type == Type::F64)
    put(value);
  else if (type == Type::F32)
    put(float(value));
  else
    put(type == Type::F16 ? roundToF16(float(value)) : roundToBf16(float(value)));
}

std::vector<int64_t> fileShape(const TensorSpec &tensor) {
  std::vector<int64_t> shape = tensor.shape;
  if (tensor.stored == Stored::Transposed)
    std::swap(shape[shape.size() - 2], shape.back());
  if (tensor.stored == Stored::Row)
    shape.insert(shape.begin(), 1);
  if (tensor.stored == Stored::Column)
    shape = {1, 1, shape[0], 1};
  return shape;
}

int64_t placeInFile(const TensorSpec::Turned &turned, int64_t element) {
  const auto [count, rows, columns] = turned;
  const int64_t in = element % (rows * columns);
  return element - in + in % columns * rows + in / columns;
}

Status convert(const std::string &name, SafeTensors::Reader read, const char *from, int64_t count, Type type, char *out,
               int64_t &vanished) {
  const double tooLarge = type == Type::F16    ? 65520 // half way from the largest number to the next
                          : type == Type::Bf16 ? 0x1.ffp127
                                               : 0x1.ffffffp127; // of f32
  size_t size = elementBytes(type);
  for (int64_t i = 0; i < count; ++i, out += size) {
    double value = read(from, i), magnitude = std::abs(elementBytes(type) == 2 ? double(float(value)) : value);
    if (type != Type::F64 && magnitude >= tooLarge && std::isfinite(value))
      return invalid("`", name, "` has the value ", value, ", which is too large for ", fileType(type));
    vanished += type == Type::F16 && value != 0 && magnitude <= 0x1p-25;
    storeElement(out, type, value);
  }
  return {};
}

namespace {

/// Infinities and NaN have all bits of the exponent.
template <typename Bits> bool hasFullExponent(const char *data, int64_t count, Bits exponent) {
  Bits found = 0;
  for (int64_t i = 0; i < count; ++i) {
    Bits bits;
    memcpy(&bits, data + i * int64_t(sizeof bits), sizeof bits);
    found |= Bits((bits & exponent) == exponent);
  }
  return found != 0;
}

Status checkFinite(const std::string &name, Type type, const char *data, int64_t count) {
  const bool isWrong = type == Type::F64 ? hasFullExponent<uint64_t>(data, count, 0x7ffULL << 52)
                       : type == Type::F32
                           ? hasFullExponent<uint32_t>(data, count, 0x7f800000)
                           : hasFullExponent<uint16_t>(data, count, type == Type::F16 ? 0x7c00 : 0x7f80);
  const auto read = SafeTensors::readerOf(fileType(type));
  for (int64_t i = 0; isWrong && i < count; ++i)
    if (double value = read(data, i); !std::isfinite(value))
      return invalid("`", name, "` holds ",
                     std::isnan(value) ? "NaN"
                     : value > 0       ? "Inf"
                                       : "-Inf",
                     "; weights must be finite");
  return {};
}

} // namespace

Status fromFile(const TensorSpec &tensor, FilePlace place, bool isFinite, Device &device, int64_t &vanished) {
  const FileTensor &entry = *place.tensor;
  const std::string name = text(place.file->path(), "`: `", entry.name);
  std::optional<Type> type = typeOfFile(entry.type);
  if (!type)
    return invalid("`", name, "` has type ", entry.type, ", expected F32, BF16, F16 or F64");
  std::vector<int64_t> expected = fileShape(tensor);
  if (entry.shape != expected)
    return invalid("`", name, "` has shape ", shapeText(entry.shape), ", this model expects ", shapeText(expected));
  // The elements in our order, then in our type; bits stay as they are where the types are the same.
  const char *data = place.file->data(entry);
  const int64_t size = int64_t(elementBytes(*type));
  const TensorSpec::Turned turned = tensor.turned();
  const std::vector<TensorSpec::Range> ranges = tensor.ranges();
  auto range = ranges.begin();
  std::vector<char> read;
  return uploadBlocks(tensor, device, [&](int64_t first, int64_t count, char *out) {
    const bool converts = *type != tensor.type;
    if (converts)
      read.resize(size_t(count * size));
    char *ours = converts ? read.data() : out;
    memset(ours, 0, size_t(count * size)); // what no range has is padding
    for (; range != ranges.end() && range->here < first + count; ++range) {
      const int64_t begin = std::max(range->here, first), end = std::min(range->here + range->count, first + count);
      const int64_t whole = range->whole + begin - range->here;
      char *here = ours + (begin - first) * size;
      if (turned.rows == 1)
        memcpy(here, data + whole * size, size_t((end - begin) * size));
      else
        for (int64_t element = whole; element < whole + end - begin; ++element, here += size)
          memcpy(here, data + placeInFile(turned, element) * size, size_t(size));
      if (range->here + range->count > first + count)
        break; // the next block goes on with it
    }
    if (isFinite)
      PP_TRY(checkFinite(name, *type, ours, count));
    return converts ? convert(name, SafeTensors::readerOf(entry.type), ours, count, tensor.type, out, vanished)
                    : Status();
  });
}

Status matchWeights(RankMemory &memory, const WeightFiles &files, const std::vector<std::string> *allowed,
                    WeightMatch &match) {
  std::set<std::string> names, lacking, unused;
  std::vector<const RankProgram *> programs;
  PP_TRY(memory.emitted.all(programs));
  for (const RankProgram *program : programs)
    for (const WeightSpec &weight : program->weights)
      if (weight.frozen || !memory.emitted.program().adapts())
        names.insert(weight.name);
  bool hasOutput = std::any_of(names.begin(), names.end(), isOutputLayer);
  for (const auto &[name, place] : files.tensors())
    unused.insert(name);
  for (const std::string &name : names) {
    FilePlace place = placeOf(name, files);
    if (!place && !hasOutput && isTokenTable(name)) // the file may have a tied table under its other name
      for (const char *output : {"lm_head.weight", "embed_out.weight"})
        place = place ? place : files.find(output);
    if (!place)
      lacking.insert(name);
    else if (unused.erase(place.tensor->name))
      match.weights[name] = place;
    else
      return invalid("`", place.file->path(), "`: `", place.tensor->name, "` would be two weights of this model, `",
                     name, "` is one of them");
  }
  if (!lacking.empty())
    return missing({lacking.begin(), lacking.end()}, files);
  std::vector<std::string> wrong;
  std::vector<std::string> patterns = keptTensors(memory.emitted.program().config);
  if (allowed)
    patterns.insert(patterns.end(), allowed->begin(), allowed->end());
  for (const std::string &name : unused) {
    if (!hasOutput && isOutputLayer(name))
      PP_TRY(matchOutput(name, files.find(name), memory.program.device == 0, match));
    bool isAllowed = !allowed || std::any_of(patterns.begin(), patterns.end(),
                                             [&](const std::string &pattern) { return isNamedBy(pattern, name); });
    if (!isAllowed && !isBuffer(name) && !match.copies.contains(name))
      wrong.push_back(name);
  }
  for (const std::string &pattern : allowed ? *allowed : std::vector<std::string>())
    if (std::none_of(unused.begin(), unused.end(), [&](const std::string &name) { return isNamedBy(pattern, name); }))
      return invalid("`--allow-unused ", pattern, "`: `", files.path(),
                     "` has no such tensor that this model does not use");
  if (!wrong.empty())
    return invalid("`", files.find(wrong[0]).file->path(), "` has ", listOf(wrong), ", which this model does not use; ",
                   "`--allow-unused NAME,..` says that nothing is wrong; in a NAME `*` is any text");
  return {};
}

Status loadWeights(RankMemory &memory, const WeightMatch &match, uint64_t seed, int64_t &vanished) {
  Draw draw;
  auto load = [&](const WeightSpec &weight, const TensorSpec &place) {
    auto found = match.weights.find(weight.name);
    if (found == match.weights.end()) {
      draw.add(weight, place);
      return Status();
    }
    TensorSpec its = place;
    its.stored = weight.stored;
    return fromFile(its, found->second, /*isFinite=*/true, memory.device, vanished);
  };
  for (const WeightSpec &weight : memory.program.weights)
    PP_TRY(load(weight, weight));
  for (const StateSpec &state : memory.program.state) {
    if (!state.isWeight())
      continue;
    const WeightSpec *weight = nullptr;
    PP_TRY(findWeight(memory, state.name, weight));
    PP_TRY(load(*weight, state));
  }
  return draw.run(seed, memory);
}

} // namespace pp
