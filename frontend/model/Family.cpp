// Reads a config.json by the rules of its family, and writes the training program that it stands for.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//   config.json   "model_type": "qwen3", "hidden_size": 1024, ..      each field is read, noted, or refused by name
//   families.pipe family "qwen3" { read hidden_size, .. model llama(hidden = hidden_size, ..) }
//   program       import "std/models/llama.pipe"  train qwen3 { model llama(hidden = 1024, ..) schedule zb_v .. }
//
// families.pipe says in what families differ; only rotary positions have rules of their own (RopeFields).
#include "frontend/model/Family.h"
#include "frontend/evaluate/Evaluator.h"
#include "frontend/model/ConfigFacts.h"
#include "frontend/model/RopeFields.h"
#include "frontend/syntax/Parser.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/ADT/StringSwitch.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/GlobPattern.h"
#include "llvm/Support/Path.h"

using namespace llvm;
using namespace pp;

namespace {
/// Evaluates a family over the fields of one config.json.
class FamilyReader : Evaluator {
public:
  FamilyReader(Source &source, const FolderRequest &request, FrontendOptions &options)
      : Evaluator(source, options.budget), request(request), options(options), config(source) {}

  FailureOr<std::string> run() {
    if (failed(config.read()) || failed(readLibrary()) || failed(pickFamily()) || failed(unwrap()) ||
        failed(readFields()) || failed(readDefinitions()))
      return failure();
    FailureOr<std::string> call = modelCall();
    if (failed(call) || failed(readKept()) || failed(checkOnly()) || failed(checkAllKnown()))
      return failure();
    FailureOr<std::string> schedule = scheduleName();
    if (failed(schedule))
      return failure();
    SmallString<128> folder(request.folder); // the program may run elsewhere
    if (std::error_code error = sys::fs::make_absolute(folder))
      return source.error(config.begin) << "cannot tell where `" << request.folder << "` is: " << error.message();
    sys::path::remove_dots(folder, /*remove_dot_dot=*/true);
    options.folder = folder.str().str();
    options.config = facts.text(config);
    return program(*call, *schedule);
  }

private:
  //===-- What is there -----------------------------------------------------------------------------------------===//

  FailureOr<File> parseFile(const std::string &path) {
    std::string why;
    unsigned buffer = source.addFile(path, why);
    if (!buffer)
      return source.error(config.begin) << "cannot open `" << path << "`: " << why;
    File file = parse(source, source.text(buffer));
    return file.isWrong ? FailureOr<File>(failure()) : file;
  }

  LogicalResult readLibrary() {
    FailureOr<File> file = parseFile(options.stdlibDir + "/models/families.pipe");
    if (failed(file))
      return failure();
    families = file->families;
    for (const Function *function : file->functions)
      globals.bindings.push_back({function->name, Value(), false, function});
    return success();
  }

  LogicalResult pickFamily() {
    const json::Value *type = config.get("model_type");
    if (!type || !type->getAsString())
      return source.error(config.at("model_type")) << "`model_type` is not there, so the family is not known";
    SmallVector<StringRef> names;
    for (const Family *one : families) {
      if (one->name.text == "any")
        any = one;
      if (one == any || one->isCommon)
        continue;
      if (one->lacks.empty())
        names.push_back(one->name.text);
      if (one->name.text == *type->getAsString())
        family = one;
    }
    if (family && family->lacks.empty() && any)
      return collectRules();
    std::string message = ("`model_type` is `" + *type->getAsString() + "`, which is not supported").str();
    if (family && any)
      return refuse("model_type", message + "; it needs " + family->lacks, family->name.at, "said here");
    return source.error(config.at("model_type")) << message << "; " << thereAre(names);
  }

  /// Those of all families, of what the family has in common with others, and its own.
  LogicalResult collectRules() {
    rules.push_back(any);
    for (Name name : family->commons) {
      auto found = find_if(families, [&](const Family *one) { return one->isCommon && one->name.text == name.text; });
      if (found == families.end())
        return fail(name.at, "there is no `common " + name.text + "`");
      rules.push_back(*found);
    }
    rules.push_back(family);
    return success();
  }

