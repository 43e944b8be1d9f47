// Parses a config.json, and finds where its fields stand, so that an error can point at one.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "frontend/model/FolderConfig.h"

using namespace llvm;
using namespace pp;

FolderConfig::FolderConfig(Source &source) : source(source), text(source.text(source.manager.getMainFileID())) {
  begin = SMLoc::getFromPointer(text.data());
}

LogicalResult FolderConfig::read() {
  Expected<json::Value> parsed = json::parse(text);
  if (!parsed)
    return source.error(begin) << "this is no JSON: " << toString(parsed.takeError());
  if (!parsed->getAsObject())
    return source.error(begin) << "expected an object of fields";
  fields = std::move(*parsed->getAsObject());
  return findKeys();
}

SMLoc FolderConfig::at(StringRef name) const {
  auto found = find_if(keys, [&](const Name &key) { return key.text == name; });
  return found == keys.end() ? begin : found->at;
}

/// The strings of the outermost object that a colon follows.
LogicalResult FolderConfig::findKeys() {
  int64_t depth = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '"') {
      depth += text[i] == '{' || text[i] == '[';
      depth -= text[i] == '}' || text[i] == ']';
      continue;
    }
    size_t end = i + 1;
    for (; text[end] != '"'; ++end)
      end += text[end] == '\\';
    if (depth == 1 && text.substr(end + 1).ltrim().starts_with(":"))
      if (failed(add({source.intern(text.slice(i + 1, end)), SMLoc::getFromPointer(text.data() + i)})))
        return failure();
    i = end;
  }
  return success();
}

LogicalResult FolderConfig::add(Name key) {
  for (const Name &first : keys)
    if (first.text == key.text) {
      mlir::InFlightDiagnostic error = source.error(key.at) << "`" << key.text << "` stands here twice";
      error.attachNote(source.location(first.at)) << "first here";
      return error;
    }
  keys.push_back(key);
  return success();
}
