// Reads a config.json by the rules of its family, and writes the training program that it stands for.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//   config.json   "model_type": "qwen3", "hidden_size": 1024, ..      each field is read, noted, or refused by name
//   families.pipe family "qwen3" { read hidden_size, .. model llama(hidden = hidden_size, ..) }
//   program       import "std/models/llama.pipe"  train qwen3 { model llama(hidden = 1024, ..) schedule zb_v .. }
//
// What differs between families is said in families.pipe; here are only the two spellings of rotary positions that
// published folders have: `rope_theta` with `rope_scaling`, and `rope_parameters`.
#include "frontend/model/Family.h"
#include "frontend/evaluate/Evaluator.h"
#include "frontend/syntax/Parser.h"
#include "llvm/ADT/StringSwitch.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/GlobPattern.h"
#include "llvm/Support/JSON.h"
#include "llvm/Support/Path.h"
#include <cmath>

using namespace llvm;
using namespace pp;

namespace {
/// The fields of a config.json, and where each stands.
class Config {
public:
  explicit Config(Source &source) : source(source) {
    StringRef text = source.manager.getMemoryBuffer(source.manager.getMainFileID())->getBuffer();
    begin = SMLoc::getFromPointer(text.data());
  }

  LogicalResult read() {
    StringRef text = source.manager.getMemoryBuffer(source.manager.getMainFileID())->getBuffer();
    Expected<json::Value> parsed = json::parse(text);
    if (!parsed)
      return source.error(begin) << "this is no JSON: " << toString(parsed.takeError());
    if (!parsed->getAsObject())
      return source.error(begin) << "expected an object of fields";
    fields = std::move(*parsed->getAsObject());
    return findKeys(text);
  }

  const json::Value *get(StringRef name) const { return fields.get(name); }
  SMLoc at(StringRef name) const {
    auto found = find_if(keys, [&](const Name &key) { return key.text == name; });
    return found == keys.end() ? begin : found->at;
  }

  SMLoc begin;
  std::vector<Name> keys; ///< in the order of the file

private:
  /// The strings of the outermost object that a colon follows.
  LogicalResult findKeys(StringRef text) {
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

  LogicalResult add(Name key) {
    for (const Name &first : keys)
      if (first.text == key.text) {
        mlir::InFlightDiagnostic error = source.error(key.at) << "`" << key.text << "` stands here twice";
        error.attachNote(source.location(first.at)) << "first here";
        return error;
      }
    keys.push_back(key);
    return success();
  }

  Source &source;
  json::Object fields;
};

/// The fields that say how positions turn, whichever way they are spelt.
class RopeFields {
public:
  RopeFields(Source &source, const Config &config) : source(source), config(config) {
    for (StringRef name : {"rope_parameters", "rope_scaling"})
      if (const json::Value *value = config.get(name);
          value && value->getAsObject() && !value->getAsObject()->empty()) {
        given = value->getAsObject();
        givenAs = name;
      }
  }

  static constexpr StringLiteral kNames[] = {"rope_theta", "rope_scaling", "rope_parameters", "partial_rotary_factor",
                                             "original_max_position_embeddings"};