  /// Of a family that wraps another one, checks the fields around it, and goes on with those, and the family, inside.
  LogicalResult unwrap() {
    if (family->inside.empty())
      return success();
    wrapper = family;
    known.push_back(wrapper->inside);
    known.push_back("model_type");
    json::Object above, absent;
    for (const Family *one : rules)
      for (const Family::Field &field : one->fields) {
        std::optional<Value> value;
        if (failed(evaluateIfThere(field.absent, value)))
          return failure();
        StringRef name = field.name.text;
        if (!value || !value->asBool())
          return fail(field.name.at, "a field beside the model inside is true or false where the file has none");
        known.push_back(name);
        const json::Value *given = config.get(name);
        absent[name] = *value->asBool();
        above[name] = given && !given->getAsNull() ? *given : absent[name];
      }
    for (StringRef name : {"dtype", "torch_dtype"})
      if (const json::Value *given = config.get(name))
        above[name] = *given;
    if (failed(checkOnly()) || failed(checkAllKnown()) || failed(config.enter(wrapper->inside)))
      return failure();
    for (auto &[name, value] : above)
      config.set(name, value);
    if (!config.get("model_type"))
      config.set("model_type", wrapper->inner);
    outer = std::exchange(rules, {});
    known.clear();
    family = nullptr;
    facts = ConfigFacts();
    facts.inside(wrapper->inside, wrapper->inner, std::move(absent));
    if (failed(pickFamily()))
      return failure();
    return family->inside.empty() ? success()
                                  : LogicalResult(refuse("model_type", "a family inside another one has none inside",
                                                         wrapper->name.at, "said here"));
  }

  /// Whether a rule behind this one says something of the field, and so goes before it.
  bool isReplaced(const Family *rule, StringRef field) const {
    auto says = [&](const auto &list) { return any_of(list, [&](const auto &one) { return one.name.text == field; }); };
    return any_of(ArrayRef(rules).drop_while([&](const Family *one) { return one != rule; }).drop_front(),
                  [&](const Family *one) { return says(one->fields) || says(one->only); });
  }

  //===-- Fields ------------------------------------------------------------------------------------------------===//

  LogicalResult refuse(StringRef field, const Twine &message, SMLoc noteAt, const Twine &note) {
    mlir::InFlightDiagnostic error = source.error(config.at(field)) << message;
    error.attachNote(source.location(noteAt)) << note;
    return error;
  }

  /// Infinity in a list, bare as parseJson gives it or as transformers 5 writes it, is this number.
  static constexpr double kInfinite = 1e300;
  static bool isInfinite(const json::Value &value) {
    const json::Object *written = value.getAsObject();
    std::optional<StringRef> text = written ? written->getString("__float__") : value.getAsString();
    return text && *text == (written ? "Infinity" : "Infini");
  }

  FailureOr<Value> valueOf(StringRef name, const json::Value &value) {
    if (std::optional<bool> flag = value.getAsBoolean())
      return Value(*flag);
    if (std::optional<int64_t> count = value.getAsInteger())
      // llvm::json reads 1.0 as an int, too; the number is the same.
      return Value(*count);
    if (std::optional<double> number = value.getAsNumber())
      return Value(*number);
    if (std::optional<StringRef> text = value.getAsString())
      return Value(source.intern(*text));
    if (value.getAsObject())
      return source.error(config.at(name)) << "`" << name << "` is an object; expected a value or a list";
    Value::List items;
    for (const json::Value &item : *value.getAsArray()) {
      if (item.getAsNull())
        return source.error(config.at(name)) << "`" << name << "` has null in its list";
      FailureOr<Value> made = isInfinite(item) ? FailureOr<Value>(Value(kInfinite)) : valueOf(name, item);
      if (failed(made))
        return failure();
      items.push_back(*made);
    }
    return Value(std::move(items));
  }

