// A page on this machine that shows a figure, or what is wrong, and follows both while they change.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_TOOLS_EDITOR_SERVE_H
#define PP_TOOLS_EDITOR_SERVE_H

#include "llvm/ADT/StringRef.h"
#include <memory>
#include <string>

namespace pp {

class PageServer {
public:
  /// Listens on this port of 127.0.0.1, or on a free one if it is 0. Null after an error, which `why` says.
  static std::unique_ptr<PageServer> open(unsigned port, llvm::StringRef title, std::string &why);
  virtual ~PageServer() = default;

  virtual unsigned port() const = 0;
  /// Shows this in all browsers. Without a figure the last one stays there, grey.
  virtual void show(llvm::StringRef svg, llvm::StringRef messages) = 0;
};

} // namespace pp

#endif // PP_TOOLS_EDITOR_SERVE_H
