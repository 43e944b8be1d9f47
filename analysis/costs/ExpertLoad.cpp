// Reads how the choices of routers fall on experts.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "analysis/costs/ExpertLoad.h"
#include "dialect/Input.h"
#include <cmath>
#include <numeric>

using namespace mlir;
using namespace pp;

FailureOr<ExpertLoad> ExpertLoad::read(StringRef text, Location loc) {
  ExpertLoad load;
  if (text.empty())
    return load;
  if (text.consume_front("zipf=")) {
    if (text.getAsDouble(load.exponent) || !(load.exponent >= 0) || !std::isfinite(load.exponent))
      return emitError(loc) << "`--expert-load=zipf=S` expects a number of at least 0, got `" << text << "`";
    return load;
  }
  std::string why;
  std::unique_ptr<llvm::MemoryBuffer> file = readInput(text, why);
  if (!file)
    return emitError(loc) << "`--expert-load` expects zipf=S or a file; cannot open `" << text << "`: " << why;
  auto json = parseJsonFile(text, file->getBuffer(), loc.getContext());
  if (failed(json))
    return failure();
  const llvm::json::Array *list = json->getAsArray();
  for (const llvm::json::Value &item : list ? *list : llvm::json::Array())
    if (auto number = item.getAsNumber(); isQuantity(number))
      load.listed.push_back(*number);
  double sum = std::accumulate(load.listed.begin(), load.listed.end(), 0.0);
  if (!list || load.listed.size() != list->size() || !(sum > 0) || !std::isfinite(sum))
    return emitError(loc) << "`" << text << "` must be a JSON list of numbers of at least 0, one for each expert, that "
                          << "are not all 0";
  for (double &share : load.listed)
    share /= sum;
  return load;
}

FailureOr<SmallVector<double>> ExpertLoad::of(int64_t experts, Location loc) const {
  SmallVector<double> shares = listed;
  if (shares.empty()) {
    for (int64_t i = 0; i < experts; ++i)
      shares.push_back(std::pow(static_cast<double>(i + 1), -exponent));
    double sum = std::accumulate(shares.begin(), shares.end(), 0.0);
    for (double &share : shares)
      share /= sum;
  }
  if (static_cast<int64_t>(shares.size()) != experts)
    return emitError(loc) << "`--expert-load` has " << shares.size() << " shares; this layer has " << experts
                          << " experts";
  return shares;
}
