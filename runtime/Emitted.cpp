// Reads the descriptions that the compiler put beside the code of a program.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "runtime/Emitted.h"
#include "runtime/Pp.h"

namespace pp {

Status Emitted::open() {
  PP_TRY(readProgram(pp_program_json, whole));
  if (whole.ranks != pp_rank_count)
    return internal("the emitted program says ", whole.ranks, " ranks, its table has ", pp_rank_count);
  return {};
}

Status Emitted::of(int32_t device, const RankProgram *&out) {
  std::lock_guard lock(mutex);
  auto found = devices.find(device);
  if (found == devices.end()) {
    const int32_t number = whole.mesh.rankOf(device);
    const pp_rank_entry_t &entry = pp_rank_table[number];
    if (!entry.json || !entry.step)
      return invalid("this executable does not hold rank ", number, "; link the objects of all ", whole.ranks,
                     " ranks");
    RankProgram read;
    read.rank = number;
    read.device = device;
    PP_TRY(readRankProgram(entry.json, whole, read));
    if (read.forward.has_value() != (entry.eval != nullptr))
      return internal("rank ", number, read.forward ? " lacks" : " has", " the forward step that its text ",
                      read.forward ? "describes" : "does not describe");
    found = devices.emplace(device, std::move(read)).first;
  }
  out = &found->second;
  return {};
}

Status Emitted::all(std::vector<const RankProgram *> &out) {
  out.resize(whole.ranks);
  for (int32_t number = 0; number < whole.ranks; ++number)
    PP_TRY(of(whole.mesh.firstOf(number), out[number]));
  return {};
}

} // namespace pp
