// Parses a config.json, and finds where its fields stand, so that an error can point at one.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "frontend/model/FolderConfig.h"
#include "dialect/Input.h"

using namespace llvm;
using namespace pp;

FolderConfig::FolderConfig(Source &source) : source(source), text(source.text(source.manager.getMainFileID())) {
  begin = SMLoc::getFromPointer(text.data());
}

LogicalResult FolderConfig::read() {
  TextError wrong;
  std::optional<json::Value> parsed = parseJson(text, wrong);
  if (!parsed) {
    auto at = [&](size_t byte) { return SMLoc::getFromPointer(text.data() + byte); };
    mlir::InFlightDiagnostic error = source.error(at(wrong.at)) << wrong.what;
    if (wrong.first)
      error.attachNote(source.location(at(*wrong.first))) << "first here";
    return error;
  }
  if (!parsed->getAsObject())
    return source.error(begin) << "expected an object of fields";
  fields = std::move(*parsed->getAsObject());
  findKeys(text);
  return success();
}

LogicalResult FolderConfig::enter(StringRef name) {
  const json::Value *value = fields.get(name);
  if (!value || !value->getAsObject())
    return source.error(at(name)) << "expected an object for `" << name << "`, the model that is trained";
  begin = at(name);
  json::Object inner = *value->getAsObject();
  fields = std::move(inner);
  StringRef rest(begin.getPointer(), text.end() - begin.getPointer()); // the strings before the object have no braces
  keys.clear();
  findKeys(rest.drop_front(rest.find('{')));
  return success();
}

StringRef FolderConfig::objectOf(StringRef name) const {
  for (const Name &key : keys) {
    StringRef rest = name;
    const json::Object *inner = rest.consume_front(key.text) && rest.consume_front("_") && !fields.get(name)
                                    ? fields.getObject(key.text)
                                    : nullptr;
    if (inner && inner->get(rest))
      return key.text;
  }
  return "";
}

const json::Value *FolderConfig::get(StringRef name) const {
  StringRef object = objectOf(name);
  return object.empty() ? fields.get(name) : fields.getObject(object)->get(name.drop_front(object.size() + 1));
}

SMLoc FolderConfig::at(StringRef name) const {
  auto found = find_if(keys, [&](const Name &key) { return key.text == name; });
  return found == keys.end() ? begin : found->at;
}

/// The strings of the outermost object that a colon follows.
void FolderConfig::findKeys(StringRef text) {
  int64_t depth = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '"') {
      depth += text[i] == '{' || text[i] == '[';
      depth -= text[i] == '}' || text[i] == ']';
      if (depth == 0 && text[i] == '}')
        return;
      continue;
    }
    size_t end = i + 1;
    for (; text[end] != '"'; ++end)
      end += text[end] == '\\';
    if (depth == 1 && text.substr(end + 1).ltrim().starts_with(":"))
      keys.push_back({source.intern(text.slice(i + 1, end)), SMLoc::getFromPointer(text.data() + i)});
    i = end;
  }
}
