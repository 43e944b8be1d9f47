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
static DictionaryAttr hashesOfTasks(ProgramOp program) {
  Builder builder(program.getContext());
  NamedAttrList hashes;
  llvm::DenseSet<Attribute> known;
  SymbolTable symbols(program->getParentOfType<ModuleOp>());
  for (auto rank : program.getOps<RankOp>())
    for (auto launch : rank.getOps<LaunchOp>())
      if (known.insert(launch.getCalleeAttr()).second) {
        auto body = symbols.lookup<func::FuncOp>(launch.getCallee());
        uint64_t hash = Hash::hashOf(body ? Hash::str(body.getFunctionType()) : "");
        hashes.append(launch.getCallee(), builder.getStringAttr(llvm::utohexstr(hash, /*LowerCase=*/true, 16)));
      }
  return hashes.getDictionary(program.getContext());
}

DictionaryAttr pp::fingerprintOf(ProgramOp program) {
  Builder builder(program.getContext());
  NamedAttrList made;
  DictionaryAttr train = program.getTrain();
  for (StringRef key : {"model", "schedule", "precision", "gradients", "layers", "batch", "sequence", "vocab"})
    if (Attribute value = train.get(key); isa_and_nonnull<StringAttr, IntegerAttr>(value))
      made.set(key, value);
  auto number = [&](StringRef key, int64_t value) { made.set(key, builder.getI64IntegerAttr(value)); };
  number("ranks", program.getRanks());
  if (MeshAttr mesh = program.getMeshAttr()) {
    number("replicas", mesh.sizeOf(Axis::data));
    number("context", mesh.sizeOf(Axis::context));
    number("tensor", mesh.sizeOf(Axis::tensor));
  }
  number("microbatches", program.getMicrobatches());
  number("slices", program.getSlices());
  made.set("target", builder.getStringAttr(program.getTarget().value_or("cpu")));
  if (program.getOps<RankOp>().empty())
    return made.getDictionary(program.getContext()); // not projected yet
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
  made.set("tasks", hashesOfTasks(program));
  made.set("units", builder.getStringAttr(units.result()));
  made.set("messages", builder.getStringAttr(messages.result()));
  return made.getDictionary(program.getContext());
}

/// Whether a file says of a text, a number or a dictionary of these what the program says.
static bool isSame(const json::Value &theirs, Attribute ours) {
  if (auto text = dyn_cast<StringAttr>(ours))
    return theirs.getAsString() == text.getValue();
  if (auto number = dyn_cast<IntegerAttr>(ours))
    return theirs.getAsInteger() == number.getInt();
  auto all = cast<DictionaryAttr>(ours);
  const json::Object *object = theirs.getAsObject();
  return object && object->size() == all.size() && llvm::all_of(all, [&](NamedAttribute each) {
           const json::Value *its = object->get(each.getName());
           return its && isSame(*its, each.getValue());
         });
}

std::string pp::differenceFrom(ProgramOp program, const json::Object &root, bool inOrder) {
  const json::Object *found = root.getObject("made_from");
  if (!found || found->empty())
    return "does not say which program it was made from (`made_from`)";
  DictionaryAttr own = fingerprintOf(program);
  auto differs = [&](StringRef key) {
    const json::Value *theirs = found->get(key);
    Attribute ours = own.get(key);
    return theirs && ours && !isSame(*theirs, ours);
  };
  for (StringRef axis : {"replicas", "context", "tensor"}) { // absent without a mesh
    auto number = own.getAs<IntegerAttr>(axis);
    if (int64_t theirs = found->getInteger(axis).value_or(1), ours = number ? number.getInt() : 1; theirs != ours)
      return (Twine("is of another program: its `") + axis + "` is " + Twine(theirs) + ", expected " + Twine(ours))
          .str();
  }
  for (StringRef key : {"model", "schedule", "ranks", "microbatches", "slices", "layers", "batch", "sequence", "vocab",
                        "precision", "gradients", "target"}) {
    bool isOrder = key == "schedule" || key == "ranks" || key == "microbatches";
    if ((!inOrder && isOrder) || !differs(key))
      continue;
    auto number = own.getAs<IntegerAttr>(key);
    return (Twine("is of another program: its `") + key + "` is " + Hash::str(*found->get(key)) + ", expected " +
            (number ? std::to_string(number.getInt()) : Hash::str(own.get(key))))
        .str();
  }
  const json::Object *theirs = found->getObject("tasks");
  auto ours = own.getAs<DictionaryAttr>("tasks");
  if (inOrder ? differs("tasks") : found->get("tasks") && !theirs)
    return "is of another program: its tasks work on tensors of other sizes, or are others";
  for (NamedAttribute task : !inOrder && ours && theirs ? ours.getValue() : ArrayRef<NamedAttribute>()) // by name
    if (const json::Value *its = theirs->get(task.getName()); its && !isSame(*its, task.getValue()))
      return "is of another program: its task `" + task.getName().str() + "` works on tensors of other sizes";
  if (inOrder && differs("units"))
    return "is of another program: its ranks run other units, or the same in another order";
  if (inOrder && differs("messages"))
    return "is of another program: its ranks post other messages, or the same in another order";
  return "";
}
