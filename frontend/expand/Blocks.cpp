// Puts the text of blocks in the place of their calls, and values in the place of names in braces.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//   block project(x; at, out) { weight w[64, out] as transpose("{at}.weight")  return linear(x, w) }
//   part up(x) { let h = project(x, at = "mlp.up", out = 2 * 64)  return relu(h) }
//     ~~>   part up(x) { weight project.w[64, 128] as transpose("mlp.up.weight")
//                        let project.return = linear(x, project.w)  let h = project.return  return relu(h) }
//
// Values of a block become `let`s of the part, options become numbers and texts, and the block's own names get its name
// in front, with a dot, which no name of a text has. A branch with a call that is not taken is not written out.
#include "frontend/expand/Expand.h"
#include "frontend/model/ModelOps.h"
#include "llvm/ADT/StringMap.h"
#include "llvm/ADT/StringSet.h"

using namespace llvm;
using namespace pp;

/// Blocks in blocks; more are a circle.
static constexpr unsigned kDeepest = 50;

namespace {
/// A part, or a block that is called in it, while it is written out.
struct Text {
  const ModelBlock *block = nullptr; ///< null: the part
  unsigned depth = 0;
  SmallVector<SMLoc> calls;       ///< that led here, outermost first
  StringMap<Expr *> names;        ///< what stands in the place of the text's own names
  SmallVector<StringRef> options; ///< of the block
};

class BlockExpander {
public:
  BlockExpander(Source &source, Evaluator &evaluator, ArrayRef<const ModelBlock *> blocks, Scope &parameters,
                StringRef prefix)
      : source(source), evaluator(evaluator), blocks(blocks), parameters(parameters), inFiles(prefix) {}

  LogicalResult expand(ExpandedModel &expanded) {
    Text text;
    for (WeightDeclaration &weight : expanded.weights) {
      FailureOr<WeightDeclaration> made = rewriteWeight(weight, weight.name, text);
      if (failed(made))
        return failure();
      weight = *made;
    }
    expanded.model.weights = expanded.weights;
    for (ModelPart &part : expanded.parts) {
      if (part.isWrong)
        continue;
      enterPart(expanded.model, part, parameters);
      tensors.clear();
      for (const WeightDeclaration &weight : expanded.model.weights)
        tensors.insert(weight.name.text);
      for (const ColumnDeclaration &column : expanded.model.columns)
        tensors.insert(column.name.text);
      for (const Name &name : part.parameters)
        tensors.insert(name.text);
      part.isWrong = failed(expandPart(part));
    }
    expanded.model.parts = expanded.parts;
    return success();
  }

private:
  template <typename T> ArrayRef<T> keep(ArrayRef<T> items) { return items.copy(source.arena()); }

  LogicalResult expandPart(ModelPart &part) {
    Text text;
    weights.clear();
    definitions.clear();
    counts.clear();
    SmallVector<Expr *> results;
    if (failed(writeOut(part, text, "", results)))
      return failure();
    part.weights = keep(ArrayRef<WeightDeclaration>(weights));
    part.definitions = keep(ArrayRef<ModelBody::Definition>(definitions));
    part.results = keep(ArrayRef<Expr *>(results));
    return success();
  }

  //===-- Bodies ------------------------------------------------------------------------------------------------===//

  /// Appends weights and definitions, with `prefix` in front of their names, and gives what is returned.
  LogicalResult writeOut(const ModelBody &body, Text &text, StringRef prefix, SmallVectorImpl<Expr *> &results) {
    for (const WeightDeclaration &weight : body.weights) {
      Name name = named(prefix, weight.name);
      FailureOr<WeightDeclaration> made = rewriteWeight(weight, name, text);
      if (failed(made) || failed(define(text, weight.name, name)))
        return failure();
      weights.push_back(*made);
    }
    for (const ModelBody::Definition &definition : body.definitions)
      if (failed(let(definition, text, prefix)))
        return failure();
    for (Expr *result : body.results) {
      FailureOr<Expr *> made = rewrite(result, text);
      if (failed(made))
        return failure();
      results.push_back(*made);
    }
    return success();
  }

