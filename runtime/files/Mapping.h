// A file's bytes in memory; a run whose file is cut meanwhile ends with a sentence that names the file.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_RUNTIME_FILES_MAPPING_H
#define PP_RUNTIME_FILES_MAPPING_H

#include "runtime/Status.h"
#include <string>
#include <string_view>

namespace pp {

class Mapping {
public:
  Mapping() = default;
  ~Mapping() { close(); }
  Mapping(const Mapping &) = delete;
  Mapping &operator=(const Mapping &) = delete;

  /// Maps a regular file. Errors say what it is: `cannot read data ..`.
  Status open(const std::string &path, const std::string &what);
  void close();
  [[nodiscard]] std::string_view bytes() const { return {begin, size}; }

private:
  std::string name;
  const char *begin = nullptr;
  size_t size = 0;
  int slot = -1; ///< of the table that the handler of SIGBUS reads; negative: none
};

/// Whether this process is the one to say why the run ends; a signal handler calls it. Null: it is.
extern bool (*mayReport)();

} // namespace pp

#endif // PP_RUNTIME_FILES_MAPPING_H