  /// The call that makes the table of heads of `width`, for sequences of `sequence` tokens.
  FailureOr<std::string> call(int64_t width, int64_t sequence) {
    for (StringRef name : {"rope_scaling", "rope_parameters"})
      if (const json::Value *value = config.get(name); value && !value->getAsObject() && !value->getAsNull())
        return refuse(name, "expected an object or null for `" + name + "`");
    StringRef type = "default";
    for (StringRef name : {"type", "rope_type"})
      if (const json::Value *value = get(name)) {
        if (!value->getAsString())
          return refuse(givenAs, "expected a string for `" + name + "`");
        type = *value->getAsString();
      }
    FailureOr<double> theta = number("rope_theta", 10000), partial = 1.0;
    if (const json::Value *outside = config.get("rope_theta"); outside && !get("rope_theta")) {
      if (!outside->getAsNumber())
        return refuse("rope_theta", "expected a number for `rope_theta`");
      theta = *outside->getAsNumber();
    }
    if (failed(theta) || failed(partial = number("partial_rotary_factor", 1)))
      return failure();
    const json::Value *outside = config.get("partial_rotary_factor");
    if (*partial != 1 || (outside && !outside->getAsNull() && outside->getAsNumber() != 1.0))
      return refuse(outside ? "partial_rotary_factor" : givenAs,
                    "`partial_rotary_factor` is not 1; heads are turned as a whole here");
    std::string head = type == "su" ? "longrope" : type.str();
    head = "rope_" + head + "(" + Value(*theta).text() + ", " + std::to_string(width);
    using Reader = FailureOr<std::string> (RopeFields::*)(int64_t sequence);
    Reader reader = StringSwitch<Reader>(type)
                        .Case("default", &RopeFields::plain)
                        .Case("linear", &RopeFields::linear)
                        .Case("dynamic", &RopeFields::dynamic)
                        .Case("llama3", &RopeFields::llama3)
                        .Case("yarn", &RopeFields::yarn)
                        .Cases("longrope", "su", &RopeFields::longrope)
                        .Default(nullptr);
    if (!reader)
      return unknown(type);
    FailureOr<std::string> rest = (this->*reader)(sequence);
    if (failed(rest))
      return failure();
    return head + *rest + ")";
  }

private:
  LogicalResult refuse(StringRef field, const Twine &message) { return source.error(config.at(field)) << message; }
  const json::Value *get(StringRef name) const {
    const json::Value *value = given ? given->get(name) : nullptr;
    return value && value->getAsNull() ? nullptr : value;
  }
  FailureOr<double> number(StringRef name, std::optional<double> absent = std::nullopt) {
    const json::Value *value = get(name);
    if (value && value->getAsNumber())
      return *value->getAsNumber();
    if (!value && absent)
      return *absent;
    return refuse(givenAs, (value ? "expected a number for `" : "`" + givenAs + "` has no `") + name + "`");
  }
  LogicalResult unknown(StringRef type) {
    static const StringRef known[] = {"default", "linear", "dynamic", "llama3", "yarn", "longrope"};
    return refuse(givenAs, "rotary positions of type `" + type + "` are not known" + didYouMean(type, known) + "; " +
                               thereAre(known));
  }
  /// Only the keys that the type has.
  LogicalResult only(std::initializer_list<StringRef> names) {
    for (const auto &[key, value] : given ? *given : json::Object()) {
      StringRef name = key;
      if (!is_contained(names, name) &&
          !is_contained({"type", "rope_type", "rope_theta", "partial_rotary_factor"}, name) && !value.getAsNull())
        return refuse(givenAs, "`" + name + "` of `" + givenAs + "` is not known for this type of rotary positions");
    }
    return success();
  }
  FailureOr<std::string> texts(std::initializer_list<FailureOr<double>> numbers) {
    std::string text;
    for (const FailureOr<double> &one : numbers) {
      if (failed(one))
        return failure();
      text += ", " + Value(*one).text();
    }
    return text;
  }
  /// How long the sequences were that the plain positions were trained with.
  FailureOr<double> original() {
    for (const json::Value *value : {config.get("original_max_position_embeddings"),
                                     get("original_max_position_embeddings"), config.get("max_position_embeddings")})
      if (value && value->getAsNumber())
        return *value->getAsNumber();
    return refuse(givenAs, "`original_max_position_embeddings` is not there");
  }
  FailureOr<double> positions() {
    const json::Value *value = config.get("max_position_embeddings");
    if (value && value->getAsNumber())
      return *value->getAsNumber();
    return refuse(givenAs, "`max_position_embeddings` is not there; this type of rotary positions needs it");
  }

