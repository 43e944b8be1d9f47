// Reads the JSON texts of an emitted program into Program.h's structs and refuses whatever would not fit the arena.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "runtime/Program.h"
#include "runtime/Rank.h"
#include <algorithm>
#include <nlohmann/json.hpp>
#include <stdexcept>

using nlohmann::json;

namespace pp {
namespace {

/// Thrown inside the loader only; becomes PP_INTERNAL at its edge.
struct Unfit : std::runtime_error {
  using std::runtime_error::runtime_error;
};

Type elementType(const std::string &name) {
  if (name == "f32")
    return Type::F32;
  if (name == "bf16")
    return Type::Bf16;
  if (name == "f16")
    return Type::F16;
  if (name == "f64")
    return Type::F64;
  throw Unfit(text("element type `", name, "` is not one of f32, bf16, f16, f64"));
}

/// The member `key` as a list, empty if absent.
const json &listOf(const json &object, const char *key) {
  static const json empty = json::array();
  auto found = object.find(key);
  return found == object.end() || found->is_null() ? empty : *found;
}

constexpr const char *messageKinds[] = {"send",   "receive",    "all_reduce",     "broadcast",
                                        "reduce", "all_gather", "reduce_scatter", "all_to_all"}; // as MessageSpec::Kind

Axis axisOf(const std::string &name) {
  for (Axis axis : {Axis::Tensor, Axis::Context, Axis::Data, Axis::Pipeline, Axis::Expert, Axis::Copies})
    if (name == nameOf(axis))
      return axis;
  throw Unfit(text("the axis `", name, "` is not one of tensor, context, data, pipeline, expert, copies"));
}

/// A device of a mesh, for which numbers are read.
struct Place {
  const Mesh &mesh;
  int32_t device;
};

/// A number, or that of the device in a table by its coordinates, the last axis running fastest.
int64_t numberAt(const json &value, const Place &place) {
  if (!value.is_object())
    return value.get<int64_t>();
  size_t index = 0, count = 1;
  for (const json &name : value.at("by")) {
    const Axis axis = axisOf(name.get<std::string>());
    index = index * size_t(place.mesh.size(axis)) + size_t(place.mesh.coordinate(place.device, axis));
    count *= size_t(place.mesh.size(axis));
  }
  const json &of = value.at("of");
  if (of.size() != count)
    throw Unfit(text("a table has ", of.size(), " numbers for ", count, " devices"));
  return of[index].get<int64_t>();
}

/// Reads how the tensor is cut over the devices of the rank.
void readView(const json &entry, const Place &place, TensorSpec &tensor) {
  auto dims = entry.find("dims");
  if (dims == entry.end())
    return;
  int64_t last = tensor.base = numberAt(entry.at("base"), place);
  for (const json &dim : *dims) {
    TensorSpec::Dim its = {dim.at(0).get<int64_t>(), dim.at(1).get<int64_t>(), numberAt(dim.at(2), place)};
    if (its.size < 1 || its.stride < 1 || its.valid < 0 || its.valid > its.size)
      throw Unfit(text("`", tensor.name, "` has ", its.valid, " of ", its.size, " indices, each ", its.stride,
                       " elements behind the one before it"));
    last = its.valid == 0 || last < 0 ? -1 : last + (its.valid - 1) * its.stride;
    tensor.dims.push_back(its);
  }
  tensor.copies = entry.value("copies", int64_t(1));
  if (tensor.base < 0 || last >= tensor.wholeElements() || tensor.copies < 1)
    throw Unfit(text("`", tensor.name, "` has ", tensor.wholeElements(), " elements, and what is here of it ends at ",
                     last + 1));
}

Stored storedAs(const std::string &name, const TensorSpec &tensor) {
  const size_t count = tensor.shape.size();
  if (name == "plain")
    return Stored::Plain;
  if (name == "transposed" && (count == 2 || count == 3))
    return Stored::Transposed;
  if (name == "row" && count == 1)
    return Stored::Row;
  if (name == "column" && count == 1)
    return Stored::Column;
  if (name == "alternate" && count > 0 && tensor.shape.back() % 2 == 0)
    return Stored::Alternate;
  throw Unfit(text("`", tensor.name, "` with ", tensor.shape.size(), " dimensions is stored as `", name, "`"));
}

void readTensor(const json &entry, const Place &place, TensorSpec &tensor) {
  tensor.name = entry.at("name").get<std::string>();
  tensor.shape = entry.at("shape").get<std::vector<int64_t>>();
  tensor.stored = storedAs(entry.value("stored", std::string("plain")), tensor);
  tensor.type = elementType(entry.value("type", std::string("f32")));
  tensor.offset = numberAt(entry.at("offset"), place);
  for (int64_t extent : tensor.shape)
    if (extent <= 0)
      throw Unfit(text("`", tensor.name, "` has extent ", extent));
  tensor.begin = entry.contains("begin") ? numberAt(entry.at("begin"), place) : 0;
  tensor.count = entry.contains("count") ? numberAt(entry.at("count"), place) : -1;
  tensor.ofReplica = entry.contains("count") && entry.at("count").is_object();
  tensor.ofExpert = tensor.ofReplica && entry.at("count").at("by") == json::array({nameOf(Axis::Expert)});
  tensor.run = entry.value("run", int64_t(-1));
  tensor.stride = entry.value("stride", int64_t(-1));
  if (tensor.run >= 0 && (tensor.run == 0 || tensor.run > tensor.stride))
    throw Unfit(text("`", tensor.name, "` has ", tensor.run, " elements of each ", tensor.stride));
  readView(entry, place, tensor);
  if (!tensor.dims.empty()) {
    int64_t here = 1;
    for (TensorSpec::Dim dim : tensor.dims)
      here *= dim.size;
    if (tensor.begin < 0 || tensor.run >= 0 || tensor.begin + tensor.elements() > here)
      throw Unfit(text("`", tensor.name, "` has ", here, " elements here, and its shard ends at ",
                       tensor.begin + tensor.elements()));
  } else if (tensor.count > 0 && (tensor.begin < 0 || tensor.place(tensor.count - 1) >= tensor.wholeElements()))
    throw Unfit(text("`", tensor.name, "` has ", tensor.wholeElements(), " elements, and its shard ends at ",
                     tensor.place(tensor.count - 1) + 1));
}

WeightSpec readWeight(const json &entry, const Place &place) {
  WeightSpec weight;
  readTensor(entry, place, weight);
  if (auto init = entry.find("init"); init != entry.end()) {
    auto kind = init->value("kind", std::string("normal"));
    if (kind != "normal" && kind != "zero" && kind != "one" && kind != "uniform")
      throw Unfit(text("`", weight.name, "` starts as `", kind, "`, not as one of normal, zero, one, uniform"));
    weight.init = kind == "normal"    ? WeightSpec::Init::Normal
                  : kind == "zero"    ? WeightSpec::Init::Zero
                  : kind == "uniform" ? WeightSpec::Init::Uniform
                                      : WeightSpec::Init::One;
    weight.deviation = init->value("deviation", 0.02);
  }
  weight.save = entry.value("save", true);
  weight.tied = entry.value("tied", false);
  weight.frozen = entry.value("frozen", false);
  return weight;
}

StateSpec readState(const json &entry, const Place &place) {
  StateSpec state;
  readTensor(entry, place, state);
  state.kind = entry.at("kind").get<std::string>();
  if (state.isWeight() && state.kind != "master" && !state.kind.starts_with("previous"))
    throw Unfit(text("state `", state.name, "` has kind `", state.kind, "`, not one of m, v, u, master, previous"));
  return state;
}

/// The device of `rank` that has the same coordinates on the mesh as this device.
int32_t deviceOf(const Program &program, const RankProgram &own, const std::string &label, int32_t rank) {
  if (rank < 0 || rank >= program.ranks)
    throw Unfit(text("message `", label, "` names rank ", rank, " of ", program.ranks));
  return program.mesh.moved(own.device, Axis::Pipeline, rank);
}

void readGroup(const json &entry, const Program &program, const RankProgram &own, MessageSpec &message) {
  std::vector<Axis> axes;
  for (const json &name : listOf(entry, "axes"))
    axes.push_back(axisOf(name.get<std::string>()));
  for (int32_t rank : entry.at("group").get<std::vector<int32_t>>())
    for (int32_t member : program.mesh.line(deviceOf(program, own, message.label, rank), axes))
      message.group.push_back(member);
  std::sort(message.group.begin(), message.group.end());
  if (auto neighbours = entry.value("neighbours", int64_t(0)); neighbours > 0) {
    const auto block = int64_t(message.memberOf(own.device)) / neighbours * neighbours;
    if (int64_t(message.group.size()) % neighbours != 0)
      throw Unfit(text("message `", message.label, "` is for ", neighbours, " neighbours of ", message.group.size(),
                       " devices"));
    message.group = {message.group.begin() + block, message.group.begin() + block + neighbours};
  }
  message.inside = entry.value("inside", false);
  message.oneText = !axes.empty() && entry.at("group").size() == 1;
  message.inPlace = message.oneText && message.isSharded() && !message.inside;
  message.with = text(message.group.size(), program.mesh.devicesOfRank() > 1 ? " devices" : " ranks");
}

/// Two runs of every sequence for each member, and equal pieces of the columns; or equal sections of all elements.
void readAllToAll(const json &entry, MessageSpec &message) {
  const auto members = static_cast<int64_t>(message.group.size());
  if (entry.at("to").get<std::string>() == "sections") {
    if (!message.inside || message.count % members != 0)
      throw Unfit(text("all_to_all `", message.label, "` of ", message.count, " elements has no sections for ", members,
                       " devices"));
    return;
  }
  message.sequences = entry.at("sequences").get<int64_t>();
  message.length = entry.at("length").get<int64_t>();
  message.toColumns = entry.at("to").get<std::string>() == "columns";
  const bool isCut = message.sequences > 0 && message.length > 0 && message.length % (2 * members) == 0;
  if (!message.inside || !isCut || message.count % (message.sequences * message.length) != 0)
    throw Unfit(text("all_to_all `", message.label, "` of ", message.count, " elements is not cut for ", members,
                     " devices: ", message.sequences, " sequences of ", message.length));
}

void readCollective(const json &entry, const Program &program, const RankProgram &own, MessageSpec &message) {
  const std::string_view kind = kindName(message.kind);
  auto isMember = [&](int32_t member) {
    return std::find(message.group.begin(), message.group.end(), member) != message.group.end();
  };
  readGroup(entry, program, own, message);
  message.count = entry.at("count").get<int64_t>();
  message.type = elementType(entry.value("type", std::string("f64")));
  message.bytes = message.count * static_cast<int64_t>(elementBytes(message.type));
  if (!isMember(own.device))
    throw Unfit(text(kind, " `", message.label, "` does not hold its own rank ", own.rank));
  if (message.isSharded()) {
    message.cuts = entry.at("cuts").get<std::vector<int64_t>>();
    message.zigzag = entry.value("zigzag", false);
    if (message.cuts.size() < 2 || message.cuts.size() % message.group.size() != 1 % message.group.size() ||
        message.cuts.front() != 0 || !std::is_sorted(message.cuts.begin(), message.cuts.end()) ||
        message.cuts.back() != message.bytes)
      throw Unfit(text(kind, " `", message.label, "` of ", message.bytes, " bytes is not cut for ",
                       message.group.size(), " ranks"));
  }
  if (message.kind == MessageSpec::Kind::AllToAll)
    return readAllToAll(entry, message);
  if (message.isSharded() || message.kind == MessageSpec::Kind::AllReduce)
    return;
  message.root = deviceOf(program, own, message.label, entry.at("root").get<int32_t>());
  message.with += text(", root ", program.mesh.name(message.root));
  if (!isMember(message.root))
    throw Unfit(text(kind, " `", message.label, "` does not hold its root ", message.root));
}

MessageSpec readMessage(const json &entry, const Program &program, const RankProgram &own) {
  MessageSpec message;
  auto kind = entry.at("kind").get<std::string>();
  message.channel = entry.value("channel", 0);
  message.label = entry.value("label", std::string());
  message.line = entry.value("line", std::string());
  auto known = std::find(std::begin(messageKinds), std::end(messageKinds), kind);
  if (known == std::end(messageKinds))
    throw Unfit(text("message kind `", kind,
                     "` is not one of send, receive, all_reduce, broadcast, reduce, all_gather, "
                     "reduce_scatter, all_to_all"));
  message.kind = MessageSpec::Kind(known - std::begin(messageKinds));
  if (message.isCollective()) {
    readCollective(entry, program, own, message);
  } else {
    const auto peer = entry.at("peer").get<int32_t>();
    message.peer = deviceOf(program, own, message.label, peer);
    message.with = program.mesh.name(message.peer);
    message.bytes = entry.at("bytes").get<int64_t>();
    message.group = {message.peer};
    message.offset = entry.value("offset", int64_t(-1));
    message.host = entry.value("host", false);
    if (message.host != (peer == own.rank))
      throw Unfit(text("message `", message.label, "` goes from rank ", own.rank, " to ",
                       peer == own.rank ? "itself, and not to its host memory" : "another's host memory"));
  }
  if (message.bytes < 0)
    throw Unfit(text("message `", message.label, "` has ", message.bytes, " bytes"));
  return message;
}

/// Every offset the trainer will touch lies in the arena.
void checkInside(const RankProgram &rank, const std::string &name, int64_t offset, int64_t bytes) {
  if (offset < 0 || offset + bytes > rank.arenaBytes)
    throw Unfit(text("`", name, "` lies at ", offset, " to ", offset + bytes, " but the arena has ", rank.arenaBytes,
                     " bytes"));
}

/// By InputSpec::Kind.
constexpr const char *inputKinds[] = {"tokens", "targets", "source", "starts", "positions", "rows", "column"};

void checkInside(const RankProgram &rank, const std::vector<InputSpec> &inputs, const std::vector<LossSpec> &losses,
                 const Program &program) {
  for (const InputSpec &input : inputs) {
    if (input.first < 0 || input.length < 1 || input.first + input.length > program.sequence)
      throw Unfit(text("input holds tokens ", input.first, " to ", input.first + input.length, " of a sequence of ",
                       program.sequence));
    if (input.ahead < 0 || input.ahead >= program.sequence)
      throw Unfit(text("input holds tokens ", input.ahead, " places on in a sequence of ", program.sequence));
    int64_t bytes = 4;
    if (input.kind == InputSpec::Kind::Column) {
      if (input.column >= program.columns.size())
        throw Unfit(text("input of column ", input.column, " of ", program.columns.size()));
      const ColumnSpec &column = program.columns[input.column];
      bytes = column.values() * program.columnBytes(column);
    }
    checkInside(rank, inputKinds[static_cast<size_t>(input.kind)], input.offset, program.batch * input.length * bytes);
    if (input.microbatch < 0 || input.microbatch >= program.microbatches)
      throw Unfit(text("input of microbatch ", input.microbatch, " of ", program.microbatches));
  }
  for (const LossSpec &loss : losses) {
    checkInside(rank, "loss", loss.offset, static_cast<int64_t>(elementBytes(loss.type)));
    for (int64_t z : loss.z)
      checkInside(rank, "z-loss", z, static_cast<int64_t>(elementBytes(loss.type)));
    if (loss.further >= 0)
      checkInside(rank, "further loss", loss.further, static_cast<int64_t>(elementBytes(loss.type)));
    for (int64_t offset : loss.reports)
      checkInside(rank, "report", offset, static_cast<int64_t>(elementBytes(loss.type)));
    if (loss.microbatch < 0 || loss.microbatch >= program.microbatches)
      throw Unfit(text("loss of microbatch ", loss.microbatch, " of ", program.microbatches));
  }
}

void checkInside(const RankProgram &rank, const Program &program) {
  for (const WeightSpec &weight : rank.weights)
    checkInside(rank, weight.name, weight.offset, weight.bytes());
  for (const StateSpec &state : rank.state)
    checkInside(rank, state.name + "." + state.kind, state.offset, state.bytes());
  for (const TensorSpec &grad : rank.grads)
    checkInside(rank, grad.name, grad.offset, grad.bytes());
  for (const MessageSpec &message : rank.messages)
    if (message.offset != -1)
      checkInside(rank, message.label, message.offset, message.bytes);
  checkInside(rank, rank.inputs, rank.losses, program);
  if (rank.forward)
    checkInside(rank, rank.forward->inputs, rank.forward->losses, program);
  if (rank.normOffset >= 0)
    checkInside(rank, "norm", rank.normOffset, 8);
  if (rank.forward &&
      (rank.forward->firstUnit > rank.units.size() || rank.forward->firstMessage > rank.messages.size()))
    throw Unfit(text("the forward step begins with unit ", rank.forward->firstUnit, " of ", rank.units.size(),
                     " and message ", rank.forward->firstMessage, " of ", rank.messages.size()));
}

void readOps(const json &root, const Place &place, RankProgram &rank) {
  for (const json &entry : listOf(root, "ops")) {
    std::vector<int64_t> dims;
    for (const json &dim : listOf(entry, "dims"))
      dims.push_back(numberAt(dim, place));
    std::vector<double> params;
    for (const json &param : listOf(entry, "params"))
      params.push_back(param.is_object() ? double(numberAt(param, place)) : param.get<double>());
    std::vector<int64_t> moved;
    for (const json &bytes : listOf(entry, "moved"))
      moved.push_back(numberAt(bytes, place));
    rank.ops.push_back({entry.at("kernel").get<std::string>(), elementType(entry.value("type", std::string("f32"))),
                        std::move(dims), std::move(params), entry.value("flags", std::vector<std::string>()),
                        std::move(moved)});
  }
  for (const json &entry : listOf(root, "units"))
    rank.units.push_back({entry.at("name").get<std::string>(), entry.value("phase", std::string()),
                          entry.value("task", std::string()), entry.value("microbatch", int64_t(-1)),
                          entry.value("flops", 0.0), entry.value("line", std::string())});
}

OptimizerSpec::Rate rateOf(const std::string &name) {
  using Rate = OptimizerSpec::Rate;
  for (Rate rate : {Rate::Cosine, Rate::Linear, Rate::Constant, Rate::Wsd})
    if (name == nameOf(rate))
      return rate;
  throw Unfit(text("the rate `", name, "` is not one of cosine, linear, constant, wsd"));
}

void readOptimizer(const json &entry, OptimizerSpec &optimizer) {
  optimizer.kind = entry.value("kind", optimizer.kind);
  optimizer.momentum = entry.value("momentum", optimizer.momentum);
  optimizer.nesterov = entry.value("nesterov", optimizer.nesterov);
  optimizer.barrier = entry.value("barrier", optimizer.barrier);
  optimizer.adjust = entry.value("adjust", optimizer.adjust);
  optimizer.restLr = entry.value("rest_lr", optimizer.restLr);
  optimizer.restDecay = entry.value("rest_weight_decay", optimizer.restDecay);
  optimizer.noDecay = entry.value("no_decay", optimizer.noDecay);
  optimizer.lrScale = entry.value("lr_scale", optimizer.lrScale);
  optimizer.decayScale = entry.value("decay_scale", optimizer.decayScale);
  optimizer.lr = entry.value("lr", optimizer.lr);
  optimizer.beta1 = entry.value("beta1", optimizer.beta1);
  optimizer.beta2 = entry.value("beta2", optimizer.beta2);
  optimizer.epsilon = entry.value("epsilon", optimizer.epsilon);
  optimizer.weightDecay = entry.value("weight_decay", optimizer.weightDecay);
  optimizer.clip = entry.value("clip", optimizer.clip);
  optimizer.warmup = entry.value("warmup", optimizer.warmup);
  optimizer.decaySteps = entry.value("decay_steps", optimizer.decaySteps);
  optimizer.minLr = entry.value("min_lr", optimizer.minLr);
  optimizer.decay = entry.value("decay", optimizer.decay);
  optimizer.lag = entry.value("lag", optimizer.lag);
  optimizer.rate = rateOf(entry.value("schedule", "cosine"));
  if (optimizer.rate == OptimizerSpec::Rate::Wsd && optimizer.decay < 1)
    throw Unfit(text("a rate that is `wsd` falls in ", optimizer.decay, " steps"));
  optimizer.lossScale = entry.value("loss_scale", optimizer.lossScale);
  optimizer.scaleWindow = entry.value("scale_window", optimizer.scaleWindow);
  if (!(optimizer.lossScale > 0) || optimizer.scaleWindow < 0)
    throw Unfit(text("a loss scale of ", optimizer.lossScale, " that doubles after ", optimizer.scaleWindow, " steps"));
}

/// Absent: each rank is one device.
void readMesh(const json &root, Program &program) {
  program.mesh = Mesh(program.ranks);
  auto mesh = root.find("mesh");
  if (mesh == root.end())
    return;
  std::array<Axis, axisCount> order = {};
  std::array<int32_t, axisCount> sizes = {};
  const json &entries = mesh->at("order");
  std::vector<Axis> seen;
  for (size_t i = 0; i < entries.size() && i < axisCount; ++i) {
    order[i] = axisOf(entries[i].at(0).get<std::string>());
    sizes[i] = entries[i].at(1).get<int32_t>();
    if (sizes[i] < 1 || std::find(seen.begin(), seen.end(), order[i]) != seen.end())
      throw Unfit(text("the axis `", nameOf(order[i]), "` of the mesh is there twice, or has ", sizes[i], " devices"));
    seen.push_back(order[i]);
  }
  if (entries.size() != axisCount)
    throw Unfit(text("the mesh has ", entries.size(), " axes, not ", axisCount));
  program.mesh = Mesh(order, sizes);
  const int32_t experts = mesh->value("expert", 1), context = program.mesh.size(Axis::Context),
                both = context * program.mesh.size(Axis::Data);
  if (experts < 1 || both % experts != 0 || (context % experts != 0 && experts % context != 0))
    throw Unfit(text("experts are cut over ", experts, " devices, of which there is no group in ", context,
                     " along context times ", both / context, " along data"));
  program.mesh = Mesh(order, sizes, experts);
  if (program.mesh.size(Axis::Pipeline) != program.ranks)
    throw Unfit(text("the mesh has ", program.mesh.size(Axis::Pipeline), " ranks, the program ", program.ranks));
}

void readProgramRoot(const json &root, Program &program) {
  program.name = root.value("name", std::string());
  program.model = root.value("model", std::string());
  program.schedule = root.value("schedule", std::string());
  program.function = root.value("function", std::string());
  program.folder = root.value("folder", std::string());
  program.config = root.value("config", std::string());
  program.target = root.value("target", std::string("cpu"));
  if (auto made = root.find("fingerprint"); made != root.end())
    program.fingerprint = made->dump();
  program.precision = root.value("precision", std::string("f32"));
  (void)elementType(program.precision);
  program.ranks = root.at("ranks").get<int32_t>();
  readMesh(root, program);
  program.microbatches = root.at("microbatches").get<int64_t>();
  program.updates = root.value("updates", int64_t(1));
  if (program.updates < 1 || program.microbatches % program.updates != 0)
    throw Unfit(text(program.updates, " updates do not divide ", program.microbatches, " microbatches"));
  program.batch = root.at("batch").get<int64_t>();
  program.sequence = root.at("sequence").get<int64_t>();
  program.vocab = root.at("vocab").get<int64_t>();
  program.parameters = root.value("parameters", int64_t(0));
  program.flopsPerStep = root.value("flops_per_step", 0.0);
  program.tokensPerStep =
      root.value("tokens_per_step", static_cast<double>(program.sequencesPerStep() * program.sequence));
  program.readsSource = root.value("reads_source", false);
  program.documents = root.value("documents", false);
  program.pad = root.value("pad", 0);
  if (program.pad < 0 || program.pad >= program.vocab)
    throw Unfit(text("rows are filled up with token ", program.pad, " of a vocabulary of ", program.vocab));
  program.group = root.value("group", int64_t(1));
  for (const json &entry : root.value("columns", json::array())) {
    ColumnSpec &column = program.columns.emplace_back();
    column = {entry.at("name").get<std::string>(),
              entry.value("width", int64_t(0)),
              entry.value("int", false),
              {},
              entry.value("made", false)};
    if (entry.contains("default"))
      column.absent = entry.at("default").get<double>();
    if (column.width < 0)
      throw Unfit(text("column `", column.name, "` has ", column.width, " values for each token"));
  }
  program.divisor = root.value("divisor", int64_t(0));
  if (program.divisor < 0 || program.divisor >= divisorCount)
    throw Unfit(text("losses are divided by number ", program.divisor, " of ", divisorCount));
  program.reports = root.value("reports", std::vector<std::string>());
  program.reportDivisors = root.value("report_divisors", std::vector<int64_t>());
  if (program.reportDivisors.size() != program.reports.size())
    throw Unfit(text(program.reports.size(), " reports have ", program.reportDivisors.size(), " divisors"));
  for (int64_t divisor : program.reportDivisors)
    if (divisor < -1 || divisor >= divisorCount)
      throw Unfit(text("a report is divided by number ", divisor, " of ", divisorCount));
  if (auto optimizer = root.find("optimizer"); optimizer != root.end())
    readOptimizer(*optimizer, program.optimizer);
  if (auto lora = root.find("lora"); lora != root.end())
    program.lora = {lora->at("rank").get<int64_t>(), lora->at("alpha").get<double>(), lora->at("factor").get<double>(),
                    lora->at("rslora").get<bool>(), lora->value("dropout", 0.0)};
  for (int64_t size :
       {int64_t(program.ranks), program.microbatches, program.batch, program.sequence, program.vocab, program.group})
    if (size < 1)
      throw Unfit("ranks, microbatches, batch, sequence, vocab and group must be at least 1");
}

/// Reads the inputs that the trainer writes before a step, and the results that it reads after it.
void readEnds(const json &root, const Program &program, std::vector<InputSpec> &inputs, std::vector<LossSpec> &losses) {
  const int64_t own = program.sequence / program.mesh.size(Axis::Context);
  for (const json &entry : listOf(root, "inputs")) {
    auto kind = entry.at("kind").get<std::string>();
    auto known = std::find(std::begin(inputKinds), std::end(inputKinds), kind);
    if (known == std::end(inputKinds))
      throw Unfit(text("input kind `", kind, "` is not one of tokens, targets, source"));
    inputs.push_back({static_cast<InputSpec::Kind>(known - std::begin(inputKinds)),
                      entry.value("microbatch", int64_t(0)), entry.at("offset").get<int64_t>(),
                      entry.value("first", int64_t(0)), entry.value("length", own), entry.value("ahead", int64_t(0)),
                      entry.value("column", size_t(0))});
  }
  for (const json &entry : listOf(root, "losses"))
    losses.push_back({entry.value("microbatch", int64_t(0)), entry.at("offset").get<int64_t>(),
                      elementType(entry.value("type", std::string("f32"))), entry.value("further", int64_t(-1)),
                      entry.value("reports", std::vector<int64_t>()), entry.value("z", std::vector<int64_t>())});
}

void readRankRoot(const json &root, const Program &program, RankProgram &rank) {
  rank.rank = root.at("rank").get<int32_t>();
  if (rank.rank < 0 || rank.rank >= program.ranks)
    throw Unfit(text("it is of rank ", rank.rank, " of ", program.ranks));
  rank.device = program.mesh.moved(rank.device, Axis::Pipeline, rank.rank);
  rank.name = program.mesh.name(rank.device);
  rank.arenaBytes = root.at("arena_bytes").get<int64_t>();
  rank.hostBytes = root.value("host_bytes", int64_t(0));
  rank.kernelBytes = root.value("kernel_bytes", int64_t(-1));
  rank.messageBytes = root.value("message_bytes", int64_t(-1));
  rank.targetWeightBytes = root.value("target_weight_bytes", int64_t(0));
  rank.ncclBytes = root.value("nccl_bytes", int64_t(-1));
  rank.ncclMultiprocessors = root.value("nccl_multiprocessors", int64_t(0));
  rank.ncclMultiprocessorsOfCollectives = root.value("nccl_multiprocessors_of_collectives", int64_t(0));
  if (auto peak = root.find("peak"); peak != root.end())
    for (auto &[role, bytes] : peak->items())
      rank.peaks.push_back({role, bytes.get<int64_t>()});
  const Place place = {program.mesh, rank.device};
  readOps(root, place, rank);
  for (const json &entry : listOf(root, "messages"))
    rank.messages.push_back(readMessage(entry, program, rank));
  for (const json &entry : listOf(root, "weights"))
    rank.weights.push_back(readWeight(entry, place));
  for (const json &entry : listOf(root, "state"))
    rank.state.push_back(readState(entry, place));
  for (const json &entry : listOf(root, "grads"))
    readTensor(entry, place, rank.grads.emplace_back());
  readEnds(root, program, rank.inputs, rank.losses);
  if (auto forward = root.find("forward"); forward != root.end()) {
    rank.forward.emplace();
    rank.forward->firstUnit = forward->at("units").get<size_t>();
    rank.forward->firstMessage = forward->at("messages").get<size_t>();
    readEnds(*forward, program, rank.forward->inputs, rank.forward->losses);
  }
  if (auto norm = root.find("norm"); norm != root.end() && norm->is_object())
    rank.normOffset = norm->at("offset").get<int64_t>();
  checkInside(rank, program);
}

} // namespace

std::string_view elementName(Type type) {
  static constexpr std::string_view names[] = {"f32", "bf16", "f64", "f16"}; // in the order of Type
  return names[size_t(type)];
}

std::string_view kindName(MessageSpec::Kind kind) { return messageKinds[size_t(kind)]; }

size_t MessageSpec::memberOf(int32_t device) const {
  return size_t(std::find(group.begin(), group.end(), device) - group.begin());
}

bool isSameCollective(const MessageSpec &a, const MessageSpec &b) {
  return a.kind == b.kind && a.root == b.root && a.type == b.type && a.bytes == b.bytes && a.cuts == b.cuts &&
         a.zigzag == b.zigzag && a.sequences == b.sequences && a.length == b.length && a.toColumns == b.toColumns;
}

bool MessageSpec::hasEqualShards() const {
  const auto members = int64_t(group.size());
  if (!isSharded() || cuts.size() != group.size() + 1 || bytes % members != 0)
    return false;
  for (size_t k = 0; k < cuts.size(); ++k)
    if (cuts[k] != int64_t(k) * (bytes / members))
      return false;
  return true;
}

Block MessageSpec::block(size_t from, size_t to, int64_t index) const {
  const auto members = int64_t(group.size());
  if (sequences == 0) {
    const int64_t each = bytes / members;
    return {int64_t(to) * each, each, int64_t(from) * each, each, 1, each};
  }
  const int64_t wide = bytes / (sequences * (length / members)), narrow = wide / members, rows = length / (2 * members);
  const int64_t sequence = index / 2, half = index % 2;
  // The device with the runs, and that with a piece of the columns.
  const auto runs = int64_t(toColumns ? from : to), columns = int64_t(toColumns ? to : from);
  const int64_t inRuns = (2 * sequence + half) * rows * wide + columns * narrow;
  const int64_t inColumns = (sequence * length + (half ? 2 * members - 1 - runs : runs) * rows) * narrow;
  if (toColumns)
    return {inRuns, wide, inColumns, narrow, rows, narrow};
  return {inColumns, narrow, inRuns, wide, rows, narrow};
}

int64_t MessageSpec::shardBytes(size_t member) const {
  if (kind == Kind::AllToAll) // as much as every member gets
    return bytes;
  int64_t total = 0;
  for (ShardRange range : ranges(member))
    total += range.bytes;
  return total;
}

std::string_view jointName(const MessageSpec &message) {
  return message.kind == MessageSpec::Kind::Broadcast   ? "broadcast"
         : message.kind == MessageSpec::Kind::AllGather ? "gather"
         : message.kind == MessageSpec::Kind::AllToAll  ? "all_to_all"
                                                        : "sum";
}

int64_t bytesIn(const MessageSpec &message, int32_t device) {
  using Kind = MessageSpec::Kind;
  int64_t others = int64_t(message.group.size()) - 1, own = message.shardBytes(message.memberOf(device));
  switch (message.kind) {
  case Kind::Send:
    return 0;
  case Kind::Receive:
    return message.host ? 0 : message.bytes;
  case Kind::AllReduce: // of one text: a reduce-scatter and an all-gather
    return message.oneText ? 2 * others * message.bytes / int64_t(message.group.size()) : others * message.bytes;
  case Kind::Broadcast:
    return message.root == device ? 0 : message.bytes;
  case Kind::Reduce:
    return message.root == device ? others * message.bytes : 0;
  case Kind::AllGather:
    return message.bytes - own;
  case Kind::ReduceScatter:
    return others * own;
  case Kind::AllToAll:
    return others * message.bytes / int64_t(message.group.size());
  }
  return 0;
}

std::string describe(const MessageSpec &message) {
  std::string with = message.with;
  if (with.empty()) // made by hand, not read
    with = !message.isCollective() ? text("rank ", message.peer)
           : message.root < 0      ? text(message.group.size(), " ranks")
                                   : text(message.group.size(), " ranks, root ", message.root);
  const std::string apart = message.line.empty() ? "" : text(" (", message.line, ")");
  const std::string behind = message.line.empty() ? "" : ", " + message.line;
  if (message.kind == MessageSpec::Kind::AllReduce)
    return text("the sum `", message.label, "` over ", with, apart);
  if (message.host)
    return text("`", message.label, "` between host memory and device (", message.bytes, " bytes", behind, ")");
  if (message.isCollective())
    return text("the ", kindName(message.kind), " of `", message.label, "` over ", with, apart);
  return text("`", message.label, "` ", message.kind == MessageSpec::Kind::Send ? "to" : "from", " ", with, " (",
              message.bytes, " bytes, channel ", message.channel, behind, ")");
}

std::string describe(const UnitSpec &unit) {
  return unit.line.empty() ? text("`", unit.name, "`") : text("`", unit.name, "` (", unit.line, ")");
}

int64_t TensorSpec::elements() const {
  if (count >= 0)
    return count;
  int64_t product = 1;
  for (Dim dim : dims)
    product *= dim.size;
  return dims.empty() ? wholeElements() : product;
}

int64_t TensorSpec::place(int64_t i) const {
  if (dims.empty())
    return begin + (run < 0 ? i : i / run * stride + i % run);
  int64_t at = base;
  i += begin;
  for (auto dim = dims.rbegin(); dim != dims.rend(); ++dim) {
    const int64_t index = i % dim->size;
    i /= dim->size;
    if (index >= dim->valid)
      return -1;
    at += index * dim->stride;
  }
  return at;
}

TensorSpec::Stretch TensorSpec::stretch(int64_t i) const {
  const int64_t left = elements() - i;
  if (dims.empty())
    return {place(i), 1, run < 0 ? left : std::min(left, run - i % run)};
  const Dim &inner = dims.back();
  const int64_t in = (begin + i) % inner.size;
  return {place(i), inner.stride, std::min(left, (in < inner.valid ? inner.valid : inner.size) - in)};
}

std::vector<TensorSpec::Range> TensorSpec::ranges() const {
  std::vector<Range> found;
  for (int64_t i = 0, all = elements(); i < all;) {
    const Stretch next = stretch(i);
    const int64_t count = next.whole < 0 || next.step == 1 ? next.count : 1;
    if (next.whole >= 0) {
      if (!found.empty() && found.back().here + found.back().count == i &&
          found.back().whole + found.back().count == next.whole)
        found.back().count += count;
      else
        found.push_back({i, next.whole, count});
    }
    i += count;
  }
  return found;
}

TensorSpec::Turned TensorSpec::turned() const {
  const int64_t all = wholeElements(), columns = shape.empty() ? 1 : shape.back();
  if (stored == Stored::Transposed) {
    const int64_t rows = shape[shape.size() - 2];
    return {all / (rows * columns), rows, columns};
  }
  return stored == Stored::Alternate ? Turned{all / columns, 2, columns / 2} : Turned{1, 1, all};
}

int64_t TensorSpec::wholeElements() const {
  int64_t product = 1;
  for (int64_t extent : shape)
    product *= extent;
  return product;
}

int64_t RankProgram::plannedScratch() const {
  return targetWeightBytes + std::max<int64_t>(kernelBytes, 0) +
         std::max<int64_t>(ncclBytes >= 0 ? ncclBytes : messageBytes, 0);
}

int64_t RankProgram::plannedPeak() const {
  for (const PeakSpec &peak : peaks)
    if (peak.role == "total")
      return peak.bytes;
  return arenaBytes;
}

std::string Program::stepText() const {
  return text(microbatches, " microbatches of ", batch, " x ", sequence, " tokens",
              replicas() > 1 ? text(" on each of ", replicas(), " replicas") : std::string());
}

Status readProgram(std::string_view json, Program &program) {
  try {
    readProgramRoot(nlohmann::json::parse(json), program);
  } catch (const std::exception &error) {
    return internal("the emitted description of the program is not readable: ", error.what());
  }
  return {};
}

Status readRankProgram(std::string_view json, const Program &program, RankProgram &rank) {
  try {
    readRankRoot(nlohmann::json::parse(json), program, rank);
  } catch (const std::exception &error) {
    return internal("the emitted description of rank ", rank.rank, " is not readable: ", error.what());
  }
  return {};
}

const char *nameOf(OptimizerSpec::Rate rate) {
  constexpr const char *names[] = {"cosine", "linear", "constant", "wsd"};
  return names[size_t(rate)];
}

} // namespace pp
