// Writes the events of all ranks as one file for Chrome's trace viewer or Perfetto.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "runtime/Trace.h"
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

namespace pp {
namespace {

std::string quoted(const std::string &name) { return nlohmann::json(name).dump(); }

std::string messageName(const MessageSpec &message) {
  const char *kind = message.kind == MessageSpec::Kind::Send      ? "send "
                     : message.kind == MessageSpec::Kind::Receive ? "receive "
                                                                  : "sum ";
  return quoted(kind + message.label);
}

/// The quoted name of an event, and what else is known of it.
std::string describe(const Trace::Event &event, const RankProgram &program) {
  size_t number = size_t(event.number);
  switch (event.kind) {
  case Trace::Kind::Unit: {
    const UnitSpec &unit = program.units.at(number);
    return text("\"name\": ", quoted(unit.name), ", \"cat\": ", quoted(unit.phase),
                ", \"tid\": 0, \"args\": {\"microbatch\": ", unit.microbatch, ", \"flops\": ", unit.flops, "}");
  }
  case Trace::Kind::Post:
  case Trace::Kind::Wait: {
    const MessageSpec &message = program.messages.at(number);
    return text("\"name\": ", messageName(message),
                ", \"cat\": ", event.kind == Trace::Kind::Post ? "\"post\"" : "\"wait\"",
                ", \"tid\": 1, \"args\": {\"peer\": ", message.peer, ", \"channel\": ", message.channel,
                ", \"bytes\": ", message.bytes, "}");
  }
  case Trace::Kind::Step:
    return text("\"name\": \"step ", event.number, "\", \"cat\": \"step\", \"tid\": 2");
  }
  return {};
}

} // namespace

Status writeTrace(const std::string &path, const std::vector<RankTrace> &ranks) {
  FILE *file = fopen(path.c_str(), "wb");
  if (!file)
    return refused("cannot write `", path, "` of --trace: ", strerror(errno));
  int64_t first = INT64_MAX;
  for (const RankTrace &rank : ranks)
    for (const Trace::Event &event : rank.events)
      first = std::min(first, event.start + rank.shift);
  fputs("{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n", file);
  const char *comma = "";
  for (size_t pid = 0; pid < ranks.size(); ++pid) {
    static const char *const lines[] = {"units", "messages", "steps"};
    fprintf(file, "%s{\"ph\": \"M\", \"name\": \"process_name\", \"pid\": %zu, \"args\": {\"name\": \"rank %zu\"}}",
            comma, pid, pid);
    comma = ",\n";
    for (int tid = 0; tid < 3; ++tid)
      fprintf(file,
              ",\n{\"ph\": \"M\", \"name\": \"thread_name\", \"pid\": %zu, \"tid\": %d, \"args\": {\"name\": \"%s\"}}",
              pid, tid, lines[tid]);
    for (const Trace::Event &event : ranks[pid].events)
      fprintf(file, ",\n{\"ph\": \"X\", \"pid\": %zu, \"ts\": %.3f, \"dur\": %.3f, %s}", pid,
              double(event.start + ranks[pid].shift - first) * 1e-3, double(event.stop - event.start) * 1e-3,
              describe(event, *ranks[pid].program).c_str());
  }
  fputs("\n]}\n", file);
  bool failed = ferror(file) != 0;
  failed |= fclose(file) != 0;
  return failed ? refused("cannot write `", path, "` of --trace: ", strerror(errno)) : Status();
}

} // namespace pp
