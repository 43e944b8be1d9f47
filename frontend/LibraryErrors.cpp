// Follows the calls that led to what is said, then the files that import each other, until one of them is the user's.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "frontend/LibraryErrors.h"
#include "mlir/IR/Location.h"

using namespace llvm;
using namespace pp;

std::shared_ptr<LibraryErrors> LibraryErrors::watch(mlir::MLIRContext *context) {
  auto library = std::make_shared<LibraryErrors>();
  mlir::DiagnosticEngine &engine = context->getDiagEngine();
  engine.registerHandler([library, &engine](mlir::Diagnostic &said) -> LogicalResult {
    std::optional<mlir::Diagnostic> moved = library->forUser(said);
    if (!moved)
      return failure(); // and on to who prints it
    engine.emit(std::move(*moved));
    return success();
  });
  return library;
}

static mlir::FileLineColLoc positionOf(mlir::Location at) { return at->findInstanceOf<mlir::FileLineColLoc>(); }

/// Null if `at` is the user's, or if nobody is known who asks for its file.
mlir::LocationAttr LibraryErrors::userOf(mlir::Location at) const {
  auto isLibrary = [&](mlir::FileLineColLoc place) { return place && users.contains(place.getFilename()); };
  if (!isLibrary(positionOf(at)))
    return {};
  for (auto call = at->findInstanceOf<mlir::CallSiteLoc>(); call;) {
    if (mlir::Location caller = call.getCaller(); positionOf(caller) && !isLibrary(positionOf(caller)))
      return mlir::LocationAttr(caller);
    call = dyn_cast<mlir::CallSiteLoc>(mlir::LocationAttr(call.getCaller()));
  }
  mlir::FileLineColLoc place = positionOf(at);
  for (size_t i = 0; i < users.size() && isLibrary(place); ++i)
    place = positionOf(users.at(place.getFilename()));
  return isLibrary(place) ? mlir::LocationAttr() : mlir::LocationAttr(place);
}

std::optional<mlir::Diagnostic> LibraryErrors::forUser(const mlir::Diagnostic &said) const {
  mlir::LocationAttr user = userOf(said.getLocation());
  if (!user)
    return std::nullopt;
  mlir::Diagnostic moved(mlir::Location(user), said.getSeverity());
  moved << said.str();
  auto isIn = [](mlir::Location at, mlir::Location file) {
    return positionOf(at) && positionOf(at).getFilename() == positionOf(file).getFilename();
  };
  bool hasNote = false;
  for (const mlir::Diagnostic &note : const_cast<mlir::Diagnostic &>(said).getNotes())
    hasNote |= isIn(note.getLocation(), said.getLocation());
  if (!hasNote && said.getSeverity() != mlir::DiagnosticSeverity::Remark)
    moved.attachNote(said.getLocation()) << "the library says so here";
  for (const mlir::Diagnostic &note : const_cast<mlir::Diagnostic &>(said).getNotes())
    moved.attachNote(note.getLocation()) << note.str();
  return moved;
}
