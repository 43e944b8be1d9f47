// Reads gradients in f64 from a .safetensors file and losses from a log, and measures how far two of them are apart.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "tools/judge/Gradients.h"
#include "tools/FrontendFlags.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/Support/Endian.h"
#include "llvm/Support/JSON.h"
#include "llvm/Support/MemoryBuffer.h"
#include <cmath>
#include <limits>

using namespace mlir;
using namespace pp;

static constexpr const char *kLoss = "the loss";

/// 8 bytes of length, a JSON object of names, types and places, the numbers.
static bool readTensors(StringRef file, Gradients &into) {
  if (file.size() < 8)
    return false;
  uint64_t length = llvm::support::endian::read64le(file.data());
  file = file.drop_front(8);
  if (length > file.size())
    return false;
  llvm::Expected<llvm::json::Value> header = llvm::json::parse(file.take_front(length));
  StringRef numbers = file.drop_front(length);
  if (!header) {
    llvm::consumeError(header.takeError());
    return false;
  }
  const llvm::json::Object *tensors = header->getAsObject();
  if (!tensors)
    return false;
  for (auto &[name, entry] : *tensors) {
    if (name == "__metadata__")
      continue;
    const llvm::json::Array *places = entry.getAsObject() ? entry.getAsObject()->getArray("data_offsets") : nullptr;
    if (!places || places->size() != 2 || entry.getAsObject()->getString("dtype") != "F64")
      return false;
    auto begin = (*places)[0].getAsUINT64(), end = (*places)[1].getAsUINT64();
    if (!begin || !end || *begin > *end || *end > numbers.size())
      return false;
    std::vector<double> &tensor = into[name.str()];
    tensor.resize((*end - *begin) / sizeof(double));
    std::memcpy(tensor.data(), numbers.data() + *begin, tensor.size() * sizeof(double));
  }
  return true;
}

/// The `loss` of the first line of JSON.
static bool readLoss(StringRef log, Gradients &into) {
  llvm::Expected<llvm::json::Value> line = llvm::json::parse(log.split('\n').first);
  if (!line) {
    llvm::consumeError(line.takeError());
    return false;
  }
  std::optional<double> loss = line->getAsObject() ? line->getAsObject()->getNumber("loss") : std::nullopt;
  if (loss)
    into[kLoss] = {*loss};
  return loss.has_value();
}

FailureOr<Gradients> pp::readGradients(StringRef tensors, StringRef log) {
  Gradients read;
  auto file = llvm::MemoryBuffer::getFile(tensors, /*IsText=*/false, /*RequiresNullTerminator=*/false);
  if (!file || !readTensors((*file)->getBuffer(), read))
    return refuse("--check cannot read the gradients that the program wrote");
  auto lines = llvm::MemoryBuffer::getFile(log);
  if (!lines || !readLoss((*lines)->getBuffer(), read))
    return refuse("--check cannot read the loss that the program wrote");
  return read;
}

static double largestOf(const std::vector<double> &tensor) {
  double largest = 0;
  for (double number : tensor)
    largest = std::max(largest, std::fabs(number));
  return largest;
}

FailureOr<std::vector<Difference>> pp::differencesOf(const Gradients &ours, const Gradients &reference) {
  double most = 0;
  for (auto &[name, tensor] : reference)
    if (name != kLoss)
      most = std::max(most, largestOf(tensor));
  std::vector<Difference> differences;
  for (auto &[name, tensor] : reference) {
    auto found = ours.find(name);
    if (found == ours.end() || found->second.size() != tensor.size())
      return refuse("--check: the schedule's program has no gradient like that of `" + name + "` on one rank");
    double scale = std::max({largestOf(tensor), name == kLoss ? 0 : 1e-4 * most, 1e-300}), worst = 0;
    for (auto [mine, theirs] : llvm::zip(found->second, tensor))
      if (double error = std::fabs(mine - theirs) / scale; !(error <= worst)) // takes what is no number, too
        worst = std::isnan(error) ? std::numeric_limits<double>::infinity() : error;
    differences.push_back({name, worst});
  }
  if (ours.size() != reference.size())
    return refuse("--check: the schedule's program has gradients that the program of one rank lacks");
  return differences;
}