  LogicalResult let(const ModelBody::Definition &definition, Text &text, StringRef prefix) {
    SmallVector<Expr *> values;
    Expr *written = definition.value;
    while (written->kind == Expr::Conditional && hasCall(written)) {
      FailureOr<Expr *> taken = decided(written, text);
      if (failed(taken))
        return failure();
      written = *taken;
    }
    if (const ModelBlock *block = find(written)) {
      if (failed(call(block, written, text, values)))
        return failure();
    } else {
      FailureOr<Expr *> made = rewrite(written, text);
      if (failed(made))
        return failure();
      values.push_back(*made);
    }
    if (values.size() == 1 && definition.names.size() == 1 && isKnown(values.front())) {
      Name name = definition.names.front();
      FailureOr<Expr *> value = valueOf(values.front(), name.text);
      return failed(value) ? failure() : put(text, name, *value);
    }
    SmallVector<Name> names;
    for (const Name &name : definition.names) {
      names.push_back(named(prefix, name));
      if (failed(define(text, name, names.back())))
        return failure();
    }
    Expr *value = values.front();
    if (values.size() > 1) {
      value = copyOf(definition.value);
      value->kind = Expr::List;
      value->operands = keep(ArrayRef<Expr *>(values));
      value->labels = {};
    }
    definitions.push_back({keep(ArrayRef<Name>(names)), value, keep(ArrayRef<SMLoc>(text.calls))});
    return success();
  }

  Name named(StringRef prefix, Name name) {
    return prefix.empty() ? name : Name{source.intern((prefix + "." + name.text).str()), name.at};
  }

  /// From now on `name` of the text is the tensor `meant`.
  LogicalResult define(Text &text, Name name, Name meant) {
    tensors.insert(meant.text);
    if (!text.block)
      return success(); // the part's names stay, and ModelBuilder finds those that are given twice
    return put(text, name, variable(meant.text, name.at, name.text));
  }

  LogicalResult put(Text &text, Name name, Expr *stands) {
    if (text.names.try_emplace(name.text, stands).second)
      return success();
    return evaluator.fail(name.at, "`" + name.text + "` is defined twice" +
                                       (text.block ? " in block `" + text.block->name.text + "`" : ""));
  }

  FailureOr<WeightDeclaration> rewriteWeight(const WeightDeclaration &weight, Name name, Text &text) {
    WeightDeclaration made = weight;
    made.name = name;
    made.calls = keep(ArrayRef<SMLoc>(text.calls));
    SmallVector<Expr *> dimensions;
    for (Expr *dimension : weight.dimensions) {
      FailureOr<Expr *> size = rewrite(dimension, text);
      if (failed(size))
        return failure();
      dimensions.push_back(*size);
    }
    made.dimensions = keep(ArrayRef<Expr *>(dimensions));
    const StringSet<> starts = {"one", "zero"};
    for (Expr **expr : {&made.init, &made.checkpoint, &made.condition}) {
      FailureOr<Expr *> one = *expr ? rewrite(*expr, text, starts) : FailureOr<Expr *>(nullptr);
      if (failed(one))
        return failure();
      *expr = *one;
    }
    while (made.checkpoint && made.checkpoint->kind == Expr::Conditional) { // the name that is meant
      FailureOr<Expr *> taken = branch(made.checkpoint);
      if (failed(taken))
        return failure();
      made.checkpoint = *taken;
    }
    if (made.checkpoint && !inFiles.empty())
      made.checkpoint = prefixed(made.checkpoint);
    return made;
  }

  /// A prefix that begins with `model.` stands in the place of it; names without it, such as lm_head, stay.
  std::string inFile(StringRef name) const {
    const bool replaces = inFiles.starts_with("model."), its = name.consume_front(replaces ? "model." : "");
    return ((replaces && !its ? "" : inFiles) + name).str();
  }