  FailureOr<std::string> plain(int64_t) { return failed(only({})) ? FailureOr<std::string>() : std::string(); }
  FailureOr<std::string> linear(int64_t) {
    if (failed(only({"factor"})))
      return failure();
    return texts({number("factor")});
  }
  FailureOr<std::string> dynamic(int64_t sequence) {
    if (failed(only({"factor", "original_max_position_embeddings"})))
      return failure();
    return texts({number("factor"), positions(), double(sequence)});
  }
  FailureOr<std::string> llama3(int64_t) {
    if (failed(only({"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"})))
      return failure();
    return texts({number("factor"), number("low_freq_factor"), number("high_freq_factor"), original()});
  }
  FailureOr<std::string> yarn(int64_t) {
    if (failed(only({"factor", "original_max_position_embeddings", "attention_factor", "beta_fast", "beta_slow",
                     "mscale", "mscale_all_dim", "truncate"})))
      return failure();
    if (const json::Value *value = get("truncate"); value && value->getAsBoolean() != true)
      return refuse(givenAs, "`truncate` of `" + givenAs + "` must be true");
    FailureOr<double> old = original(), last = positions();
    if (failed(old) || failed(last))
      return failure();
    FailureOr<double> factor = number("factor", *last / *old), scale = number("mscale", 0),
                      scaleAll = number("mscale_all_dim", 0);
    if (failed(factor) || failed(scale) || failed(scaleAll))
      return failure();
    auto grown = [&](double by) { return *factor <= 1 ? 1 : 0.1 * by * std::log(*factor) + 1; };
    double attention = *scale && *scaleAll ? grown(*scale) / grown(*scaleAll) : grown(1);
    return texts({factor, old, number("beta_fast", 32), number("beta_slow", 1), number("attention_factor", attention)});
  }
  FailureOr<std::string> longrope(int64_t sequence) {
    if (failed(only({"factor", "original_max_position_embeddings", "attention_factor", "long_factor", "short_factor"})))
      return failure();
    FailureOr<double> old = original(), last = positions();
    if (failed(old) || failed(last))
      return failure();
    StringRef name = double(sequence) > *old ? "long_factor" : "short_factor";
    const json::Value *list = get(name);
    if (!list || !list->getAsArray())
      return refuse(givenAs, "`" + givenAs + "` has no list `" + name + "`");
    std::string divisors;
    for (const json::Value &item : *list->getAsArray()) {
      if (!item.getAsNumber())
        return refuse(givenAs, "expected numbers in `" + name + "`");
      divisors += (divisors.empty() ? "" : ", ") + Value(*item.getAsNumber()).text();
    }
    FailureOr<double> factor = number("factor", *last / *old);
    if (failed(factor))
      return failure();
    double attention = *factor <= 1 ? 1 : std::sqrt(1 + std::log(*factor) / std::log(*old));
    FailureOr<std::string> text = texts({number("attention_factor", attention)});
    return failed(text) ? text : ", [" + divisors + "]" + *text;
  }

  Source &source;
  const Config &config;
  const json::Object *given = nullptr;
  StringRef givenAs = "rope_theta";
};

/// Evaluates a family over the fields of one config.json.
class FamilyReader : Evaluator {
public:
  FamilyReader(Source &source, const FolderRequest &request, FrontendOptions &options)
      : Evaluator(source, options.budget), request(request), options(options), config(source) {}

  FailureOr<std::string> run() {
    if (failed(config.read()) || failed(readLibrary()) || failed(pickFamily()) || failed(readFields()) ||
        failed(readDefinitions()))
      return failure();
    FailureOr<std::string> call = modelCall();
    if (failed(call) || failed(checkOnly()) || failed(checkAllKnown()))
      return failure();
    FailureOr<std::string> schedule = scheduleName();
    if (failed(schedule))
      return failure();
    SmallString<128> folder(request.folder); // the program may run elsewhere
    if (std::error_code error = sys::fs::make_absolute(folder))
      return source.error(config.begin) << "cannot tell where `" << request.folder << "` is: " << error.message();
    sys::path::remove_dots(folder, /*remove_dot_dot=*/true);
    options.folder = folder.str().str();
    return program(*call, *schedule);
  }

private:
  //===-- What is there -----------------------------------------------------------------------------------------===//

