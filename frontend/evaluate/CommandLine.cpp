// Reads what -D, --schedule and --cluster say, and remembers where they say it.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "frontend/evaluate/CommandLine.h"
#include "frontend/syntax/Lexer.h"

using namespace llvm;
using namespace pp;

CommandLine::CommandLine(Source &source, const FrontendOptions &options) : source(source) {
  std::string text;
  for (const auto &[name, value] : options.defines)
    text += "-D " + name + "=" + value + "\n";
  size_t scheduleAt = text.size() + strlen("--schedule=");
  if (!options.schedule.empty())
    text += "--schedule=" + options.schedule + "\n";
  size_t clusterAt = text.size() + strlen("--cluster=");
  if (!options.cluster.empty())
    text += "--cluster=" + options.cluster + "\n";
  unsigned buffer = source.manager.AddNewSourceBuffer(MemoryBuffer::getMemBufferCopy(text, kCommandLine), SMLoc());
  const char *at = source.manager.getMemoryBuffer(buffer)->getBufferStart();
  if (!options.schedule.empty())
    schedule = SMLoc::getFromPointer(at + scheduleAt);
  if (!options.cluster.empty())
    cluster = SMLoc::getFromPointer(at + clusterAt);
  for (const auto &[name, value] : options.defines) {
    const char *nameAt = at + strlen("-D "), *valueAt = nameAt + name.size() + 1;
    defines.push_back(
        {name, StringRef(valueAt, value.size()), SMLoc::getFromPointer(nameAt), SMLoc::getFromPointer(valueAt)});
    at = valueAt + value.size() + 1;
  }
}

FailureOr<std::vector<Override>> CommandLine::readDefines() {
  std::vector<Override> overrides;
  for (const Define &define : defines) {
    FailureOr<Value> value = read(define.text, define.valueAt);
    if (failed(value))
      return failure();
    overrides.push_back({define.name, *value, "", "", define.at, define.valueAt});
  }
  return overrides;
}

FailureOr<Value> CommandLine::read(StringRef text, SMLoc at) {
  int64_t count;
  double number;
  if (!text.getAsInteger(10, count))
    return Value(count);
  if (!text.empty() && StringRef("+-.0123456789").contains(text[0]) && !text.getAsDouble(number)) {
    if (const char *wrong = readNumber(text, number))
      return source.error(at) << "`" << text << "` is " << wrong;
    return Value(number);
  }
  if (text == "true" || text == "false")
    return Value(text == "true");
  StringRef inside = text;
  if (!inside.consume_front("[") || !inside.consume_back("]"))
    return Value(source.intern(text));
  Value::List items;
  SmallVector<StringRef> words;
  inside.split(words, ',', -1, /*KeepEmpty=*/false);
  if (inside.contains('[') || inside.contains(']'))
    return source.error(at) << "a list of lists cannot be given here";
  for (StringRef word : words) {
    FailureOr<Value> item = read(word.trim(), at);
    if (failed(item))
      return failure();
    items.push_back(*item);
  }
  return Value(std::move(items));
}

void pp::addNames(const Expr *expr, SmallVectorImpl<StringRef> &names) {
  if (!expr)
    return;
  if (expr->kind == Expr::Variable)
    names.push_back(expr->name);
  for (const Expr *operand : expr->operands)
    addNames(operand, names);
  for (const Generator &generator : expr->generators)
    addNames(generator.list, names);
  addNames(expr->filter, names);
}

SMLoc pp::givenOf(const Expr *expr, Scope &scope) {
  SmallVector<StringRef> names;
  addNames(expr, names);
  for (StringRef name : names) {
    Binding *found = nullptr;
    for (Scope *its = &scope; its && !found; its = its->parent)
      found = its->find(name);
    if (found && found->given.isValid())
      return found->given;
  }
  return {};
}

SMLoc pp::originOf(const Expr *expr, Scope &scope) {
  SMLoc given = givenOf(expr, scope);
  return given.isValid() ? given : expr->at;
}
