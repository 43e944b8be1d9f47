// Finds the values that parts of a model take from parts further before them, and says why one cannot be had.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "frontend/model/ModelSkips.h"

using namespace llvm;
using namespace pp;

FailureOr<ModelSkips::Value> ModelSkips::find(const ModelPart &reader, size_t parameter) {
  Name name = reader.parameters[parameter], source = reader.sources[parameter];
  if (source.text.empty())
    return Value();
  SmallVector<StringRef> parts, defined;
  for (const ModelPart &part : model.parts)
    parts.push_back(part.name.text);
  const ModelPart *maker = find_if(model.parts, [&](const ModelPart &part) { return part.name.text == source.text; });
  if (maker == model.parts.end())
    return evaluator.fail(source.at, "the model has no part `" + source.text + "`" + didYouMean(source.text, parts));
  if (maker->kind)
    return evaluator.fail(source.at,
                          "part `" + source.text + "` is in every layer; `from` names a part that exists once",
                          maker->name.at, "defined here");
  if (maker >= &reader)
    return evaluator.fail(source.at,
                          "part `" + reader.name.text + "` takes values of parts before it, and `" + source.text +
                              "` is " + (maker == &reader ? "the part itself" : "after it"),
                          maker->name.at, "defined here");
  for (const ModelPart::Definition &definition : maker->definitions)
    for (const Name &made : definition.names)
      defined.push_back(made.text);
  if (!is_contained(defined, name.text))
    return evaluator.fail(
        name.at, "part `" + source.text + "` names no `" + name.text + "` with `let`" + didYouMean(name.text, defined),
        maker->name.at, "defined here");
  std::string full = nameOf(*maker, name);
  return Value{builder.getStringAttr(full), types.lookup(full)};
}

SmallVector<Name> ModelSkips::wantedOf(const ModelPart &part) const {
  SmallVector<Name> wanted;
  for (const ModelPart &reader : model.parts)
    for (auto [name, source] : zip(reader.parameters, reader.sources))
      if (!part.kind && source.text == part.name.text && &reader > &part &&
          none_of(wanted, [&, name = name](const Name &other) { return other.text == name.text; }))
        wanted.push_back(name);
  return wanted;
}
