// Tells what is wrong or worth a remark in files of the library where the program asks for what these files declare.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_FRONTEND_LIBRARYERRORS_H
#define PP_FRONTEND_LIBRARYERRORS_H

#include "mlir/IR/Diagnostics.h"
#include "llvm/ADT/StringMap.h"

namespace pp {

class LibraryErrors {
public:
  /// Does so for as long as the context lives: passes have something to say, too.
  static std::shared_ptr<LibraryErrors> watch(mlir::MLIRContext *context);

  /// What is said in this file is told at `user`, which may lie in another file of the library.
  void setUser(llvm::StringRef file, mlir::Location user) { users.insert_or_assign(file, user); }
  /// The same where the user is to read it; an error and a warning get a note in the library. None if that is where it
  /// points already.
  [[nodiscard]] std::optional<mlir::Diagnostic> forUser(const mlir::Diagnostic &said) const;

private:
  [[nodiscard]] mlir::LocationAttr userOf(mlir::Location at) const;

  llvm::StringMap<mlir::Location> users; ///< by the name of a file of the library
};

} // namespace pp

#endif // PP_FRONTEND_LIBRARYERRORS_H
