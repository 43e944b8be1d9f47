// Reads a whole file: imports, functions, schedules, models and training programs.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "frontend/syntax/Parser.h"

using namespace llvm;
using namespace pp;

namespace {
class FileParser : StatementParser {
public:
  using StatementParser::StatementParser;

  mlir::FailureOr<File> file() {
    File made;
    while (take("import")) {
      SMLoc begin = peek().at;
      made.imports.push_back({expectString(), begin});
    }
    declarations([&] { declaration(made); });
    if (failed())
      return mlir::failure();
    return made;
  }

private:
  void declaration(File &file) {
    if (at("fn"))
      file.functions.push_back(function());
    else if (take("schedule"))
      file.schedules.push_back(schedule());
    else if (take("model"))
      file.models.push_back(model());
    else if (take("train"))
      file.trains.push_back(train());
    else if (take("cluster"))
      file.clusters.push_back(cluster());
    else if (peek().kind == Token::Name && peek().text == "family")
      append_range(file.families, families());
    else if (at("import"))
      fail(peek().at, "imports must stand before everything else in a file");
    else
      failExpected("a declaration (fn, schedule, model, train or cluster)",
                   {"import", "fn", "schedule", "model", "train", "cluster"});
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

  const Schedule *schedule() {
    auto *node = make<Schedule>();
    node->name = expectName();
    node->parameters = parameters(/*roles=*/true);
    node->body = block();
    return node;
  }

  //===-- Models ------------------------------------------------------------------------------------------------===//

  const Model *model() {
    allowsNumbers = allowsLabels = true;
    auto *node = make<Model>();
    node->name = expectName();
    node->parameters = parameters(/*roles=*/false);
    SmallVector<WeightDeclaration> shared;
    SmallVector<ModelPart> parts;
    SmallVector<Name> kinds;
    SmallVector<Statement *> requirements;
    braces([&] {
      if (at("weight"))
        weights(shared);
      else if (at("require"))
        requirements.push_back(statement());
      else if (at("layers"))
        kindOf(*node);
      else if (peek().kind == Token::Name && peek().text == "layer")
        layer(*node, parts, kinds);
      else
        parts.push_back(part(std::nullopt));
    });
    node->requirements = keep(ArrayRef<Statement *>(requirements));
    node->kinds = keep(ArrayRef<Name>(kinds));
    node->weights = keep(ArrayRef<WeightDeclaration>(shared));
    node->parts = keep(ArrayRef<ModelPart>(parts));
    allowsNumbers = allowsLabels = false;
    return node;
  }

  void kindOf(Model &model) {
    SMLoc begin = next().at;
    if (model.kindOf)
      fail(begin, "the kinds of the layers are given twice", model.kindOfAt, "first given here");
    model.kindOf = expression();
    model.kindOfAt = begin;
  }

  void layer(Model &model, SmallVector<ModelPart> &parts, SmallVector<Name> &kinds) {
    Name kind{"", next().at};
    if (!at("{"))
      kind = expectName();
    if (at("in")) {
      model.layerVariables = layerVariables(kind);
      kind.text = "";
    }
    braces([&] { parts.push_back(part(kinds.size())); });
    kinds.push_back(kind);
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
      failExpected(kind ? "`part`" : "`part`, `layer`, `layers`, `require` or `weight`",
                   {"part", "layer", "layers", "require", "weight"});
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
    expect("{");
    SmallVector<WeightDeclaration> own;
    SmallVector<ModelPart::Definition> definitions;
    while (at("weight") || at("let")) {
      if (at("weight")) {
        weights(own);
        continue;
      }
      next();
      ArrayRef<Name> names = list<Name>([&] { return expectName(); });
      expect("=");
      definitions.push_back({names, expression()});
    }
    made.returnAt = peek().at;
    if (!take("return"))
      failExpected("`return`, `let` or `weight`", {"return", "let", "weight"});
    made.results = list<Expr *>([&] { return expression(); });
    expect("}");
    made.weights = keep(ArrayRef<WeightDeclaration>(own));
    made.definitions = keep(ArrayRef<ModelPart::Definition>(definitions));
    return made;
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

  bool takeName(StringRef text) {
    if (peek().kind != Token::Name || peek().text != text)
      return false;
    next();
    return true;
  }

  //===-- Families ----------------------------------------------------------------------------------------------===//

  /// One that is read, or several that lack the same.
  SmallVector<const Family *> families() {
    next();
    ArrayRef<Name> names = list<Name>([&] { return pattern(); });
    if (names.size() == 1 && at("{"))
      return {family(names.front())};
    SmallVector<const Family *> made;
    if (!takeName("lacks"))
      failExpected(names.size() == 1 ? "`{` or `lacks`" : "`lacks`");
    StringRef what = expectString();
    for (Name name : names) {
      auto *node = make<Family>();
      node->name = name;
      node->lacks = what;
      made.push_back(node);
    }
    return made;
  }

  const Family *family(Name name) {
    allowsNumbers = allowsLabels = allowsWords = true;
    auto *node = make<Family>();
    node->name = name;
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
      else
        failExpected("`read`, `only`, `note`, `keep`, `let`, `require` or `model`");
    });
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
  Name pattern() {
    if (peek().kind == Token::Name)
      return expectName();
    SMLoc begin = peek().at;
    return {expectString(), begin};
  }

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

  const Train *train() {
    allowsNumbers = allowsLabels = allowsWords = true;
    auto *node = make<Train>();
    node->name = expectName();
    if (at("("))
      node->parameters = parameters(/*roles=*/false);
    SmallVector<Option> options;
    SmallVector<RecomputeStatement *> recomputes;
    braces([&] {
      if (at("recompute"))
        recomputes.push_back(recompute());
      else
        options.push_back(option());
    });
    node->options = keep(ArrayRef<Option>(options));
    node->recomputes = keep(ArrayRef<RecomputeStatement *>(recomputes));
    allowsNumbers = allowsLabels = allowsWords = false;
    return node;
  }

  const Cluster *cluster() {
    allowsNumbers = allowsLabels = allowsWords = true;
    auto *node = make<Cluster>();
    node->name = expectName();
    if (at("("))
      node->parameters = parameters(/*roles=*/false);
    SmallVector<Option> options;
    braces([&] { options.push_back(option()); });
    node->options = keep(ArrayRef<Option>(options));
    allowsNumbers = allowsLabels = allowsWords = false;
    return node;
  }

  Option option() {
    Option made;
    made.name = expectWord();
    if (made.name.text == "mesh" && take("of"))
      made.parts = list<Name>([&] { return expectName(); });
    if (peek(1).is("=")) {
      SmallVector<Name> labels;
      SmallVector<Expr *> values;
      do {
        labels.push_back(expectWord());
        expect("=");
        values.push_back(expression());
      } while (take(","));
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

  /// `"a", "b"`.
  ArrayRef<Name> texts() {
    return list<Name>([&] {
      SMLoc begin = peek().at;
      return Name{expectString(), begin};
    });
  }

  ArrayRef<Choice> choices() {
    SmallVector<Choice> made;
    braces([&] {
      ArrayRef<Name> labels = texts();
      made.push_back({labels, postfix()});
    });
    return keep(ArrayRef<Choice>(made));
  }
};
} // namespace

mlir::FailureOr<File> pp::parse(Source &source, StringRef buffer) {
  return FileParser(source, lex(source, buffer)).file();
}