  /// A name in checkpoints, "..", or transpose("..").
  Expr *prefixed(const Expr *as) {
    Expr *made = copyOf(as);
    if (made->kind == Expr::String)
      made->name = source.intern(inFile(made->name));
    SmallVector<Expr *> operands;
    for (const Expr *operand : as->operands)
      operands.push_back(prefixed(operand));
    made->operands = keep(ArrayRef<Expr *>(operands));
    return made;
  }

  //===-- Calls -------------------------------------------------------------------------------------------------===//

  /// The block that is called: of the file of the call, else of the user or of the library as the call is. A function
  /// of the user goes before a block of the library.
  const ModelBlock *find(const Expr *expr) const {
    if (expr->kind != Expr::Call)
      return nullptr;
    auto fileOf = [&](SMLoc at) { return source.manager.FindBufferContainingLoc(at); };
    bool isOfLibrary = source.isOfLibrary(expr->at);
    const ModelBlock *found = nullptr, *elsewhere = nullptr;
    for (const ModelBlock *block : blocks) {
      if (block->name.text != expr->name)
        continue;
      if (fileOf(block->name.at) == fileOf(expr->at))
        return block;
      (source.isOfLibrary(block->name.at) == isOfLibrary ? found : elsewhere) = block;
    }
    return found || isOfLibrary || evaluator.globals.find(expr->name) ? found : elsewhere;
  }

  bool hasCall(const Expr *expr) const {
    return find(expr) || any_of(expr->operands, [&](const Expr *operand) { return hasCall(operand); });
  }

  LogicalResult failCall(const ModelBlock *block, SMLoc at, const Twine &message) {
    return evaluator.fail(at, message, block->name.at, "`" + block->name.text + "` is declared here");
  }

  /// Writes a block out, and gives the names of what it returns.
  LogicalResult call(const ModelBlock *block, const Expr *expr, Text &around, SmallVectorImpl<Expr *> &results) {
    evaluator.setCallers(around.calls);
    StringRef name = block->name.text;
    if (block->isWrong)
      return failure(); // that is told
    if (around.depth == kDeepest)
      return failCall(block, expr->at,
                      "block `" + name + "` calls itself, or " + Twine(kDeepest) + " blocks are nested");
    Text text;
    text.block = block;
    text.depth = around.depth + 1;
    text.calls = around.calls;
    text.calls.push_back(expr->at);
    unsigned number = ++counts[name];
    std::string prefix = name.str() + (number > 1 ? std::to_string(number) : "");
    if (failed(bindValues(block, expr, around, text, prefix)) || failed(bindOptions(block, expr, around, text)))
      return failure();
    SmallVector<Expr *> returned;
    evaluator.setCallers(text.calls);
    if (failed(writeOut(*block, text, prefix, returned)))
      return failure();
    evaluator.setCallers(around.calls);
    for (auto [i, value] : enumerate(returned)) {
      std::string own = prefix + ".return" + (returned.size() > 1 ? std::to_string(i) : "");
      StringRef result = value->kind == Expr::Variable ? value->name : source.intern(own);
      if (value->kind != Expr::Variable) {
        Name made{result, value->at};
        tensors.insert(result);
        definitions.push_back({keep(ArrayRef<Name>(made)), value, keep(ArrayRef<SMLoc>(text.calls))});
      }
      results.push_back(variable(result, expr->at, expr->text));
    }
    return success();
  }

