// The tree of a `.pipe` file; nodes live in the arena of its Source and are never changed once parsed.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_FRONTEND_AST_H
#define PP_FRONTEND_AST_H

#include "llvm/ADT/ArrayRef.h"
#include "llvm/ADT/StringRef.h"
#include "llvm/Support/Casting.h"
#include "llvm/Support/SMLoc.h"
#include <optional>
#include <vector>

namespace pp {

using llvm::ArrayRef;
using llvm::SMLoc;
using llvm::StringRef;

struct Name {
  StringRef text; // interned
  SMLoc at;
};

//===-- Expressions ---------------------------------------------------------------------------------------------===//

struct Expr;

/// `for NAME in list` or `for [NAME, ..] in list` of a list.
struct Generator {
  ArrayRef<Name> names;
  bool unpacks;
  Expr *list;
};

struct Expr {
  // clang-format off
  enum Kind { Integer, Number, String, Boolean, Variable, Negate, Add, Subtract, Multiply, Divide, Quotient, Modulo,
              Range, Compare, Not, And, Or, Conditional, Index, Call, List, Comprehension };
  enum Comparison { Equal, Unequal, Less, LessEqual, Greater, GreaterEqual, In };
  // clang-format on
  Kind kind;
  SMLoc at;       // of the operator where there is one
  StringRef text; // as written
  StringRef name; // of a variable or of what is called; the value of a string
  int64_t integer = 0;
  double number = 0;
  ArrayRef<Expr *> operands;
  ArrayRef<Comparison> comparisons;
  ArrayRef<Name> labels; // of a call's named arguments, empty text for the others
  ArrayRef<Generator> generators;
  Expr *filter = nullptr;
  unsigned depth = 1; // of the tree below, itself included
};

//===-- Statements ----------------------------------------------------------------------------------------------===//

struct Statement {
  // clang-format off
  enum Kind { Let, Assign, Call, Function, Require, Return, For, Repeat, While, If, On,
              Unit, Move, Joint, Attend, Cut, Limit, Recompute, Updates, Lost };
  // clang-format on
  Kind kind;
  SMLoc at;
  bool isWrong = false; ///< it could not be read; only the names that it defines and the blocks in it may be there
};

template <Statement::Kind K> struct StatementOf : Statement {
  StatementOf() : Statement{K, {}} {}
  static bool classof(const Statement *statement) { return statement->kind == K; }
};

using Block = ArrayRef<Statement *>;

struct LetStatement : StatementOf<Statement::Let> {
  struct Definition {
    Name name;
    Expr *value;
  };
  ArrayRef<Definition> definitions;
  bool changes; // `var`
};

struct AssignStatement : StatementOf<Statement::Assign> {
  StringRef name;
  ArrayRef<Expr *> indices;
  Expr *value;
};

struct CallStatement : StatementOf<Statement::Call> {
  Expr *call;
};

struct Function : StatementOf<Statement::Function> {
  Name name;
  ArrayRef<Name> parameters;
  Expr *value = nullptr; // fn f(x) = value
  Block body;
};

struct RequireStatement : StatementOf<Statement::Require> {
  Expr *condition;
  StringRef reason;
};

struct ReturnStatement : StatementOf<Statement::Return> {
  Expr *value;
};

struct ForStatement : StatementOf<Statement::For> {
  Generator generator;
  Block body;
};

/// `repeat` and `while`.
struct RepeatStatement : StatementOf<Statement::Repeat> {
  Expr *count;
  Block body;
};

struct WhileStatement : StatementOf<Statement::While> {
  Expr *condition;
  Block body;
};

struct IfStatement : StatementOf<Statement::If> {
  Expr *condition;
  Block body, otherwise;
};

struct OnStatement : StatementOf<Statement::On> {
  StringRef name; // empty for `on 3 { .. }`
  Expr *ranks;
  Block body;
};

struct UnitStatement : StatementOf<Statement::Unit> {
  char phase;
  StringRef text;
  ArrayRef<Expr *> coordinates;
  ArrayRef<Expr *> weight; ///< of `with weight(s, v)`: the piece and the version, or empty
};

struct Thing {
  Name role;
  StringRef text;
  ArrayRef<Expr *> coordinates;
};

struct Place {
  enum Kind { Plain, Shard, Host };
  Kind kind;
  SMLoc at;
  Expr *ranks;
};

struct MoveStatement : StatementOf<Statement::Move> {
  ArrayRef<Thing> things;
  const Place *from = nullptr;
  const Place *to;
};

/// `together`.
struct JointStatement : StatementOf<Statement::Joint> {
  Block body;
};

struct AttendStatement : StatementOf<Statement::Attend> {
  UnitStatement *unit;
  Expr *slices, *rank;
};

struct Clause {
  Name word; // at, weight, opt, layers
  const Place *place = nullptr;
  Expr *layers = nullptr;
};

/// `stage s of n ..` and `part x(l) = a + b ..`.
struct CutStatement : StatementOf<Statement::Cut> {
  bool isStage;
  Name name;  // of the part; of the index of a stage
  Name index; // empty text for a part that exists once
  Expr *count = nullptr;
  ArrayRef<Name> joined;
  ArrayRef<Clause> clauses;
};

struct LimitStatement : StatementOf<Statement::Limit> {
  struct Claim {
    Name role;
    Expr *count;
  };
  ArrayRef<Claim> claims;
};

/// Nobody knows which statement was meant.
struct LostStatement : StatementOf<Statement::Lost> {
  Statement *head = nullptr; ///< what was read in front of the block
  Block body;
};

struct UpdatesStatement : StatementOf<Statement::Updates> {
  Expr *count;
};

struct RecomputeStatement : StatementOf<Statement::Recompute> {
  ArrayRef<Expr *> pieces, of; ///< pieces, or parts of the model: inside every stage, or inside those of `of`
};

//===-- Declarations --------------------------------------------------------------------------------------------===//

struct Parameter {
  StringRef role; // ranks, microbatches, slices or empty
  Name name;
  Expr *value = nullptr;
};

/// What stands in a file under a name. Where reading failed, what is there was read in whole and the rest is missing.
struct Declaration {
  Name name;
  ArrayRef<Parameter> parameters;
  bool isHeadWrong = false; ///< the parameters are not known
  bool isWrong = false;     ///< something of the body is missing
};

struct Schedule : Declaration {
  Block body;
};

struct WeightDeclaration {
  Name name;
  ArrayRef<Expr *> dimensions;
  Expr *init = nullptr;
  Expr *checkpoint = nullptr; // `as "name"` or `as transpose("name")`
  Expr *condition = nullptr;  // `if c`: where it does not hold, the weight is not there
  ArrayRef<SMLoc> calls;      ///< of the blocks that declare it, outermost first
};

/// `column ids[16] int = 0`: what the dataset has for each token.
struct ColumnDeclaration {
  Name name;
  Expr *width = nullptr; ///< null: one value a token
  bool isInt = false;
  Expr *absent = nullptr; ///< the value of all tokens of a dataset without the column; null: there is none
};

/// What a part and a block hold.
struct ModelBody {
  struct Definition {
    ArrayRef<Name> names;
    Expr *value;
    ArrayRef<SMLoc> calls = {}; ///< of the blocks that it came from, outermost first
  };
  ArrayRef<WeightDeclaration> weights;
  ArrayRef<Definition> definitions;
  SMLoc returnAt;
  ArrayRef<Expr *> results;
  ArrayRef<Name> reports; ///< of a part: the names of its last results, which are logged and not trained
};

struct ModelPart : ModelBody {
  Name name;
  std::optional<unsigned> kind;  ///< of the layers that have it; none: it exists once
  ArrayRef<int64_t> layerValues; ///< of `layer NAME in [..]`, the value of each NAME for the layers of this kind
  ArrayRef<Name> parameters;
  ArrayRef<Name> sources; ///< by parameter what `e from embed` names, a part or data; no text: the part before, or data
  ArrayRef<Expr *> aheads;   ///< by parameter the k of `next from tokens + k`
  Expr *condition = nullptr; ///< `if c`: where it does not hold, the part is not there
  bool isWrong = false;      ///< only the name and the kind are known
};

/// `NAME in [..]` of a `layer`: the value of every layer.
struct LayerVariable {
  Name name;
  Expr *values;
};

struct Model : Declaration {
  ArrayRef<WeightDeclaration> weights;
  ArrayRef<ColumnDeclaration> columns;
  ArrayRef<ModelPart> parts; ///< in the order of the text
  ArrayRef<Name> kinds;      ///< of layers; the text is empty for `layer { .. }`
  Block requirements;        ///< `require ..` about the parameters
  Expr *kindOf = nullptr;    ///< `layers [..]`: the kind of every layer
  SMLoc kindOfAt;
  ArrayRef<LayerVariable> layerVariables; ///< `layer NAME in [..], ..`: layers of equal values are a kind
  ArrayRef<unsigned> kindNumbers;         ///< by layer, once the values are known
};

/// `block NAME(values; options) { .. }`: a piece of a part, with its weights. `parameters` are the options.
struct ModelBlock : Declaration, ModelBody {
  ArrayRef<Name> values;
};

/// The rules for a `config.json` of one `model_type`: the fields from which a model's parameters are made.
struct Family {
  struct Field {
    Name name;
    Expr *absent = nullptr, *null = nullptr; ///< what it is where the file does not say; no `absent`: it must
  };
  struct Only {
    Name name;
    Expr *values;
  };
  Name name;             ///< the `model_type`; "any": what holds for all families; of `common NAME`: that name
  bool isCommon = false; ///< what families that name it behind `with` have, where they say nothing else
  ArrayRef<Name> commons;
  StringRef inside; ///< of `inside FIELD as TYPE at PREFIX`: the field with the model that is trained, ..
  StringRef inner;  ///< .. its model_type where it has none ..
  StringRef prefix; ///< .. and what stands in front of the names of its tensors
  StringRef lacks;  ///< what is missing; the family is refused, and has nothing else
  ArrayRef<Field> fields;
  ArrayRef<Only> only;
  ArrayRef<Name> notes; ///< patterns of fields that change nothing
  ArrayRef<Name> kept;  ///< patterns of tensors that are no weights of the model, with `{FIELD}` for what the file says
  ArrayRef<LetStatement::Definition> definitions;
  Block requirements;
  Expr *call = nullptr;       ///< of the model
  ArrayRef<Name> labels;      ///< of a common's `arguments NAME = .., ..`: of the model's call
  ArrayRef<Expr *> arguments; ///< their values
};

/// `"label", .. call` of an option that chooses by name.
struct Choice {
  ArrayRef<Name> labels;
  Expr *call;
};

struct Option {
  Name name;
  ArrayRef<Name> labels; // of `data microbatch = 4, ..`, with `values`
  ArrayRef<Expr *> values;
  ArrayRef<Name> texts;    // `freeze "a", "b"`
  ArrayRef<Name> parts;    // `mesh of head, embed tensor = 1`
  Expr *value = nullptr;   // `model llama(..)`, `precision f32`
  Expr *chooser = nullptr; // `schedule choose name { .. }`
  ArrayRef<Choice> choices;
};

struct Train : Declaration {
  ArrayRef<Option> options;
  ArrayRef<RecomputeStatement *> recomputes;
};

struct Cluster : Declaration {
  ArrayRef<Option> options;
};

struct File {
  std::vector<Name> imports;
  std::vector<const Function *> functions;
  std::vector<const Schedule *> schedules;
  std::vector<const Model *> models;
  std::vector<const ModelBlock *> blocks;
  std::vector<const Train *> trains;
  std::vector<const Cluster *> clusters;
  std::vector<const Family *> families;
  bool isWrong = false;      ///< errors were told
  bool isIncomplete = false; ///< a declaration or an import is missing
};

} // namespace pp

#endif // PP_FRONTEND_AST_H
