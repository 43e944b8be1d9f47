// Compares what devices noted of an audited step, and names the message or the weight that is not what it should be.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "runtime/audit/Audit.h"
#include <algorithm>
#include <cmath>
#include <map>
#include <set>

namespace pp {
namespace {

/// The weights and the state that a device keeps from step to step, with their names in a checkpoint.
std::vector<std::pair<std::string, const TensorSpec *>> keptBy(const RankProgram &program) {
  std::vector<std::pair<std::string, const TensorSpec *>> out;
  for (const WeightSpec &weight : program.weights)
    if (weight.elements() > 0)
      out.push_back({weight.name, &weight});
  for (const StateSpec &state : program.state)
    if (state.elements() > 0)
      out.push_back({state.name + "." + state.kind, &state});
  return out;
}

/// The same for two tensors that hold the same elements of the same whole, in the same order.
uint64_t keyOf(const std::string &name, const TensorSpec &tensor) {
  AuditKey key;
  key.add(std::string_view(name)).add(uint64_t(tensor.type)).add(uint64_t(tensor.begin));
  key.add(uint64_t(tensor.elements())).add(uint64_t(tensor.run)).add(uint64_t(tensor.stride));
  key.add(uint64_t(tensor.base));
  for (const TensorSpec::Dim &dim : tensor.dims)
    key.add(uint64_t(dim.size)).add(uint64_t(dim.stride)).add(uint64_t(dim.valid));
  return key.value();
}

std::string digits(uint64_t sum) {
  char out[17];
  snprintf(out, sizeof out, "%016llx", static_cast<unsigned long long>(sum));
  return out;
}

/// `rank 0`; `rank 0 and rank 3`; `rank 0, rank 3 and 2 more`.
std::string listOf(const Mesh &mesh, const std::vector<int32_t> &devices) {
  constexpr size_t most = 3;
  std::string out = mesh.name(devices[0]);
  const size_t named = std::min(devices.size(), most);
  for (size_t i = 1; i < named; ++i)
    out += (i + 1 == devices.size() ? " and " : ", ") + mesh.name(devices[i]);
  return devices.size() > named ? text(out, " and ", devices.size() - named, " more") : out;
}

} // namespace

Status Audit::open(int64_t steps) {
  every = steps;
  std::map<uint64_t, std::pair<int32_t, int32_t>> copies; // how many there are, and the first device with one
  for (int32_t other = 0; other < emitted.program().devices(); ++other) {
    const RankProgram *its = nullptr;
    PP_TRY(emitted.of(other, its));
    for (const auto &[name, tensor] : keptBy(*its))
      ++copies.try_emplace(keyOf(name, *tensor), 0, other).first->second.first;
  }
  std::set<uint64_t> seen;
  for (const auto &[name, tensor] : keptBy(program)) {
    const uint64_t key = keyOf(name, *tensor);
    const auto [count, first] = copies[key];
    const bool isFirst = first == program.device && seen.insert(key).second;
    tensors.push_back({tensor, key, count == 1 ? 0 : isFirst ? count - 1 : -1});
  }
  messages = std::make_unique<AuditedTransport>(transport, program, device, ledger);
  return {};
}

Status Audit::sumOf(const TensorSpec &tensor, uint64_t &out) {
  constexpr int64_t most = 1 << 20;
  WordSum sum;
  for (int64_t at = 0; at < tensor.bytes(); at += most) {
    const auto bytes = size_t(std::min(most, tensor.bytes() - at));
    const char *seen = nullptr;
    PP_TRY(device.see(device.base() + tensor.offset + at, bytes, room, seen));
    sum.add(seen, bytes);
  }
  out = sum.value();
  return {};
}

Status Audit::checksums(std::vector<uint64_t> &out) {
  out.resize(tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i)
    PP_TRY(sumOf(*tensors[i].spec, out[i]));
  return {};
}

Status Audit::checkRest(int64_t step) {
  isResting = false;
  std::vector<uint64_t> now;
  PP_TRY(checksums(now));
  for (size_t i = 0; i < now.size(); ++i)
    if (now[i] != resting[i])
      return refused(program.name, ", before step ", step, ": `", keptBy(program)[i].first,
                     "` has changed since it was updated in step ", restsSince, ": its checksum is ", digits(now[i]),
                     ", and was ", digits(resting[i]));
  return {};
}

void Audit::begin(int64_t step, pp_rank_t &rank) {
  if (step % every != 0)
    return;
  device.callByCall(true);
  messages->begin();
  rank.transport = messages.get();
}

Status Audit::end(int64_t step, pp_rank_t &rank, bool &clean) {
  clean = true;
  if (step % every != 0)
    return {};
  messages->end();
  device.callByCall(false);
  rank.transport = &transport;
  PP_TRY(checksums(resting));
  restsSince = step;
  isResting = true;
  for (size_t i = 0; i < tensors.size(); ++i)
    if (tensors[i].share != 0)
      ledger.add({tensors[i].key, resting[i], AuditEntry::Kind::Tensor, tensors[i].share, int32_t(i)});
  ++audited;
  for (const AuditEntry &entry : ledger.all())
    (entry.kind == AuditEntry::Kind::Tensor ? copies : received) += entry.share < 0;
  std::array<double, 2> totals = ledger.totals();
  PP_TRY(transport.sum(totals));
  clean = std::fmod(totals[0], 0x1p32) == 0 && std::fmod(totals[1], 0x1p32) == 0;
  if (clean)
    ledger.clear();
  return {};
}

Status Audit::gather(std::vector<Table> &tables) {
  const int32_t devices = emitted.program().devices();
  std::vector<double> sizes(static_cast<size_t>(devices));
  sizes[size_t(program.device)] = double(ledger.all().size());
  PP_TRY(transport.sum(sizes));
  if (program.device != 0) {
    const Table &own = ledger.all();
    return own.empty() ? Status() : transport.send(0, own.data(), own.size() * sizeof(AuditEntry));
  }
  tables.push_back(std::move(ledger.all()));
  for (int32_t other = 1; other < devices; ++other) {
    Table &its = tables.emplace_back(size_t(sizes[size_t(other)]));
    if (!its.empty())
      PP_TRY(transport.receive(other, its.data(), its.size() * sizeof(AuditEntry)));
  }
  return {};
}

Status Audit::find(int64_t step) {
  std::vector<Table> tables;
  PP_TRY(gather(tables));
  return program.device == 0 ? describe(step, tables) : Status();
}

/// The first message that is wrong, else the first sum, else the first weight: a wrong message makes others wrong.
Status Audit::describe(int64_t step, const std::vector<Table> &tables) {
  std::map<uint64_t, std::vector<std::pair<int32_t, AuditEntry>>> all;
  for (size_t its = 0; its < tables.size(); ++its)
    for (const AuditEntry &entry : tables[its])
      all[entry.key].push_back({int32_t(its), entry});
  auto isWrong = [&](uint64_t key) {
    const auto &ends = all[key];
    return std::any_of(ends.begin(), ends.end(), [&](const auto &end) { return end.second.sum != ends[0].second.sum; });
  };
  for (bool copies : {false, true})
    for (size_t its = 0; its < tables.size(); ++its)
      for (const AuditEntry &entry : tables[its]) {
        if (copies != (entry.kind == AuditEntry::Kind::Sum || entry.kind == AuditEntry::Kind::Tensor) ||
            !isWrong(entry.key))
          continue;
        const auto &ends = all[entry.key];
        if (copies)
          return describeCopies(step, ends);
        const auto giver = std::find_if(ends.begin(), ends.end(), [](const auto &end) { return end.second.share > 0; });
        if (entry.share < 0 && giver != ends.end() && giver->second.sum != entry.sum)
          return describeReceived(step, int32_t(its), entry, giver->first, giver->second.sum);
      }
  return internal("step ", step, ": checksums of what devices sent and received do not add up to 0");
}

Status Audit::describeReceived(int64_t step, int32_t to, const AuditEntry &entry, int32_t from, uint64_t given) {
  const RankProgram *its = nullptr;
  PP_TRY(emitted.of(to, its));
  const MessageSpec &message = its->messages[size_t(entry.number)];
  const Mesh &mesh = emitted.program().mesh;
  const std::string unit =
      entry.unit < 0 ? std::string()
                     : text(message.inside ? ", in " : ", after ", pp::describe(its->units[size_t(entry.unit)]));
  const std::string part = entry.kind == AuditEntry::Kind::Part ? text("the part of ", mesh.name(from), " in ") : "";
  return refused(its->name, ", step ", step, unit, ": ", part, pp::describe(message),
                 " is not what was sent: its checksum is ", digits(entry.sum), ", and was ", digits(given), " on ",
                 mesh.name(from));
}

/// Names the devices that differ from the majority.
Status Audit::describeCopies(int64_t step, const std::vector<std::pair<int32_t, AuditEntry>> &copies) {
  const RankProgram *its = nullptr;
  PP_TRY(emitted.of(copies[0].first, its));
  const AuditEntry &first = copies[0].second;
  const Mesh &mesh = emitted.program().mesh;
  std::map<uint64_t, std::vector<int32_t>> by; // checksum
  for (const auto &[device, entry] : copies)
    by[entry.sum].push_back(device);
  std::vector<std::pair<uint64_t, std::vector<int32_t>>> kinds(by.begin(), by.end());
  std::stable_sort(kinds.begin(), kinds.end(),
                   [](const auto &a, const auto &b) { return a.second.size() < b.second.size(); });
  const bool isTensor = first.kind == AuditEntry::Kind::Tensor;
  std::string what = isTensor ? text("`", keptBy(*its)[size_t(first.number)].first, "` is not the same in all copies")
                              : text(pp::describe(its->messages[size_t(first.number)]), " has not one result");
  for (const auto &[sum, devices] : kinds)
    what += text(sum == kinds[0].first ? ": " : ", ", "checksum ", digits(sum), " on ", listOf(mesh, devices));
  const std::vector<int32_t> &fewest = kinds[0].second;
  if (fewest.size() == 1 && kinds.back().second.size() > 1 && kinds.size() == 2)
    what += text("; ", mesh.name(fewest[0]), " stands alone");
  return refused("step ", step, ": ", what);
}

} // namespace pp