  LogicalResult bindValues(const ModelBlock *block, const Expr *expr, Text &around, Text &text, StringRef prefix) {
    SmallVector<Expr *> given;
    for (auto [i, operand] : enumerate(expr->operands))
      if (expr->labels[i].text.empty())
        given.push_back(operand);
    if (given.size() != block->values.size())
      return failCall(block, expr->at,
                      "block `" + block->name.text + "` takes " + Twine(block->values.size()) +
                          (block->values.size() == 1 ? " value" : " values") + ", got " + Twine(given.size()) +
                          (given.size() > block->values.size() ? "; options have names: `NAME = ..`" : ""));
    for (auto [parameter, operand] : zip(block->values, given)) {
      FailureOr<Expr *> value = rewrite(operand, around);
      if (failed(value))
        return failure();
      if ((*value)->kind == Expr::Variable) {
        if (failed(put(text, parameter, *value)))
          return failure();
        continue;
      }
      Name made = named(prefix, parameter);
      made.at = operand->at;
      definitions.push_back({keep(ArrayRef<Name>(made)), *value, keep(ArrayRef<SMLoc>(around.calls))});
      if (failed(define(text, parameter, made)))
        return failure();
    }
    return success();
  }

  LogicalResult bindOptions(const ModelBlock *block, const Expr *expr, Text &around, Text &text) {
    for (const Parameter &option : block->parameters)
      text.options.push_back(option.name.text);
    for (size_t i = 0; i < expr->operands.size(); ++i)
      if (Name label = expr->labels[i]; !label.text.empty() && !is_contained(text.options, label.text))
        return failCall(block, label.at,
                        "block `" + block->name.text + "` has no option `" + label.text + "`" +
                            didYouMean(label.text, text.options) +
                            (text.options.empty() ? "" : "; " + thereAre(text.options)));
    for (const Parameter &option : block->parameters) {
      StringRef name = option.name.text;
      Expr *given = nullptr;
      for (auto [i, operand] : enumerate(expr->operands)) {
        if (expr->labels[i].text != name)
          continue;
        if (given)
          return failCall(block, expr->labels[i].at, "`" + name + "` is given twice");
        given = operand;
      }
      if (!given && !option.value)
        return failCall(block, expr->at, "block `" + block->name.text + "` needs the option `" + name + "`");
      FailureOr<Expr *> made = given ? rewrite(given, around) : rewrite(option.value, text);
      FailureOr<Expr *> value = failed(made) ? made : valueOf(*made, name);
      if (failed(value) || failed(put(text, option.name, *value)))
        return failure();
    }
    return success();
  }

  //===-- Expressions -------------------------------------------------------------------------------------------===//

  Expr *copyOf(const Expr *expr) { return new (source.arena()) Expr(*expr); }
  static Expr named(Expr::Kind kind, StringRef name, SMLoc at, StringRef text) {
    Expr made{};
    made.kind = kind;
    made.name = name;
    made.at = at;
    made.text = text;
    return made;
  }
  Expr *variable(StringRef name, SMLoc at, StringRef text) {
    return new (source.arena()) Expr(named(Expr::Variable, name, at, text));
  }

  /// Whether an expression is known before the model is built: it names no tensor, and what it names is there.
  bool isKnown(const Expr *expr) {
    if (expr->kind == Expr::Variable)
      return !tensors.contains(expr->name) && (parameters.find(expr->name) || expr->name == "layers");
    if (expr->kind == Expr::Call && findModelOp(expr->name) && !evaluator.globals.find(expr->name))
      return false;
    if (expr->kind == Expr::Comprehension)
      return all_of(expr->generators, [&](const Generator &generator) { return isKnown(generator.list); });
    return all_of(expr->operands, [&](const Expr *operand) { return isKnown(operand); });
  }

  bool namesTensor(const Expr *expr) {
    return (expr->kind == Expr::Variable && tensors.contains(expr->name)) ||
           any_of(expr->operands, [&](const Expr *operand) { return namesTensor(operand); });
  }

  /// What an option stands for: a parameter of the model stays its name, so that errors can say who set it; a list is
  /// bound to a name of its own.
  FailureOr<Expr *> valueOf(Expr *expr, StringRef name) {
    if (expr->kind == Expr::Variable && parameters.find(expr->name))
      return expr;
    FailureOr<Value> value = evaluator.evaluate(expr, parameters);
    if (failed(value))
      return failure();
    auto *made = new (source.arena()) Expr(named(Expr::Integer, {}, expr->at, expr->text));
    if (value->asInt()) {
      made->integer = *value->asInt();
    } else if (value->asBool()) {
      made->kind = Expr::Boolean;
      made->integer = *value->asBool();
    } else if (value->asNumber()) {
      made->kind = Expr::Number;
      made->number = *value->asNumber();
    } else if (value->asString()) {
      made->kind = Expr::String;
      made->name = source.intern(*value->asString());
    } else {
      Name bound{source.intern((name + "." + Twine(++lists)).str()), expr->at};
      parameters.bind(bound, std::move(*value));
      return variable(bound.text, expr->at, expr->text);
    }
    return made;
  }