  /// A field without a default is a size; another has the type of its default.
  LogicalResult checkType(const Family::Field &field, const Value &value, const std::optional<Value> &normal) {
    StringRef name = field.name.text;
    std::string note = ("family `" + family->name.text + "` reads it here").str();
    if (!normal) {
      if (value.asInt() && *value.asInt() >= 1)
        return success();
      return refuse(name, "expected an int of at least 1 for `" + name + "`, got " + value.text(), field.name.at, note);
    }
    const bool isNumber = normal->asNumber() || (normal->asInt() && *normal->asInt() >= 0);
    if (isNumber && value.asInt() && *value.asInt() < 0)
      return refuse(name, "expected a number of at least 0 for `" + name + "`, got " + value.text(), field.name.at,
                    note);
    if (value.sameTypeAs(*normal) || (normal->asNumber() && value.asInt()))
      return success();
    return refuse(name,
                  "expected " + normal->type() + " like " + normal->text() + " for `" + name + "`, got " +
                      value.type() + " " + value.text(),
                  field.name.at, note);
  }

  LogicalResult readFields() {
    scope.bind({source.intern("row_length"), SMLoc()}, Value(sequence()));
    for (const Family *one : rules)
      for (const Family::Field &field : one->fields)
        if (!isReplaced(one, field.name.text) && failed(readField(field)))
          return failure();
    return success();
  }

  LogicalResult evaluateIfThere(Expr *expr, std::optional<Value> &value) {
    if (!expr)
      return success();
    FailureOr<Value> made = evaluate(expr, scope);
    return failed(made) ? failure() : (value = *made, success());
  }

  LogicalResult readField(const Family::Field &field) {
    StringRef name = field.name.text;
    known.push_back(name);
    std::optional<Value> absent, null;
    if (failed(evaluateIfThere(field.absent, absent)) || failed(evaluateIfThere(field.null, null)))
      return failure();
    const json::Value *given = config.get(name);
    std::optional<Value> value = !given ? absent : null;
    if (given && !given->getAsNull()) {
      FailureOr<Value> read = valueOf(name, *given);
      if (failed(read) || failed(checkType(field, *read, absent)))
        return failure();
      value = *read;
    }
    if (!value)
      return refuse(name, "`" + name + "` is " + (given ? "null" : "not there"), field.name.at,
                    "family `" + family->name.text + (given ? "` has no meaning for that" : "` needs it"));
    facts.read(name, *value, absent, null);
    scope.bind(field.name, *value);
    return success();
  }

  LogicalResult readDefinitions() {
    // Reports a failed `require` of the family at this file.
    mlir::ScopedDiagnosticHandler handler(source.context, [&](mlir::Diagnostic &error) {
      error.attachNote(source.location(config.at("model_type"))) << "the folder is read as this family";
      return failure(); // the next handler prints it
    });
    for (const Family *one : rules)
      for (const LetStatement::Definition &definition : one->definitions) {
        FailureOr<Value> value = evaluate(definition.value, scope);
        if (failed(value))
          return failure();
        scope.bind(definition.name, *value);
      }
    return success(
        all_of(rules, [&](const Family *one) { return succeeded(Evaluator::run(one->requirements, scope)); }));
  }

  /// Patterns of tensors, with what the file says in the place of `{FIELD}`.
  LogicalResult readKept() {
    SmallVector<Name> kept;
    for (const Family *one : rules)
      append_range(kept, one->kept);
    const size_t own = kept.size();
    for (const Family *one : outer)
      append_range(kept, one->kept);
    for (auto [number, pattern] : enumerate(kept)) {
      // A prefix `model...` is of names that begin with `model.`.
      const bool isPrefixed =
          wrapper && number < own && (!wrapper->prefix.starts_with("model.") || pattern.text.starts_with("model."));
      std::string text(isPrefixed ? wrapper->prefix : "");
      StringRef rest = pattern.text;
      if (isPrefixed && wrapper->prefix.starts_with("model."))
        rest.consume_front("model.");
      while (!rest.empty()) {
        auto [before, after] = rest.split('{');
        auto [name, behind] = after.split('}');
        text += before;
        rest = behind;
        if (name.empty())
          continue;
        const Binding *binding = scope.find(source.intern(name));
        if (!binding)
          return fail(pattern.at, "`" + name + "` is no field that the family reads");
        text += binding->value.text();
      }
      facts.keep(text);
    }
    return success();
  }

