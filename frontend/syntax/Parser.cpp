// Reads a whole file: imports, functions, schedules, models and training programs.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "frontend/syntax/Parser.h"

using namespace llvm;
using namespace pp;

namespace {
class FileParser : StatementParser {
public:
  using StatementParser::StatementParser;

  File file() {
    File made;
    while (take("import")) {
      Name import = text();
      if (mishaps == 0)
        made.imports.push_back(import);
    }
    made.isIncomplete = mishaps > 0;
    declarations([&] { declaration(made); });
    made.isIncomplete |= broken;
    made.isWrong = failed();
    return made;
  }

private:
  void declaration(File &file) {
    if (at("fn"))
      add(file, file.functions, fileFunction());
    else if (take("schedule"))
      add(file, file.schedules, schedule());
    else if (take("model"))
      add(file, file.models, model());
    else if (takeName("block"))
      add(file, file.blocks, modelBlock());
    else if (take("train"))
      add(file, file.trains, train());
    else if (take("cluster"))
      add(file, file.clusters, cluster());
    else if (takeName("family"))
      append_range(file.families, families());
    else if (takeName("common"))
      file.families.push_back(common());
    else {
      file.isIncomplete = true;
      if (last)
        *last = true; // which may have ended too early
      if (at("import"))
        fail(peek().at, "imports must stand before everything else in a file");
      else
        failExpected("a declaration (fn, schedule, model, block, train or cluster)",
                     {"import", "fn", "schedule", "model", "block", "train", "cluster"});
    }
  }

  template <typename T> void add(File &file, std::vector<const T *> &into, T *made) {
    last = &made->isWrong;
    if (made->name.text.empty())
      file.isIncomplete = true;
    else
      into.push_back(made);
  }

  Function *fileFunction() {
    Function *made = nullptr;
    allowsNumbers = allowsLabels = true; // of tensors, too
    bool isWhole = isRead([&] { made = function(); });
    allowsNumbers = allowsLabels = false;
    made->isWrong = !isWhole;
    return made;
  }

  /// The name and the parameters, which a training program and a cluster may lack; their name may be a reserved word,
  /// as that of the family `opt` is.
  void head(Declaration &into, bool roles, bool isOptional) {
    unsigned before = mishaps;
    into.name = isOptional ? expectWord() : expectName();
    if (!isOptional || at("("))
      into.parameters = parameters(roles);
    into.isHeadWrong = mishaps != before;
  }

  // The parameters of schedules have roles; those of models and trains may be reserved words.
  Parameter parameter(bool roles) {
    Parameter made;
    if (roles && (at("ranks") || at("microbatches") || at("slices")))
      made.role = next().text;
    bool word = !roles && (allowsWords || at("layers"));
    made.name = word ? expectWord() : expectName();
    if (roles && made.role.empty() && peek().kind == Token::Name)
      fail(made.name.at, "expected a role before `" + peek().text + "` (`ranks`, `microbatches` or `slices`), got `" +
                             made.name.text + "`" + didYouMean(made.name.text, {"ranks", "microbatches", "slices"}));
    if (take("="))
      made.value = expression();
    return made;
  }

  ArrayRef<Parameter> parameters(bool roles) {
    ArrayRef<Parameter> made;
    expect("(");
    if (!at(")"))
      made = list<Parameter>([&] { return parameter(roles); });
    expect(")");
    return made;
  }

  Schedule *schedule() {
    auto *node = make<Schedule>();
    unsigned before = mishaps;
    head(*node, /*roles=*/true, /*isOptional=*/false);
    node->body = block();
    node->isWrong = mishaps != before;
    return node;
  }

  //===-- Models ------------------------------------------------------------------------------------------------===//

  Model *model() {
    allowsNumbers = allowsLabels = true;
    auto *node = make<Model>();
    unsigned before = mishaps, inParts = 0;
    head(*node, /*roles=*/false, /*isOptional=*/false);
    SmallVector<WeightDeclaration> shared;
    SmallVector<ColumnDeclaration> columns;
    SmallVector<ModelPart> parts;
    SmallVector<Name> kinds;
    SmallVector<Statement *> requirements;
    auto addPart = [&](std::optional<unsigned> kind) {
      unsigned before = mishaps;
      ModelPart made = part(kind);
      made.isWrong = mishaps != before;
      if (made.name.text.empty())
        return;
      inParts += mishaps - before;
      parts.push_back(made);
    };
    auto item = [&] {
      if (at("weight"))
        weights(shared);
      else if (at("require"))
        requirements.push_back(statement());
      else if (at("layers"))
        kindOf(*node);
      else if (takeName("column"))
        append_range(columns, list<ColumnDeclaration>([&] { return column(); }));
      else if (atName("layer"))
        layer(*node, kinds, parts, addPart);
      else
        addPart(std::nullopt);
    };
    bool isWhole = isRead([&] { braces(item); });
    node->isWrong = !isWhole || mishaps != before + inParts;
    node->requirements = keep(ArrayRef<Statement *>(requirements));
    node->kinds = keep(ArrayRef<Name>(kinds));
    node->weights = keep(ArrayRef<WeightDeclaration>(shared));
    node->columns = keep(ArrayRef<ColumnDeclaration>(columns));
    node->parts = keep(ArrayRef<ModelPart>(parts));
    allowsNumbers = allowsLabels = false;
    return node;
  }