  /// The branch that is taken, as it stands in the text.
  FailureOr<Expr *> decided(const Expr *conditional, Text &text, const StringSet<> &bound = {}) {
    FailureOr<Expr *> condition = rewrite(conditional->operands[0], text, bound);
    if (failed(condition))
      return failure();
    Expr *operands[] = {*condition, conditional->operands[1], conditional->operands[2]};
    Expr whole = *conditional;
    whole.operands = operands;
    return branch(&whole);
  }

  FailureOr<Expr *> rewrite(Expr *expr, Text &text, const StringSet<> &bound = {}) {
    if (expr->kind == Expr::String)
      return rewriteString(expr, text);
    if (expr->kind == Expr::Variable)
      return bound.contains(expr->name) ? FailureOr<Expr *>(expr) : rewriteName(expr, text);
    if (const ModelBlock *block = find(expr)) {
      SmallVector<Expr *> results;
      if (failed(call(block, expr, text, results)))
        return failure();
      if (results.size() != 1)
        return failCall(block, expr->at,
                        "block `" + block->name.text + "` gives " + Twine(results.size()) +
                            " values; name them with `let a, b, .. = ..`");
      return results.front();
    }
    if (expr->kind == Expr::Conditional && (hasCall(expr->operands[1]) || hasCall(expr->operands[2]))) {
      FailureOr<Expr *> taken = decided(expr, text, bound);
      return failed(taken) ? taken : rewrite(*taken, text, bound);
    }
    if (expr->operands.empty() && expr->generators.empty())
      return expr;
    Expr *made = copyOf(expr);
    StringSet<> inner = bound;
    SmallVector<Generator> generators(expr->generators);
    for (Generator &generator : generators) {
      FailureOr<Expr *> list = rewrite(generator.list, text, inner);
      if (failed(list))
        return failure();
      generator.list = *list;
      for (const Name &name : generator.names)
        inner.insert(name.text);
    }
    made->generators = keep(ArrayRef<Generator>(generators));
    SmallVector<Expr *> operands;
    for (Expr *operand : expr->operands) {
      FailureOr<Expr *> one = rewrite(operand, text, inner);
      if (failed(one))
        return failure();
      operands.push_back(*one);
    }
    made->operands = keep(ArrayRef<Expr *>(operands));
    if (expr->filter) {
      FailureOr<Expr *> filter = rewrite(expr->filter, text, inner);
      if (failed(filter))
        return failure();
      made->filter = *filter;
    }
    return made;
  }

  /// The branch of a conditional that is taken.
  FailureOr<Expr *> branch(const Expr *conditional) {
    const Expr *condition = conditional->operands[0];
    if (namesTensor(condition))
      return evaluator.fail(condition->at, "`" + condition->text +
                                               "` is a tensor; `if` chooses when the model is compiled, and "
                                               "where(c, x, y) for each element");
    return takenBranch(evaluator, conditional, parameters);
  }

  FailureOr<Expr *> rewriteName(Expr *expr, Text &text) {
    auto found = text.names.find(expr->name);
    if (found != text.names.end()) {
      Expr *made = copyOf(found->second);
      made->at = expr->at;
      made->text = expr->text;
      return made;
    }
    if (!text.block || evaluator.globals.find(expr->name) || is_contained({"layers", "document", "group"}, expr->name))
      return expr;
    SmallVector<StringRef> names;
    for (const auto &known : text.names)
      names.push_back(known.getKey());
    return evaluator.fail(expr->at,
                          "`" + expr->name + "` is not defined in block `" + text.block->name.text + "`" +
                              didYouMean(expr->name, names) +
                              (parameters.find(expr->name) ? "; a block sees its own values and options alone" : ""));
  }