  LogicalResult checkOnly() {
    for (const Family *one : rules)
      for (const Family::Only &only : one->only) {
        StringRef name = only.name.text;
        if (isReplaced(one, name))
          continue;
        known.push_back(name);
        FailureOr<Value> allowed = evaluate(only.values, scope);
        if (failed(allowed))
          return failure();
        const json::Value *given = config.get(name);
        if (is_contained(request.notes, name))
          continue;
        facts.only(name, *allowed);
        if (!given || given->getAsNull())
          continue;
        bool fits = !given->getAsObject() && allowed->asList() && any_of(*allowed->asList(), [&](const Value &value) {
          if (value.asBool() || given->getAsBoolean())
            return value.asBool() && given->getAsBoolean() == *value.asBool();
          if (value.asString() || given->getAsString())
            return value.asString() && given->getAsString() == *value.asString();
          return !value.asList() &&
                 given->getAsNumber() == (value.asInt() ? double(*value.asInt()) : *value.asNumber());
        });
        if (!fits)
          return refuse(name,
                        "`" + name + "` is " + textOf(*given) + "; family `" + family->name.text + "` has " +
                            (allowed->asList()->empty() ? "none" : allowed->text()),
                        only.name.at, "said here");
      }
    return success();
  }

  static std::string textOf(const json::Value &value) {
    if (std::optional<double> number = value.getAsNumber()) // 0.1, where JSON's writer has 0.10000000000000001
      return Value(*number).text();
    std::string text;
    raw_string_ostream(text) << value;
    return text.size() > 60 ? text.substr(0, 57) + ".." : text;
  }

  /// Whether the field is an object whose fields the family reads.
  bool isReadInside(const Name &key) const {
    const json::Value *value = config.get(key.text);
    auto isPart = [&](StringRef name) { return name.consume_front(key.text) && name.starts_with("_"); };
    return value && value->getAsObject() && any_of(known, isPart);
  }
  /// Of such an object the family must read all.
  LogicalResult checkObject(const Name &key) {
    for (const auto &[name, its] : *config.get(key.text)->getAsObject())
      if (!is_contained(known, (key.text + "_" + StringRef(name)).str()))
        return source.error(key.at) << "`" << key.text << "` has `" << StringRef(name)
                                    << "`, which is no field that family `" << family->name.text << "` knows";
    return success();
  }

  LogicalResult checkAllKnown() {
    SmallVector<Name> notes;
    for (const Family *one : rules)
      append_range(notes, one->notes);
    for (const std::string &note : request.notes)
      notes.push_back({note, SMLoc()});
    for (const Name &key : config.keys) {
      auto matches = [&](const Name &pattern) {
        Expected<GlobPattern> glob = GlobPattern::create(pattern.text);
        bool isMatch = glob && glob->match(key.text);
        consumeError(glob.takeError());
        return isMatch;
      };
      if (isReadInside(key) && failed(checkObject(key)))
        return failure();
      if (is_contained(known, key.text) || any_of(notes, matches) || isReadInside(key))
        continue;
      return source.error(key.at) << "`" << key.text << "` is no field that family `" << family->name.text << "` knows"
                                  << didYouMean(key.text, known)
                                  << "; if it cannot change what is trained, say --config-note=" << key.text;
    }
    return success();
  }

  //===-- The program -------------------------------------------------------------------------------------------===//

  /// The tokens of a sequence: of -D data.sequence, else as many as the model takes, up to 512.
  int64_t sequence() {
    int64_t length = 0;
    for (const auto &[name, value] : options.defines)
      if (name == "data.sequence")
        (void)StringRef(value).getAsInteger(10, length);
    if (length > 0)
      return length;
    for (StringRef name : {"max_position_embeddings", "n_positions"})
      if (const json::Value *value = config.get(name); value && value->getAsInteger())
        length = *value->getAsInteger();
    return std::clamp<int64_t>(length ? length : 512, 1, 512);
  }

