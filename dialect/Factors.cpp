// Reads the statements of factors, and derives those of backward ops from the op before them.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "dialect/Factors.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringExtras.h"

using namespace pp;
using llvm::SmallVector, llvm::StringRef;
using Port = FactorRule::Port;
using Group = FactorRule::Group;

bool FactorRule::Port::has(int factor) const {
  return llvm::any_of(dims, [&](const auto &dim) { return llvm::is_contained(dim, factor); });
}

int FactorRule::numberOf(StringRef factor) const {
  auto found = llvm::find_if(factors, [&](const Factor &each) { return each.name == factor; });
  return found == factors.end() ? -1 : static_cast<int>(found - factors.begin());
}

namespace {

/// Reads one statement from left to right.
class Reader {
public:
  Reader(StringRef text, std::string &why) : text(text), rest(text), why(why) {}

  bool readForward(FactorRule &rule) {
    return readGroups(rule, rule.operands) && expect("->") && readGroups(rule, rule.results) &&
           (!take(";") || readWords(rule));
  }

  /// The call of an op with values of `forward` and their gradients.
  bool readCall(const FactorRule &forward, FactorRule &rule) {
    rule.factors = forward.factors;
    rule.counts = forward.counts, rule.isRanked = forward.isRanked, rule.isEach = forward.isEach;
    SmallVector<SmallVector<std::string, 2>> words;
    while (!rest.ltrim().starts_with("->") && readCalled(words.emplace_back()))
      ;
    SmallVector<SmallVector<std::string, 2>> made;
    if (!expect("->"))
      return false;
    while (!rest.trim().empty() && !rest.ltrim().starts_with(";") && readCalled(made.emplace_back()))
      ;
    if (!why.empty() || (take(";") && !readWords(rule)))
      return false;
    for (const auto &group : made)
      if (!addCalled(forward, group, rule.results, rule))
        return false;
    for (const auto &group : words)
      if (!addCalled(forward, group, rule.operands, rule))
        return false;
    findLinear(forward, rule);
    return true;
  }

  bool isAtEnd() { return rest.trim().empty() || fail("the end"); }
  bool take(StringRef token) {
    rest = rest.ltrim();
    return rest.consume_front(token);
  }

private:
  bool fail(const llvm::Twine &expected) {
    if (why.empty())
      why = ("expected " + expected + " behind `" + text.drop_back(rest.size()).rtrim() + "`").str();
    return false;
  }
  bool expect(StringRef token) { return take(token) || fail("`" + token + "`"); }

  StringRef readName() {
    rest = rest.ltrim();
    StringRef name = rest.take_while([](char c) { return llvm::isAlnum(c) || c == '_'; });
    rest = rest.drop_front(name.size());
    return name;
  }

  bool readFactor(FactorRule &rule, llvm::SmallVectorImpl<int> &dim) {
    if (take("*")) {
      dim.push_back(-1);
      return true;
    }
    StringRef name = readName();
    if (name.empty())
      return fail("a factor");
    if (rule.numberOf(name) < 0)
      rule.factors.push_back({name.str()});
    FactorRule::Factor &factor = rule.factors[rule.numberOf(name)];
    factor.isWhole |= take("!");
    factor.isCounted |= take("@");
    dim.push_back(rule.numberOf(name));
    return true;
  }

  bool isBehindPort() {
    rest = rest.ltrim();
    return rest.empty() || StringRef(",];").contains(rest.front()) || rest.starts_with("->");
  }

  bool readPort(FactorRule &rule, Group &group) {
    Port port;
    port.isData = take("#");
    port.hasNoGradient = take("~");
    port.name = readName().str();
    if (port.name.empty())
      return fail("a name");
    if (take("=") && (port.into = readName().str()).empty())
      return fail("the name of an operand");
    if (!expect(":"))
      return false;
    port.isEach = take("..");
    while (!port.isEach && !isBehindPort()) {
      auto &dim = port.dims.emplace_back();
      if (!take("(")) {
        if (!readFactor(rule, dim))
          return false;
        continue;
      }
      while (!take(")"))
        if (!readFactor(rule, dim))
          return false;
    }
    if (port.dims.empty() && !port.isEach)
      return fail("a factor");
    group.push_back(std::move(port));
    return true;
  }