  void kindOf(Model &model) {
    SMLoc begin = next().at;
    if (model.kindOf)
      fail(begin, "the kinds of the layers are given twice", model.kindOfAt, "first given here");
    model.isHeadWrong |= !isRead([&] { model.kindOf = expression(); });
    model.kindOfAt = begin;
  }

  /// `layer { .. }`, `layer NAME in LIST { .. }`, or `layer NAME, .. { .. }`: several kinds with parts of one text.
  void layer(Model &model, SmallVector<Name> &kinds, SmallVectorImpl<ModelPart> &parts,
             function_ref<void(unsigned)> addPart) {
    unsigned before = mishaps;
    SmallVector<Name> names = {{"", next().at}};
    if (!at("{"))
      names[0] = expectName();
    if (at("in")) {
      model.layerVariables = layerVariables(names[0]);
      names[0].text = "";
    }
    while (!names[0].text.empty() && take(","))
      names.push_back(expectName());
    model.isHeadWrong |= mishaps != before;
    const size_t begin = parts.size();
    braces([&] { addPart(kinds.size()); });
    const SmallVector<ModelPart> its(parts.begin() + begin, parts.end());
    for (auto [i, name] : enumerate(names)) {
      for (ModelPart part : i ? ArrayRef(its) : ArrayRef<ModelPart>()) {
        part.kind = kinds.size();
        parts.push_back(part);
      }
      kinds.push_back(name);
    }
  }

  ArrayRef<LayerVariable> layerVariables(Name name) {
    SmallVector<LayerVariable> variables;
    for (;; name = expectName()) {
      expect("in");
      variables.push_back({name, expression()});
      if (!at(","))
        return keep(ArrayRef<LayerVariable>(variables));
      next();
    }
  }

  ModelPart part(std::optional<unsigned> kind) {
    ModelPart made;
    made.kind = kind;
    if (!at("part"))
      failExpected(kind ? "`part`" : "`part`, `layer`, `layers`, `require`, `weight` or `column`",
                   {"part", "layer", "layers", "require", "weight", "column"});
    next();
    made.name = expectName();
    expect("(");
    SmallVector<Name> sources;
    SmallVector<Expr *> aheads;
    made.parameters = list<Name>([&] {
      Name name = expectName();
      sources.push_back(take("from") ? expectName() : Name());
      if (!sources.back().text.empty() && at("["))
        fail(peek().at, "`from` names a part that exists once, not `" + sources.back().text + "` of some layer");
      aheads.push_back(!sources.back().text.empty() && take("+") ? expression() : nullptr);
      return name;
    });
    made.sources = keep(ArrayRef<Name>(sources));
    made.aheads = keep(ArrayRef<Expr *>(aheads));
    expect(")");
    if (take("if"))
      made.condition = expression();
    body(made, /*mayReport=*/true);
    return made;
  }

  /// `{ weights, lets and reports  return .. }`
  void body(ModelBody &made, bool mayReport = false) {
    expect("{");
    SmallVector<WeightDeclaration> own;
    SmallVector<ModelBody::Definition> definitions;
    SmallVector<Name> reports;
    SmallVector<Expr *> reported;
    while (at("weight") || at("let") || (mayReport && atName("report"))) {
      if (at("weight")) {
        weights(own);
        continue;
      }
      if (takeName("report")) {
        reports.push_back(expectName());
        expect("=");
        reported.push_back(expression());
        continue;
      }
      next();
      ArrayRef<Name> names = list<Name>([&] { return expectName(); });
      expect("=");
      definitions.push_back({names, expression(), {}});
    }
    made.returnAt = peek().at;
    if (!take("return"))
      failExpected("`return`, `let` or `weight`", {"return", "let", "weight"});
    SmallVector<Expr *> results(list<Expr *>([&] { return expression(); }));
    results.append(reported);
    made.results = keep(ArrayRef<Expr *>(results));
    made.reports = keep(ArrayRef<Name>(reports));
    expect("}");
    made.weights = keep(ArrayRef<WeightDeclaration>(own));
    made.definitions = keep(ArrayRef<ModelBody::Definition>(definitions));
  }

