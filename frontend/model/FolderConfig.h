// The config.json of a published model: its fields, and where each stands in the file.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_FRONTEND_FOLDERCONFIG_H
#define PP_FRONTEND_FOLDERCONFIG_H

#include "frontend/syntax/Ast.h"
#include "frontend/syntax/Source.h"
#include "llvm/Support/JSON.h"

namespace pp {

/// The fields of the main buffer of a source.
class FolderConfig {
public:
  explicit FolderConfig(Source &source);

  /// Parses the file; refuses what is no object of fields, and a field that stands there twice.
  mlir::LogicalResult read();
  /// From now on the fields are those of the object `name`; an error if it is none.
  mlir::LogicalResult enter(llvm::StringRef name);
  void set(llvm::StringRef name, llvm::json::Value value) { fields[name] = std::move(value); }
  /// A field; that of an object in a field, too, by both names with `_` between them. Null: there is none.
  const llvm::json::Value *get(llvm::StringRef name) const;
  /// The field, an object, in which `get` finds this one; empty if it is a field of the file itself, or there is none.
  llvm::StringRef objectOf(llvm::StringRef name) const;
  /// The place of the field, or the begin of the file if it has no such field.
  llvm::SMLoc at(llvm::StringRef name) const;

  llvm::SMLoc begin;
  std::vector<Name> keys; ///< in the order of the file

private:
  void findKeys(llvm::StringRef text);

  Source &source;
  llvm::StringRef text;
  llvm::json::Object fields;
};

} // namespace pp

#endif // PP_FRONTEND_FOLDERCONFIG_H
