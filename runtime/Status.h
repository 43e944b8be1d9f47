// What a function of the runtime hands back: nothing wrong, or a code and the text built where the fact was known.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_RUNTIME_STATUS_H
#define PP_RUNTIME_STATUS_H

#include "runtime/Pp.h"
#include <sstream>
#include <string>
#include <utility>

namespace pp {

class [[nodiscard]] Status {
public:
  Status() = default;
  Status(pp_status_t code, std::string message) : status(code), why(std::move(message)) {}
  [[nodiscard]] bool ok() const { return status == PP_OK; }
  [[nodiscard]] pp_status_t code() const { return status; }
  [[nodiscard]] const std::string &message() const { return why; }

private:
  pp_status_t status = PP_OK;
  std::string why;
};

/// One string of all parts.
template <typename... Parts> [[nodiscard]] std::string text(const Parts &...parts) {
  std::ostringstream out;
  out.precision(10);
  (out << ... << parts);
  return out.str();
}
/// The user's input is wrong.
template <typename... Parts> Status invalid(const Parts &...parts) { return {PP_INVALID, text(parts...)}; }
/// The operating system refused.
template <typename... Parts> Status refused(const Parts &...parts) { return {PP_IO, text(parts...)}; }
/// A library or an emitted table is not what was promised.
template <typename... Parts> Status internal(const Parts &...parts) { return {PP_INTERNAL, text(parts...)}; }

} // namespace pp

/// Passes a status that is not ok on to the caller.
#define PP_TRY(expression)                                                                                             \
  do {                                                                                                                 \
    if (::pp::Status ppStatus = (expression); !ppStatus.ok())                                                          \
      return ppStatus;                                                                                                 \
  } while (0)

#endif // PP_RUNTIME_STATUS_H