  /// `block NAME(x, y; width, epsilon = 1e-5) { .. }`
  ModelBlock *modelBlock() {
    allowsNumbers = allowsLabels = true;
    auto *node = make<ModelBlock>();
    unsigned before = mishaps;
    node->name = expectName();
    expect("(");
    node->values = list<Name>([&] { return expectName(); });
    allowsWords = true; // `at`, which the block reads as "{at}"
    if (take(";"))
      node->parameters = list<Parameter>([&] { return parameter(/*roles=*/false); });
    allowsWords = false;
    expect(")");
    body(*node);
    node->isWrong = mishaps != before;
    allowsNumbers = allowsLabels = false;
    return node;
  }

  void weights(SmallVector<WeightDeclaration> &into) {
    next();
    do {
      WeightDeclaration made;
      made.name = expectName();
      expect("[");
      made.dimensions = list<Expr *>([&] { return expression(); });
      expect("]");
      // `init` and `as` are reserved nowhere else, so that values may have these names.
      if (takeName("init"))
        made.init = expression();
      if (takeName("as"))
        made.checkpoint = expression();
      if (take("if"))
        made.condition = expression();
      into.push_back(made);
    } while (take(","));
  }

  ColumnDeclaration column() {
    ColumnDeclaration made;
    made.name = expectName();
    if (take("[")) {
      made.width = expression();
      expect("]");
    }
    made.isInt = takeName("int");
    if (take("="))
      made.absent = expression();
    return made;
  }

  bool atName(StringRef text) const { return peek().kind == Token::Name && peek().text == text; }
  bool takeName(StringRef text) {
    if (!atName(text))
      return false;
    next();
    return true;
  }

  //===-- Families ----------------------------------------------------------------------------------------------===//

  /// One that is read, or several that lack the same.
  SmallVector<const Family *> families() {
    ArrayRef<Name> names = list<Name>([&] { return pattern(); });
    if (names.size() == 1 && (at("{") || at("with") || peek().text == "inside"))
      return {family(names.front())};
    SmallVector<const Family *> made;
    if (!takeName("lacks"))
      failExpected(names.size() == 1 ? "`{`, `with`, `inside` or `lacks`" : "`lacks`");
    StringRef what = expectString();
    for (Name name : names) {
      auto *node = make<Family>();
      node->name = name;
      node->lacks = what;
      made.push_back(node);
    }
    return made;
  }

  const Family *common() {
    Family *made = family(expectName());
    made->isCommon = true;
    return made;
  }

  Family *family(Name name) {
    allowsNumbers = allowsLabels = allowsWords = true;
    auto *node = make<Family>();
    node->name = name;
    if (takeName("inside")) {
      node->inside = expectString();
      if (!takeName("as"))
        failExpected("`as`");
      node->inner = expectString();
      expect("at");
      node->prefix = expectString();
    }
    if (take("with"))
      node->commons = list<Name>([&] { return expectName(); });
    SmallVector<Name> labels;
    SmallVector<Expr *> arguments;
    SmallVector<Family::Field> fields;
    SmallVector<Family::Only> only;
    SmallVector<Name> notes, kept;
    SmallVector<LetStatement::Definition> definitions;
    SmallVector<Statement *> requirements;
    braces([&] {
      if (takeName("read"))
        append_range(fields, list<Family::Field>([&] { return field(); }));
      else if (takeName("only"))
        only.push_back(onlyOf());
      else if (takeName("note"))
        append_range(notes, list<Name>([&] { return pattern(); }));
      else if (takeName("keep"))
        append_range(kept, list<Name>([&] { return pattern(); }));
      else if (take("let"))
        definitions.push_back(definition());
      else if (at("require"))
        requirements.push_back(statement());
      else if (take("model"))
        node->call = postfix();
      else if (takeName("arguments"))
        labelled(labels, arguments);
      else
        failExpected("`read`, `only`, `note`, `keep`, `let`, `require`, `arguments` or `model`");
    });
    node->labels = keep(ArrayRef<Name>(labels));
    node->arguments = keep(ArrayRef<Expr *>(arguments));
    node->fields = keep(ArrayRef<Family::Field>(fields));
    node->only = keep(ArrayRef<Family::Only>(only));
    node->notes = keep(ArrayRef<Name>(notes));
    node->kept = keep(ArrayRef<Name>(kept));
    node->definitions = keep(ArrayRef<LetStatement::Definition>(definitions));
    node->requirements = keep(ArrayRef<Statement *>(requirements));
    allowsNumbers = allowsLabels = allowsWords = false;
    return node;
  }

