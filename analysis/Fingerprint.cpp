// Makes and compares the fingerprints of programs.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "analysis/Fingerprint.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/xxhash.h"

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;
namespace json = llvm::json;

namespace {

/// Hashes numbers in order; the same on every machine, for no address and no seed goes into it.
class Hash {
public:
  void add(int64_t number) { numbers.push_back(number); }
  void add(Attribute attribute) { // texts of attributes are hashed once each
    auto [known, isNew] = texts.try_emplace(attribute, 0);
    if (isNew)
      known->second = hashOf(attribute ? str(attribute) : "");
    add(static_cast<int64_t>(known->second));
  }
  static uint64_t hashOf(StringRef text) { return llvm::xxh3_64bits(text); }
  std::string result() const {
    return llvm::utohexstr(llvm::xxh3_64bits(ArrayRef(reinterpret_cast<const uint8_t *>(numbers.data()),
                                                      numbers.size() * sizeof(int64_t))),
                           /*LowerCase=*/true, /*Width=*/16);
  }
  template <typename T> static std::string str(T printed) {
    std::string text;
    llvm::raw_string_ostream(text) << printed;
    return text;
  }

private:
  SmallVector<int64_t, 0> numbers;
  DenseMap<Attribute, uint64_t> texts;
};

void add(Hash &hash, CoordAttr coord) {
  hash.add(coord.getPart());
  for (int64_t number : {coord.getIndex(), coord.getMicrobatch(), coord.getSlice()})
    hash.add(number);
}

} // namespace

/// For each launched body a hash of the types of its inputs and results.
static json::Object hashesOfTasks(ProgramOp program) {
  json::Object hashes;
  SymbolTable symbols(program->getParentOfType<ModuleOp>());
  for (auto rank : program.getOps<RankOp>())
    for (auto launch : rank.getOps<LaunchOp>())
      if (json::Value &hash = hashes[launch.getCallee()]; hash.kind() == json::Value::Null) {
        auto body = symbols.lookup<func::FuncOp>(launch.getCallee());
        hash = llvm::utohexstr(Hash::hashOf(body ? Hash::str(body.getFunctionType()) : ""), /*LowerCase=*/true,
                               /*Width=*/16);
      }
  return hashes;
}

json::Object pp::fingerprintOf(ProgramOp program) {
  json::Object made;
  DictionaryAttr train = program.getTrain();
  for (StringRef key : {"model", "schedule", "precision", "gradients"})
    if (auto text = train.getAs<StringAttr>(key))
      made[key] = text.getValue();
  for (StringRef key : {"layers", "batch", "sequence", "vocab"})
    if (auto number = train.getAs<IntegerAttr>(key))
      made[key] = number.getInt();
  made["ranks"] = static_cast<int64_t>(program.getRanks());
  if (MeshAttr mesh = program.getMeshAttr()) {
    made["replicas"] = mesh.sizeOf(Axis::data);
    made["context"] = mesh.sizeOf(Axis::context);
    made["tensor"] = mesh.sizeOf(Axis::tensor);
  }
  made["microbatches"] = static_cast<int64_t>(program.getMicrobatches());
  made["slices"] = static_cast<int64_t>(program.getSlices());
  made["target"] = program.getTarget().value_or("cpu");
  if (program.getOps<RankOp>().empty())
    return made; // not projected yet
  Hash units, messages;
  for (auto rank : program.getOps<RankOp>()) {
    for (Operation &op : rank.getBody().front()) {
      if (auto launch = dyn_cast<LaunchOp>(op)) {
        units.add(static_cast<int64_t>(launch.getUnit().getPhase()));
        add(units, launch.getUnit().getCoord());
        units.add(launch.getCalleeAttr());
      } else if (auto post = dyn_cast<PostOp>(op)) {
        messages.add(static_cast<int64_t>(post.getKind()));
        messages.add(static_cast<int64_t>(post.getThing().getRole()));
        add(messages, post.getThing().getCoord());
        for (int64_t peer : post.getPeers())
          messages.add(peer);
      }
    }
    units.add(-1), messages.add(-1); // where the rank ends
  }
  made["tasks"] = hashesOfTasks(program);
  made["units"] = units.result();
  made["messages"] = messages.result();
  return made;
}

std::string pp::differenceFrom(ProgramOp program, const json::Object &root, bool inOrder) {
  const json::Object *found = root.getObject("made_from");
  if (!found || found->empty())
    return "does not say which program it was made from (`made_from`)";
  json::Object own = fingerprintOf(program);
  auto differs = [&](StringRef key) {
    const json::Value *theirs = found->get(key), *ours = own.get(key);
    return theirs && ours && *theirs != *ours;
  };
  auto sizeIn = [](const json::Object &made, StringRef axis) { return made.getInteger(axis).value_or(1); };
  for (StringRef axis : {"replicas", "context", "tensor"}) // absent without a mesh
    if (int64_t theirs = sizeIn(*found, axis), ours = sizeIn(own, axis); theirs != ours)
      return (Twine("is of another program: its `") + axis + "` is " + Twine(theirs) + ", expected " + Twine(ours))
          .str();
  for (StringRef key : {"model", "schedule", "ranks", "microbatches", "slices", "layers", "batch", "sequence", "vocab",
                        "precision", "gradients", "target"}) {
    bool isOrder = key == "schedule" || key == "ranks" || key == "microbatches";
    if ((inOrder || !isOrder) && differs(key))
      return (Twine("is of another program: its `") + key + "` is " + Hash::str(*found->get(key)) + ", expected " +
              Hash::str(*own.get(key)))
          .str();
  }
  const json::Object *theirs = found->getObject("tasks"), *ours = own.getObject("tasks");
  if (inOrder ? differs("tasks") : found->get("tasks") && !theirs)
    return "is of another program: its tasks work on tensors of other sizes, or are others";
  std::string other; // the first by name, for an object has its entries in no order
  if (ours && theirs && !inOrder)
    for (const auto &[name, hash] : *ours)
      if (const json::Value *its = theirs->get(name); its && *its != hash && (other.empty() || name.str() < other))
        other = name.str();
  if (!other.empty())
    return "is of another program: its task `" + other + "` works on tensors of other sizes";
  if (inOrder && differs("units"))
    return "is of another program: its ranks run other units, or the same in another order";
  if (inOrder && differs("messages"))
    return "is of another program: its ranks post other messages, or the same in another order";
  return "";
}