  bool readGroups(FactorRule &rule, std::vector<Group> &groups) {
    do {
      Group &group = groups.emplace_back();
      if (!take("[")) {
        if (!readPort(rule, group))
          return false;
        continue;
      }
      do
        if (!readPort(rule, group))
          return false;
      while (take(","));
      if (!expect("]"))
        return false;
    } while (take(","));
    return true;
  }

  bool readWords(FactorRule &rule) {
    for (rest = rest.ltrim(); !rest.empty() && rest.front() != '|'; rest = rest.ltrim()) {
      StringRef word = readName();
      if (word == "counts" || word == "uncounted")
        rule.counts = word == "counts";
      else if (word == "ranked")
        rule.isRanked = true;
      else if (word == "linear")
        rule.isLinear = true;
      else if (word == "each")
        rule.isEach = true;
      else if (word == "copies")
        rule.copies = true;
      else if (word == "linear_in" && expect("(") && !(word = readName()).empty() && expect(")"))
        rule.linearIn.push_back(word.str());
      else if (word.empty() || !take("("))
        return fail("counts, uncounted, ranked, linear, linear_in(name), each, copies or attribute(factors)");
      else if (!readSize(rule, rule.sizes.emplace_back(word.str(), SmallVector<int, 3>()).second))
        return false;
    }
    return true;
  }

  /// Factors that stand in the statement, and a bracket.
  bool readSize(FactorRule &rule, SmallVector<int, 3> &factors) {
    do
      if (factors.push_back(rule.numberOf(readName())); factors.back() < 0)
        return fail("a factor");
    while (!take(")"));
    return true;
  }

  /// `d(y)`, `x`, `d(x)=acc`, or several of them in brackets.
  bool readCalled(SmallVector<std::string, 2> &group) {
    bool isList = take("[");
    do {
      rest = rest.ltrim();
      StringRef word = rest.take_until([](char c) { return c == ' ' || c == ']'; });
      if (word.empty())
        return fail("a value");
      rest = rest.drop_front(word.size());
      group.push_back(word.str());
    } while (isList && !take("]"));
    return true;
  }

  /// The values that these words call: those of the op before it, their gradients, and what results go on in.
  bool addCalled(const FactorRule &forward, const SmallVector<std::string, 2> &words, std::vector<Group> &groups,
                 const FactorRule &rule) {
    Group &group = groups.emplace_back();
    for (const std::string &called : words) {
      auto [word, into] = StringRef(called).split('=');
      bool isGradient = word.consume_front("d(") && word.consume_back(")");
      const Port *value = find(forward.operands, word), *goesOn = nullptr;
      value = value ? value : find(forward.results, word);
      for (const Group &results : rule.results)
        for (const Port &result : results)
          goesOn = result.into == word ? &result : goesOn;
      if (!value && !goesOn)
        return fail("a value of the op before it in place of `" + word + "`");
      Port port = value ? *value : *goesOn;
      port.name = (isGradient ? "d" + word : word).str();
      port.into = into.str();
      if (isGradient)
        port.isData = port.hasNoGradient = false;
      group.push_back(std::move(port));
    }
    return true;
  }

  static const Port *find(const std::vector<Group> &groups, StringRef name) {
    for (const Group &group : groups)
      for (const Port &port : group)
        if (port.name == name)
          return &port;
    return nullptr;
  }

  /// A derivative is linear in the gradients that it reads, the other operands fixed; with no others, as a whole.
  void findLinear(const FactorRule &forward, FactorRule &rule) {
    bool isWhole = rule.isLinear || forward.isLinear;
    SmallVector<std::string> its;
    for (const Group &group : rule.operands)
      for (const Port &port : group) {
        bool isSum = find(forward.operands, port.name) == nullptr && find(forward.results, port.name) == nullptr;
        isWhole &= isSum || port.isData;
        if (isSum)
          its.push_back(port.name);
      }
    rule.isLinear = isWhole;
    if (!isWhole)
      rule.linearIn = its;
  }

  StringRef text, rest;
  std::string &why;
};

} // namespace

std::optional<FactorRule> pp::parseFactors(StringRef text, std::string &why) {
  why.clear();
  auto [before, call] = text.split('|');
  FactorRule forward;
  Reader reader(before, why);
  if (!reader.readForward(forward) || !reader.isAtEnd())
    return std::nullopt;
  if (call.empty())
    return forward;
  FactorRule rule;
  Reader caller(call, why);
  if (!caller.readCall(forward, rule) || !caller.isAtEnd())
    return std::nullopt;
  return rule;
}