  /// A name, or a string with `*` for any characters.
  Name pattern() { return peek().kind == Token::Name ? expectName() : text(); }

  Family::Field field() {
    Family::Field made;
    made.name = expectName();
    bool isNullAbsent = takeName("null");
    if (isNullAbsent)
      expect("=");
    if (isNullAbsent || take("="))
      made.absent = expression();
    made.null = isNullAbsent ? made.absent : takeName("null") ? expression() : nullptr;
    return made;
  }

  Family::Only onlyOf() {
    Family::Only made;
    made.name = expectName();
    expect("in");
    made.values = expression();
    return made;
  }

  LetStatement::Definition definition() {
    LetStatement::Definition made;
    made.name = expectName();
    expect("=");
    made.value = expression();
    return made;
  }

  //===-- Training programs -------------------------------------------------------------------------------------===//

  Train *train() {
    allowsNumbers = allowsLabels = allowsWords = true;
    auto *node = make<Train>();
    unsigned before = mishaps;
    head(*node, /*roles=*/false, /*isOptional=*/true);
    SmallVector<Option> options;
    SmallVector<RecomputeStatement *> recomputes;
    braces([&] {
      if (!at("recompute"))
        return addOption(options);
      unsigned before = mishaps;
      RecomputeStatement *made = recompute();
      if (mishaps == before)
        recomputes.push_back(made);
    });
    node->isWrong = mishaps != before;
    node->options = keep(ArrayRef<Option>(options));
    node->recomputes = keep(ArrayRef<RecomputeStatement *>(recomputes));
    allowsNumbers = allowsLabels = allowsWords = false;
    return node;
  }

  Cluster *cluster() {
    allowsNumbers = allowsLabels = allowsWords = true;
    auto *node = make<Cluster>();
    unsigned before = mishaps;
    head(*node, /*roles=*/false, /*isOptional=*/true);
    SmallVector<Option> options;
    braces([&] { addOption(options); });
    node->isWrong = mishaps != before;
    node->options = keep(ArrayRef<Option>(options));
    allowsNumbers = allowsLabels = allowsWords = false;
    return node;
  }

  /// One that could not be read is left out, and so is the one that the error may belong to.
  void addOption(SmallVector<Option> &options) {
    unsigned before = mishaps;
    bool isOne = mayGoOn() && !options.empty();
    Option made = option();
    if (mishaps == before)
      options.push_back(made);
    else if (isOne)
      options.pop_back();
  }

  Option option() {
    Option made;
    made.name = expectWord();
    if (made.name.text == "mesh" && take("of"))
      made.parts = list<Name>([&] { return expectName(); });
    if (peek(1).is("=")) {
      SmallVector<Name> labels;
      SmallVector<Expr *> values;
      labelled(labels, values);
      made.labels = keep(ArrayRef<Name>(labels));
      made.values = keep(ArrayRef<Expr *>(values));
    } else if (made.name.text == "freeze") {
      made.texts = texts();
    } else if (peek().kind == Token::Name && peek().text == "choose" && !peek(1).is("(")) {
      next();
      made.chooser = expression();
      made.choices = choices();
    } else {
      made.value = postfix();
    }
    return made;
  }

  /// `a = 1, b = 2`.
  void labelled(SmallVector<Name> &labels, SmallVector<Expr *> &values) {
    do {
      labels.push_back(expectWord());
      expect("=");
      values.push_back(expression());
    } while (take(","));
  }

  /// `"a", "b"`.
  ArrayRef<Name> texts() {
    return list<Name>([&] { return text(); });
  }

  Name text() {
    SMLoc begin = peek().at;
    return {expectString(), begin};
  }

  ArrayRef<Choice> choices() {
    SmallVector<Choice> made;
    braces([&] {
      ArrayRef<Name> labels = texts();
      made.push_back({labels, postfix()});
    });
    return keep(ArrayRef<Choice>(made));
  }

  bool *last = nullptr; ///< whether the declaration that was read last is wrong
};
} // namespace

File pp::parse(Source &source, StringRef buffer) { return FileParser(source, lex(source, buffer)).file(); }