  /// `rope_table(width, ..)`: what the configuration says of rotary positions, and the defaults of the family.
  FailureOr<std::string> ropeTable(const Expr *call) {
    RopeDefaults defaults;
    for (auto [i, label, operand] : enumerate(call->labels, call->operands)) {
      FailureOr<Value> value = evaluate(operand, scope);
      if (failed(value))
        return failure();
      std::optional<double> number;
      if (value->asInt() || value->asNumber())
        number = value->asInt() ? double(*value->asInt()) : *value->asNumber();
      if (i == 0 && label.text.empty() && value->asInt())
        defaults.width = *value->asInt();
      else if (label.text == "theta" && number)
        defaults.theta = *number;
      else if (label.text == "partial" && number)
        defaults.partial = number;
      else if (label.text == "original" && number)
        defaults.original = number;
      else if (label.text == "yarn" && value->asString())
        defaults.yarn = *value->asString();
      else if (label.text == "kind" && value->asString())
        defaults.kind = *value->asString();
      else if (label.text == "base" && value->asString())
        defaults.base = *value->asString();
      else if (label.text == "needed" && value->asBool())
        defaults.isNeeded = *value->asBool();
      else if (label.text == "grows" && value->asBool())
        defaults.grows = *value->asBool();
      else
        return fail(operand->at, "`rope_table` takes the width of a head, numbers for `theta`, `partial` and "
                                 "`original`, a type for `yarn`, layers for `kind`, a field for `base`, and true or "
                                 "false for `needed` and `grows`");
    }
    append_range(known, kRopeFields);
    known.push_back(defaults.base);
    facts.rope(defaults);
    return ropeCall(source, config, defaults, sequence());
  }

  /// Not where the base of `rope_parameters` is null.
  bool hasRope() {
    const json::Value *given = config.get("rope_parameters");
    const json::Value *theta = given && given->getAsObject() ? given->getAsObject()->get("rope_theta") : nullptr;
    return !theta || !theta->getAsNull();
  }

  /// A value as a program spells it; lists in full, where messages leave out the middle.
  static std::string spelt(const Value &value) {
    if (!value.asList())
      return value.text();
    return "[" + join(map_range(*value.asList(), spelt), ", ") + "]";
  }

  FailureOr<std::string> modelCall() {
    std::string text, line = (family->call->name + "(").str();
    SmallVector<Name> labels;
    SmallVector<Expr *> arguments;
    for (const Family *one : rules)
      for (auto [label, argument] : zip(one->labels, one->arguments))
        if (none_of(family->call->labels, [&](Name own) { return own.text == label.text; })) {
          labels.push_back(label);
          arguments.push_back(argument);
        }
    append_range(labels, family->call->labels);
    append_range(arguments, family->call->operands);
    for (auto [i, label, argument] : enumerate(labels, arguments)) {
      FailureOr<std::string> value = failure();
      if (argument->kind == Expr::Call && argument->name == "rope_table") {
        value = ropeTable(argument);
      } else if (argument->kind == Expr::Call && argument->name == "rope_temperature" && argument->operands.empty()) {
        if (FailureOr<double> factor = ropeTemperature(source, config); succeeded(factor))
          value = Value(*factor).text();
      } else if (argument->kind == Expr::Call && argument->name == "rope_growth" && argument->operands.empty()) {
        value = ropeGrowth(source, config);
      } else if (argument->kind == Expr::Call && argument->name == "rope_turns" && argument->operands.empty()) {
        value = std::string(hasRope() ? "1" : "0");
      } else if (FailureOr<Value> evaluated = evaluate(argument, scope); succeeded(evaluated)) {
        value = spelt(*evaluated);
      }
      if (failed(value))
        return failure();
      std::string word = (label.text.empty() ? "" : label.text + " = ").str() + *value;
      if (i && line.size() + word.size() > 110) {
        text += StringRef(line).rtrim().str() + "\n";
        line = "              ";
      }
      line += word + (i + 1 < arguments.size() ? ", " : ")");
    }
    return text + line;
  }