  FailureOr<File> parseFile(const std::string &path) {
    std::string included;
    unsigned buffer = source.manager.AddIncludeFile(path, SMLoc(), included);
    if (!buffer)
      return source.error(config.begin) << "cannot open `" << path << "`";
    return parse(source, source.manager.getMemoryBuffer(buffer)->getBuffer());
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
      if (one->name.text == "any") {
        any = one;
        continue;
      }
      names.push_back(one->name.text);
      if (one->name.text == *type->getAsString())
        family = one;
    }
    if (family && any)
      return success();
    return source.error(config.at("model_type"))
           << "`model_type` is `" << *type->getAsString() << "`, which is not supported"
           << "; " << thereAre(names);
  }

  //===-- Fields ------------------------------------------------------------------------------------------------===//

  LogicalResult refuse(StringRef field, const Twine &message, SMLoc noteAt, const Twine &note) {
    mlir::InFlightDiagnostic error = source.error(config.at(field)) << message;
    error.attachNote(source.location(noteAt)) << note;
    return error;
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
      FailureOr<Value> made = valueOf(name, item);
      if (failed(made))
        return failure();
      items.push_back(*made);
    }
    return Value(std::move(items));
  }

  /// A field without a default is a size; another has the type of its default.
  LogicalResult checkType(const Family::Field &field, const Value &value) {
    StringRef name = field.name.text;
    std::string note = ("family `" + family->name.text + "` reads it here").str();
    if (!field.absent) {
      if (value.asInt() && *value.asInt() >= 1)
        return success();
      return refuse(name, "expected an int of at least 1 for `" + name + "`, got " + value.text(), field.name.at, note);
    }
    FailureOr<Value> normal = evaluate(field.absent, scope);
    if (failed(normal))
      return failure();
    bool fits = value.sameTypeAs(*normal) || (normal->asNumber() && value.asInt());
    if (fits && value.asInt() && *value.asInt() < 0 && !(normal->asInt() && *normal->asInt() < 0))
      fits = false;
    if (fits)
      return success();
    return refuse(name,
                  "expected " + normal->type() + " like " + normal->text() + " for `" + name + "`, got " +
                      value.type() + " " + value.text(),
                  field.name.at, note);
  }

  LogicalResult readFields() {
    for (const Family *one : {any, family})
      for (const Family::Field &field : one->fields)
        if (failed(readField(field)))
          return failure();
    return success();
  }

  LogicalResult readField(const Family::Field &field) {
    StringRef name = field.name.text;
    known.push_back(name);
    const json::Value *given = config.get(name);
    if (given && given->getAsNull() && field.null) {
      FailureOr<Value> value = evaluate(field.null, scope);
      return failed(value) ? failure() : (scope.bind(field.name, *value), success());
    }
    if (!given || given->getAsNull()) {
      if (!field.absent)
        return refuse(name, "`" + name + "` is not there", field.name.at,
                      "family `" + family->name.text + "` needs it");
      FailureOr<Value> value = evaluate(field.absent, scope);
      return failed(value) ? failure() : (scope.bind(field.name, *value), success());
    }
    FailureOr<Value> value = valueOf(name, *given);
    if (failed(value) || failed(checkType(field, *value)))
      return failure();
    scope.bind(field.name, *value);
    return success();
  }

  LogicalResult readDefinitions() {
    // What a family requires is said of this file.
    mlir::ScopedDiagnosticHandler handler(source.context, [&](mlir::Diagnostic &error) {
      error.attachNote(source.location(config.at("model_type"))) << "the folder is read as this family";
      return failure(); // the next handler prints it
    });
    for (const LetStatement::Definition &definition : family->definitions) {
      FailureOr<Value> value = evaluate(definition.value, scope);
      if (failed(value))
        return failure();
      scope.bind(definition.name, *value);
    }
    return Evaluator::run(family->requirements, scope);
  }