  /// `{l}`, the layer, `{k}`, `{2k+1}`, `{e}`, `{n}` and `{n+1}` stay: they are of the tensor's name.
  static bool isOfNames(StringRef name) {
    return name == "e" || name == "n" || name.starts_with("n+") || nn::isNumbered(("{" + name + "}").str());
  }

  FailureOr<Expr *> rewriteString(Expr *expr, Text &text) {
    if (!expr->name.contains('{'))
      return expr;
    std::string made;
    for (StringRef rest = expr->name; !rest.empty();) {
      auto [before, behind] = rest.split('{');
      made += before;
      if (before.size() == rest.size())
        break;
      auto [name, after] = behind.split('}');
      rest = after;
      if (isOfNames(name) || name.size() == behind.size()) {
        made += ("{" + name + (name.size() == behind.size() ? "" : "}")).str();
        continue;
      }
      Expr inBraces = named(Expr::Variable, source.intern(name), expr->at, source.intern(name));
      FailureOr<Expr *> stands = isKnownName(inBraces.name, text) ? rewriteName(&inBraces, text) : FailureOr<Expr *>();
      if (failed(stands))
        return evaluator.fail(expr->at, "`{" + name +
                                            "}` is no value here; a name in braces is a string or an int that "
                                            "is known, `{l}` the layer, `{k}` its number among those of its kind, "
                                            "`{e}` the expert, `{n}` the number of layers");
      FailureOr<Value> value = evaluator.evaluate(*stands, parameters);
      if (failed(value))
        return failure();
      if (!value->asString() && !value->asInt())
        return evaluator.fail(expr->at, "`{" + name + "}` must be a string or an int, got " + value->type() + " " +
                                            value->text());
      made += value->asString() ? value->asString()->str() : value->text();
    }
    Expr *copy = copyOf(expr);
    copy->name = source.intern(made);
    return copy;
  }

  bool isKnownName(StringRef name, Text &text) {
    auto found = text.names.find(name);
    return found != text.names.end() ? isKnown(found->second) : !text.block && parameters.find(name);
  }

  Source &source;
  Evaluator &evaluator;
  ArrayRef<const ModelBlock *> blocks;
  Scope &parameters;
  StringRef inFiles;                              ///< in front of names in checkpoints
  unsigned lists = 0;                             ///< that were bound
  StringMap<unsigned> counts;                     ///< calls of a block in the part
  StringSet<> tensors;                            ///< names of the part
  SmallVector<WeightDeclaration> weights;         ///< of the part
  SmallVector<ModelBody::Definition> definitions; ///< of the part
};
} // namespace

FailureOr<bool> pp::holds(Evaluator &evaluator, const Expr *condition, Scope &parameters, StringRef word) {
  FailureOr<Value> value = evaluator.evaluate(condition, parameters);
  if (failed(value))
    return failure();
  if (value->asBool())
    return *value->asBool();
  return evaluator.fail(condition->at,
                        "expected true or false after `" + word + "`, got " + value->type() + " " + value->text());
}

FailureOr<Expr *> pp::takenBranch(Evaluator &evaluator, const Expr *conditional, Scope &parameters) {
  FailureOr<bool> is = holds(evaluator, conditional->operands[0], parameters, "if");
  return failed(is) ? FailureOr<Expr *>() : conditional->operands[*is ? 1 : 2];
}

LogicalResult pp::expandBlocks(Source &source, Evaluator &evaluator, ArrayRef<const ModelBlock *> blocks,
                               Scope &parameters, StringRef prefix, ExpandedModel &expanded) {
  LogicalResult made = BlockExpander(source, evaluator, blocks, parameters, prefix).expand(expanded);
  evaluator.setCallers({});
  return made;
}