  /// The place where the command line names the schedule.
  SMLoc scheduleAt() {
    constexpr StringLiteral option = "--schedule=";
    unsigned buffer = source.manager.AddNewSourceBuffer(
        MemoryBuffer::getMemBufferCopy(option.str() + request.schedule, "<command line>"), SMLoc());
    return SMLoc::getFromPointer(source.manager.getMemoryBuffer(buffer)->getBufferStart() + option.size());
  }

  /// `std/<file>.pipe:NAME`, or the only schedule of the file.
  FailureOr<std::string> scheduleName() {
    auto [path, name] = schedule();
    std::string full = StringRef(path).starts_with("std/") ? options.stdlibDir + path.substr(3) : path;
    if (!sys::fs::exists(full))
      return source.error(scheduleAt()) << "there is no `" << path << "`" << (full == path ? "" : " in the library");
    FailureOr<File> file = parseFile(full);
    if (failed(file))
      return failure();
    SmallVector<StringRef> names;
    for (const Schedule *one : file->schedules)
      names.push_back(one->name.text);
    if (name.empty() && names.size() == 1)
      return names.front().str();
    if (!name.empty() && is_contained(names, name))
      return name;
    if (name.empty())
      return source.error(scheduleAt()) << "`" << path << "` has " << names.size()
                                        << " schedules; name one with --schedule=" << path << ":NAME; "
                                        << thereAre(names);
    return source.error(scheduleAt()) << "`" << path << "` has no schedule `" << name << "`" << didYouMean(name, names)
                                      << "; " << thereAre(names);
  }

  std::pair<std::string, std::string> schedule() const {
    auto its = scheduleFile(request.schedule);
    return its.first.empty() ? std::pair(request.schedule, std::string()) : its;
  }

  StringRef precision() {
    for (StringRef name : {"dtype", "torch_dtype"})
      if (const json::Value *value = config.get(name); value && value->getAsString())
        return StringSwitch<StringRef>(*value->getAsString())
            .Case("bfloat16", "bf16")
            .Case("float16", "f16")
            .Case("float64", "f64")
            .Default("f32");
    return "f32";
  }

  std::string program(const std::string &call, const std::string &schedule) {
    std::string text;
    raw_string_ostream os(text);
    os << "# Trains the model of `" << request.folder << "`, of the family " << family->name.text << ".\n"
       << "import \"std/models/" << family->call->name << ".pipe\"\n"
       << "import \"" << this->schedule().first << "\"\n\n"
       << "train " << family->name.text << "(precision = \"" << precision()
       << "\", gradients = if precision == \"f64\" then \"f64\" else \"f32\") {\n"
       << "  model " << call << "\n"
       << "  schedule " << schedule << "\n";
    if (wrapper)
      os << "  names \"" << wrapper->prefix << "\"\n";
    os << "  data microbatch = 1, sequence = " << sequence() << "\n"
       << "  optimizer adamw(lr = 5e-5, beta2 = 0.999, weight_decay = 0, schedule = \"linear\", min_lr = 0, lag = 1)\n"
       << "  precision precision\n"
       << "  gradients gradients\n"
       << "}\n";
    return text;
  }

  const FolderRequest &request;
  FrontendOptions &options;
  FolderConfig config;
  std::vector<const Family *> families;
  const Family *family = nullptr, *any = nullptr;
  const Family *wrapper = nullptr;   ///< around the family, which stands in a field of the file
  SmallVector<const Family *> outer; ///< its rules
  SmallVector<const Family *> rules; ///< a later one goes before an earlier one
  Scope scope{nullptr};
  ConfigFacts facts;
  SmallVector<StringRef> known; ///< fields that are read or checked
};
} // namespace

FailureOr<std::string> pp::writeProgramOf(const FolderRequest &request, SourceMgr &manager, mlir::MLIRContext *context,
                                          FrontendOptions &options) {
  Source source(manager, context);
  return FamilyReader(source, request, options).run();
}