  LogicalResult checkOnly() {
    for (const Family *one : {any, family})
      for (const Family::Only &only : one->only) {
        StringRef name = only.name.text;
        known.push_back(name);
        const json::Value *given = config.get(name);
        if (!given || given->getAsNull() || is_contained(request.notes, name))
          continue;
        FailureOr<Value> allowed = evaluate(only.values, scope);
        if (failed(allowed))
          return failure();
        bool fits = !given->getAsObject() && allowed->asList() && any_of(*allowed->asList(), [&](const Value &value) {
          if (value.asBool() || given->getAsBoolean())
            return value.asBool() && given->getAsBoolean() == *value.asBool();
          if (value.asString() || given->getAsString())
            return value.asString() && given->getAsString() == *value.asString();
          return given->getAsNumber() == (value.asInt() ? double(*value.asInt()) : *value.asNumber());
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

  LogicalResult checkAllKnown() {
    SmallVector<Name> notes(any->notes);
    notes.append(family->notes.begin(), family->notes.end());
    for (const std::string &note : request.notes)
      notes.push_back({note, SMLoc()});
    for (const Name &key : config.keys) {
      auto matches = [&](const Name &pattern) {
        Expected<GlobPattern> glob = GlobPattern::create(pattern.text);
        bool isMatch = glob && glob->match(key.text);
        consumeError(glob.takeError());
        return isMatch;
      };
      if (is_contained(known, key.text) || any_of(notes, matches))
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

  /// `rope_table(width)`: what the configuration says of rotary positions.
  FailureOr<std::string> ropeTable(const Expr *call) {
    if (call->operands.size() != 1)
      return fail(call->at, "`rope_table` takes the width of a head");
    FailureOr<int64_t> width = evaluateInt(call->operands[0], scope, "as a width");
    if (failed(width))
      return failure();
    for (StringRef name : RopeFields::kNames)
      known.push_back(name);
    return RopeFields(source, config).call(*width, sequence());
  }

  FailureOr<std::string> modelCall() {
    std::string text, line = (family->call->name + "(").str();
    for (auto [i, label, argument] : enumerate(family->call->labels, family->call->operands)) {
      FailureOr<std::string> value = failure();
      if (argument->kind == Expr::Call && argument->name == "rope_table") {
        value = ropeTable(argument);
      } else if (FailureOr<Value> evaluated = evaluate(argument, scope); succeeded(evaluated)) {
        value = evaluated->text();
      }
      if (failed(value))
        return failure();
      std::string word = (label.text.empty() ? "" : label.text + " = ").str() + *value;
      if (i && line.size() + word.size() > 110) {
        text += StringRef(line).rtrim().str() + "\n";
        line = "              ";
      }
      line += word + (i + 1 < family->call->operands.size() ? ", " : ")");
    }
    return text + line;
  }

  /// Where the command line names the schedule.
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
    StringRef given = request.schedule;
    size_t end = given.rfind(".pipe:");
    if (end == StringRef::npos)
      return {given.str(), ""};
    return {given.take_front(end + 5).str(), given.drop_front(end + 6).str()};
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
       << "  schedule " << schedule << "\n"
       << "  data microbatch = 1, sequence = " << sequence() << "\n"
       << "  optimizer adamw(lr = 5e-5, beta2 = 0.999, weight_decay = 0, schedule = \"linear\", min_lr = 0, lag = 1)\n"
       << "  precision precision\n"
       << "  gradients gradients\n"
       << "}\n";
    return text;
  }

  const FolderRequest &request;
  FrontendOptions &options;
  Config config;
  std::vector<const Family *> families;
  const Family *family = nullptr, *any = nullptr;
  Scope scope{nullptr};
  SmallVector<StringRef> known; ///< fields that are read or checked
};
} // namespace

FailureOr<std::string> pp::writeProgramOf(const FolderRequest &request, SourceMgr &manager, mlir::MLIRContext *context,
                                          FrontendOptions &options) {
  Source source(manager, context);
  return FamilyReader(source, request, options).run();
}
