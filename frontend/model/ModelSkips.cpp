// Finds what parts read by name, values of parts further before them and columns, and says why one cannot be had.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "frontend/model/ModelSkips.h"
#include "dialect/nn/Nn.h"
#include "frontend/model/ModelWeights.h"
#include <cmath>

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

//===-- Columns -------------------------------------------------------------------------------------------------===//

/// What datasets have beside columns, and what parts take by these names.
static constexpr StringRef kTaken[] = {"tokens", "documents", "counted", "targets", "source", "starts"};

FailureOr<mlir::Attribute> ModelColumns::absentOf(const ColumnDeclaration &declared) {
  FailureOr<double> number = evaluator.evaluateNumber(declared.absent, parameters);
  if (failed(number))
    return failure();
  const int64_t *tokens = nullptr;
  for (const Binding &bound : parameters.bindings)
    tokens = bound.name.text == "vocab" ? bound.value.asInt() : tokens;
  if (declared.isInt && tokens && !(*number == std::trunc(*number) && *number >= 0 && *number < double(*tokens)))
    return evaluator.fail(declared.absent->at, "column `" + declared.name.text + "` holds ints; expected 0 to " +
                                                   Twine(*tokens - 1) + ", a token of the vocabulary, got " +
                                                   pp::Value(*number).text());
  if (!std::isfinite(*number))
    return evaluator.fail(declared.absent->at,
                          "expected a finite number as the default of column `" + declared.name.text + "`");
  return builder.getF64FloatAttr(*number);
}

FailureOr<ModelColumns::Column> ModelColumns::columnOf(const ColumnDeclaration &declared) {
  Name name = declared.name;
  if (is_contained(kTaken, name.text))
    return evaluator.fail(name.at, "`" + name.text + "` is no column: it is what " +
                                       (name.text == "documents" || name.text == "counted"
                                            ? "every dataset may have"
                                            : "a part takes, as in `part head(x, targets)`"));
  if (isMade(name.text))
    return evaluator.fail(name.at, "`" + name.text + "` is no column: `data .., documents = true, group = N` makes it");
  if (const Binding *bound = parameters.find(name.text))
    return evaluator.fail(name.at, "`" + name.text + "` is a parameter of the model already", bound->name.at,
                          "declared here");
  if (const Column *other = find(name.text))
    return evaluator.fail(name.at, "column `" + name.text + "` is declared twice", other->name.at,
                          "first declared here");
  SmallVector<int64_t> dimensions = {shape.batch, shape.sequence};
  mlir::NamedAttrList said;
  said.set("name", builder.getStringAttr(name.text));
  if (declared.width) {
    FailureOr<int64_t> width = evaluator.evaluateInt(declared.width, parameters, "as the width of a column");
    if (failed(width))
      return failure();
    if (*width < 1)
      return evaluator.fail(declared.width->at,
                            "column `" + name.text + "` has at least 1 value for each token, got " + Twine(*width));
    dimensions.push_back(*width);
    said.set("width", builder.getI64IntegerAttr(*width));
  }
  if (std::string tooLarge = saysTooLarge(dimensions); !tooLarge.empty())
    return evaluator.fail(name.at, "column `" + name.text + "` " + tooLarge);
  if (declared.isInt)
    said.set("int", builder.getBoolAttr(true));
  if (declared.absent) {
    FailureOr<mlir::Attribute> absent = absentOf(declared);
    if (failed(absent))
      return failure();
    said.set("default", *absent);
  }
  mlir::Type element = declared.isInt ? builder.getI32Type() : nn::sumType(shape.element);
  return Column{name, mlir::RankedTensorType::get(dimensions, element), said.getDictionary(builder.getContext())};
}

LogicalResult ModelColumns::read() {
  for (const ColumnDeclaration &declared : model.columns) {
    if (columns.size() == nn::kMostColumns)
      return evaluator.fail(declared.name.at, "a model has at most " + Twine(nn::kMostColumns) + " columns; `" +
                                                  declared.name.text + "` is one more");
    FailureOr<Column> column = columnOf(declared);
    if (failed(column))
      return failure();
    columns.push_back(*column);
  }
  if (shape.group > 1) {
    addMade("group", builder.getI32Type());
    addMade("member", nn::sumType(shape.element));
  }
  return success();
}

void ModelColumns::addMade(StringRef name, mlir::Type element) {
  mlir::NamedAttrList said;
  said.set("name", builder.getStringAttr(name));
  said.set("made", builder.getBoolAttr(true));
  if (element.isInteger(32))
    said.set("int", builder.getBoolAttr(true));
  columns.push_back({{name, model.parts.back().name.at},
                     mlir::RankedTensorType::get({shape.batch, shape.sequence}, element),
                     said.getDictionary(builder.getContext())});
}

const ModelColumns::Column *ModelColumns::find(StringRef name) const {
  const auto *found = find_if(columns, [&](const Column &column) { return column.name.text == name; });
  return found == columns.end() ? nullptr : found;
}

void ModelColumns::finish(mlir::func::FuncOp part, unsigned first, SmallVectorImpl<mlir::Attribute> &list) {
  unsigned at = first;
  for (const Column &column : columns) {
    if (part.getArgument(at).use_empty()) {
      part.eraseArgument(at);
      continue;
    }
    part.setArgAttr(at++, nn::kColumnAttr, builder.getI64IntegerAttr(static_cast<int64_t>(list.size())));
    list.push_back(column.said);
  }
}
