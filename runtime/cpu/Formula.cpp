// Reads formulas, and runs them an instruction at a time on whole rows, in the type of sums.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "runtime/cpu/Formula.h"
#include "runtime/Program.h"
#include "runtime/Rank.h"
#include "runtime/files/Half.h"
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <sstream>

using namespace pp;

enum class pp::Function : uint8_t {
#define PP_ELEMENT(name, count) name,
#include "runtime/cpu/Elements.def"
};

namespace {

enum Axis : unsigned { Rows = 1, Heads = 2, Columns = 4 };

constexpr struct {
  const char *name;
  unsigned count;
} functions[] = {
#define PP_ELEMENT(name, count) {#name, count},
#include "runtime/cpu/Elements.def"
};

bool readAxes(const std::string &text, unsigned &axes) {
  axes = 0;
  for (char c : text)
    axes |= c == 't' ? 1U : c == 'h' ? 2U : c == 'd' ? 4U : c == '-' ? 0U : 8U;
  return axes < 8;
}

bool readType(const std::string &text, Type &type) {
  static constexpr const char *names[] = {"f32", "bf16", "f64", "f16"};
  for (int i = 0; i < typeCount; ++i)
    if (text == names[i]) {
      type = Type(i);
      return true;
    }
  return false;
}

template <class F> F load(Type type, const void *from, int64_t i) {
  switch (type) {
  case Type::Bf16:
    return F(fromBf16(static_cast<const uint16_t *>(from)[i]));
  case Type::F16:
    return F(fromF16(static_cast<const uint16_t *>(from)[i]));
  case Type::F64:
    return F(static_cast<const double *>(from)[i]);
  case Type::F32:
    break;
  }
  return F(static_cast<const float *>(from)[i]);
}

template <class F> void loadRun(Type type, const void *from, F *to, int64_t n) {
  for (int64_t i = 0; i < n; ++i)
    to[i] = load<F>(type, from, i);
}

template <class F> F roundedTo(Type type, F x) {
  return type == Type::Bf16  ? F(fromBf16(roundToBf16(float(x))))
         : type == Type::F16 ? F(fromF16(roundToF16(float(x))))
                             : x;
}

template <class F> void store(Type type, void *to, int64_t i, F x) {
  switch (type) {
  case Type::Bf16:
    static_cast<uint16_t *>(to)[i] = roundToBf16(float(x));
    return;
  case Type::F16:
    static_cast<uint16_t *>(to)[i] = roundToF16(float(x));
    return;
  case Type::F64:
    static_cast<double *>(to)[i] = double(x);
    return;
  case Type::F32:
    static_cast<float *>(to)[i] = float(x);
  }
}

/// The elements of an operand beside those of a result: how far the next head and the next column are.
template <class F> struct Operand {
  const F *p;
  int64_t headStep, step;
};

template <class F> F maximum(F a, F b) { return a != a ? a : b != b ? b : a > b ? a : b; }
template <class F> F minimum(F a, F b) { return a != a ? a : b != b ? b : a < b ? a : b; }

} // namespace

//===-- Reading -------------------------------------------------------------------------------------------------===//

int64_t Formula::sizeOf(unsigned axes) const {
  return (axes & Heads ? heads : 1) * (axes & Columns ? width / heads : 1);
}

std::string Formula::readStep(const std::vector<std::string> &words) {
  auto found =
      std::find_if(std::begin(functions), std::end(functions), [&](auto &each) { return words[0] == each.name; });
  if (found == std::end(functions) || found == functions)
    return "`" + words[0] + "` is no function";
  Step step{Function(found - functions)};
  size_t next = 1;
  if (step.op >= Function::sum_over && (words.size() < 2 || !readAxes(words[next++], step.over) || step.over & Rows))
    return "`" + words[0] + "` goes over no axes";
  if (step.op == Function::number &&
      (words.size() != 2 || (step.number = std::strtod(words[next++].c_str(), nullptr), false)))
    return "a number is missing";
  if (words.size() != next + found->count)
    return "`" + words[0] + "` takes " + std::to_string(found->count) + " values";
  for (unsigned i = 0; i < found->count; ++i) {
    step.of[i] = unsigned(std::strtoul(words[next + i].c_str(), nullptr, 10));
    if (step.of[i] >= steps.size())
      return "value " + words[next + i] + " is not made yet";
    step.axes |= steps[step.of[i]].axes;
  }
  step.axes &= ~step.over;
  steps.push_back(step);
  return "";
}

std::string Formula::readLine(const std::vector<std::string> &words) {
  Tensor tensor{};
  if (words[0] == "element")
    return words.size() == 2 && readType(words[1], element) ? "" : "expected an element type";
  if (words[0] == "width" || words[0] == "heads") {
    int64_t &size = words[0] == "width" ? width : heads;
    size = words.size() == 2 ? std::strtoll(words[1].c_str(), nullptr, 10) : 0;
    return size > 0 ? "" : "expected a size";
  }
  if (words[0] != "read" && words[0] != "make")
    return readStep(words);
  bool reading = words[0] == "read";
  if (words.size() != (reading ? 3 : 4) || !readAxes(words[1], tensor.axes) || !readType(words[2], tensor.type))
    return "expected axes and an element type";
  if (reading) {
    tensor.value = unsigned(steps.size());
    steps.push_back({Function::leaf, tensor.axes});
  } else {
    tensor.value = unsigned(std::strtoul(words[3].c_str(), nullptr, 10));
    if (tensor.value >= steps.size())
      return "value " + words[3] + " is not made yet";
  }
  (reading ? reads : makes).push_back(tensor);
  return "";
}

/// Gives all values a place, and the sums over rows, which are of f64.
void Formula::place() {
  int64_t size = element == Type::F64 ? 8 : 4;
  auto take = [&](int64_t count, int64_t each) {
    int64_t at = bytes;
    bytes += (count * each + 63) / 64 * 64;
    return at;
  };
  for (Step &step : steps)
    step.at = take(sizeOf(step.axes), size);
  for (Tensor &tensor : makes)
    tensor.at = take(tensor.axes & Rows ? 0 : sizeOf(tensor.axes), 8);
}

std::unique_ptr<Formula> Formula::read(const std::string &text, std::string &why) {
  auto formula = std::make_unique<Formula>();
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream in(line);
    std::vector<std::string> words{std::istream_iterator<std::string>(in), {}};
    if (words.empty())
      continue;
    why = formula->readLine(words);
    if (!why.empty()) {
      why = "formula, line `" + line + "`: " + why;
      return nullptr;
    }
  }
  if (formula->width % formula->heads)
    why = "formula: " + std::to_string(formula->heads) + " heads do not divide a width of " +
          std::to_string(formula->width);
  formula->place();
  return why.empty() ? std::move(formula) : nullptr;
}

std::unique_ptr<Formula> Formula::find(const PreparedOp &op, std::string &why) {
  const pp_formula_t *entry = pp_formulas;
  while (entry && entry->text && int64_t(entry->number) != op.dims[3])
    ++entry;
  if (!entry || !entry->text) {
    why = "the program has no formula " + std::to_string(op.dims[3]);
    return nullptr;
  }
  std::unique_ptr<Formula> formula = read(entry->text, why);
  if (!formula)
    return nullptr;
  size_t tensors = formula->reads.size() + formula->makes.size();
  if (formula->width != op.dims[1] || formula->heads != op.dims[2] || tensors != size_t(op.chunkCount) ||
      formula->element != op.type)
    why = "formula " + std::to_string(op.dims[3]) + " has other sizes";
  for (int64_t i = 0; i < op.chunkCount; ++i)
    formula->strides.push_back(op.chunks[i].length);
  const char *how = std::getenv("PP_FORMULAS"); // `text`: tests compare the code with what it was made of
  std::string isa = Kernels::isa();
  if (!how || std::string(how) != "text")
    formula->code = entry->bodies[isa == "plain" ? 0 : isa == "avx2" ? 1 : 2];
  return why.empty() ? std::move(formula) : nullptr;
}

//===-- Running -------------------------------------------------------------------------------------------------===//

/// The values of one row, those that all rows have in common included.
template <class F> struct Formula::Row {
  const Formula &formula;
  char *scratch;

  F *at(const Step &step) const { return reinterpret_cast<F *>(scratch + step.at); }
  Operand<F> operand(unsigned value) const {
    const Step &step = formula.steps[value];
    int64_t columns = step.axes & Columns ? formula.width / formula.heads : 1;
    return {at(step), step.axes & Heads ? columns : 0, step.axes & Columns ? 1 : 0};
  }
  template <class Do> void unary(const Step &step, Do compute) const;
  template <class Do> void binary(const Step &step, Do compute) const;
  template <class Do> void ternary(const Step &step, Do compute) const;
  template <class Do> double over(const Step &step, int64_t head, int64_t column, double begin, Do compute) const;
  void reduce(const Step &step) const;
  void compute(const Step &step) const;
  void computeMore(const Step &step) const;
};

template <class F> template <class Do> void Formula::Row<F>::unary(const Step &step, Do compute) const {
  const F *x = at(formula.steps[step.of[0]]);
  F *y = at(step);
  for (int64_t i = 0, n = formula.sizeOf(step.axes); i < n; ++i) // of the operand's axes
    y[i] = compute(x[i]);
}

template <class F> template <class Do> void Formula::Row<F>::binary(const Step &step, Do compute) const {
  Operand<F> a = operand(step.of[0]), b = operand(step.of[1]);
  int64_t heads = step.axes & Heads ? formula.heads : 1,
          columns = step.axes & Columns ? formula.width / formula.heads : 1;
  F *y = at(step);
  for (int64_t h = 0; h < heads; ++h, y += columns) {
    const F *p = a.p + h * a.headStep, *q = b.p + h * b.headStep;
    if (a.step && b.step)
      for (int64_t i = 0; i < columns; ++i)
        y[i] = compute(p[i], q[i]);
    else if (a.step)
      for (int64_t i = 0; i < columns; ++i)
        y[i] = compute(p[i], *q);
    else
      for (int64_t i = 0; i < columns; ++i)
        y[i] = compute(*p, q[i * b.step]);
  }
}

template <class F> template <class Do> void Formula::Row<F>::ternary(const Step &step, Do compute) const {
  Operand<F> a = operand(step.of[0]), b = operand(step.of[1]), c = operand(step.of[2]);
  int64_t heads = step.axes & Heads ? formula.heads : 1,
          columns = step.axes & Columns ? formula.width / formula.heads : 1;
  F *y = at(step);
  for (int64_t h = 0; h < heads; ++h, y += columns) {
    const F *p = a.p + h * a.headStep, *q = b.p + h * b.headStep, *r = c.p + h * c.headStep;
    for (int64_t i = 0; i < columns; ++i)
      y[i] = compute(p[i * a.step], q[i * b.step], r[i * c.step]);
  }
}

template <class F>
template <class Do>
double Formula::Row<F>::over(const Step &step, int64_t head, int64_t column, double begin, Do compute) const {
  Operand<F> x = operand(step.of[0]);
  int64_t heads = step.over & Heads ? formula.heads : 1,
          columns = step.over & Columns ? formula.width / formula.heads : 1;
  const F *first = x.p + head * x.headStep + column * x.step;
  for (int64_t h = 0; h < heads; ++h)
    for (int64_t i = 0; i < columns; ++i)
      begin = compute(begin, double(first[h * x.headStep + i * x.step]));
  return begin;
}

template <class F> void Formula::Row<F>::reduce(const Step &step) const {
  int64_t heads = step.axes & Heads ? formula.heads : 1,
          columns = step.axes & Columns ? formula.width / formula.heads : 1;
  auto count = double(formula.sizeOf(step.over));
  auto sum = [](double sum, double x) { return sum + x; };
  F *y = at(step);
  for (int64_t h = 0; h < heads; ++h)
    for (int64_t i = 0; i < columns; ++i, ++y) {
      double made = 0;
      if (step.op == Function::max_over)
        made = over(step, h, i, -HUGE_VAL, maximum<double>);
      else if (step.op == Function::min_over)
        made = over(step, h, i, HUGE_VAL, minimum<double>);
      else
        made = over(step, h, i, 0, sum) / (step.op == Function::sum_over ? 1 : count);
      if (step.op == Function::variance_over)
        made = over(step, h, i, 0, [made](double sum, double x) { return sum + (x - made) * (x - made); }) / count;
      *y = F(made);
    }
}

template <class F> void Formula::Row<F>::compute(const Step &step) const {
  switch (step.op) {
  case Function::leaf:
    return;
  case Function::number:
    *at(step) = F(step.number);
    return;
  case Function::yes:
    *at(step) = F(1);
    return;
  case Function::add:
    return binary(step, [](F a, F b) { return a + b; });
  case Function::sub:
    return binary(step, [](F a, F b) { return a - b; });
  case Function::mul:
    return binary(step, [](F a, F b) { return a * b; });
  case Function::div:
    return binary(step, [](F a, F b) { return a / b; });
  case Function::max:
    return binary(step, maximum<F>);
  case Function::min:
    return binary(step, minimum<F>);
  case Function::fma:
    return ternary(step, [](F a, F b, F c) { return std::fma(a, b, c); });
  case Function::select:
    return ternary(step, [](F a, F b, F c) { return a != 0 ? b : c; });
  case Function::gt:
    return binary(step, [](F a, F b) { return F(a > b); });
  case Function::ge:
    return binary(step, [](F a, F b) { return F(a >= b); });
  case Function::lt:
    return binary(step, [](F a, F b) { return F(a < b); });
  case Function::le:
    return binary(step, [](F a, F b) { return F(a <= b); });
  case Function::eq:
    return binary(step, [](F a, F b) { return F(a == b); });
  case Function::ne:
  case Function::unlike:
    return binary(step, [](F a, F b) { return F(a != b); });
  case Function::both:
    return binary(step, [](F a, F b) { return a * b; });
  case Function::either:
    return binary(step, maximum<F>);
  default:
    return step.op >= Function::sum_over ? reduce(step) : computeMore(step);
  }
}

template <class F> void Formula::Row<F>::computeMore(const Step &step) const {
  switch (step.op) {
  case Function::neg:
    return unary(step, [](F x) { return -x; });
  case Function::abs:
    return unary(step, [](F x) { return std::fabs(x); });
  case Function::exp:
    return unary(step, [](F x) { return std::exp(x); });
  case Function::log:
    return unary(step, [](F x) { return std::log(x); });
  case Function::log1p:
    return unary(step, [](F x) { return std::log1p(x); });
  case Function::expm1:
    return unary(step, [](F x) { return std::expm1(x); });
  case Function::tanh:
    return unary(step, [](F x) { return std::tanh(x); });
  case Function::erf:
    return unary(step, [](F x) { return std::erf(x); });
  case Function::sqrt:
    return unary(step, [](F x) { return std::sqrt(x); });
  case Function::rsqrt:
    return unary(step, [](F x) { return F(1) / std::sqrt(x); });
  case Function::sigmoid:
    return unary(step, [](F x) { return F(1) / (F(1) + std::exp(-x)); });
  case Function::softplus:
    return unary(step, [](F x) { return maximum(x, F(0)) + std::log1p(std::exp(-std::fabs(x))); });
  case Function::rounded:
    return unary(step, [type = formula.element](F x) { return roundedTo(type, x); });
  default: // stop
    return unary(step, [](F x) { return x; });
  }
}

template <class F> void Formula::runAs(int64_t rows, void *const *tensors, char *scratch) const {
  Row<F> row{*this, scratch};
  auto place = [&](const Tensor &tensor, size_t number, int64_t t) {
    return static_cast<char *>(tensors[number]) + t * strides[number] * int64_t(elementBytes(tensor.type));
  };
  auto each = [&](unsigned axes, int64_t t) { // the values that all rows have in common, or the others
    for (size_t i = 0; i < reads.size(); ++i)
      if ((reads[i].axes & Rows) == axes)
        loadRun(reads[i].type, place(reads[i], i, t), row.at(steps[i]), sizeOf(reads[i].axes));
    for (const Step &step : steps)
      if ((step.axes & Rows) == axes)
        row.compute(step);
  };
  for (const Tensor &tensor : makes)
    if (!(tensor.axes & Rows))
      std::memset(scratch + tensor.at, 0, size_t(sizeOf(tensor.axes)) * 8);
  each(0, 0);
  int64_t columns = width / heads;
  for (int64_t t = 0; t < rows; ++t) {
    each(Rows, t);
    for (size_t i = 0; i < makes.size(); ++i) {
      unsigned axes = makes[i].axes, given = steps[makes[i].value].axes, all = axes | given;
      Operand<F> x = row.operand(makes[i].value);
      auto *sums = reinterpret_cast<double *>(scratch + makes[i].at);
      char *to = axes & Rows ? place(makes[i], reads.size() + i, t) : nullptr;
      for (int64_t h = 0, n = 0; h < (all & Heads ? heads : 1); ++h)
        for (int64_t j = 0; j < (all & Columns ? columns : 1); ++j, ++n) {
          F value = x.p[h * x.headStep + j * x.step];
          if (to)
            store(makes[i].type, to, n, value);
          else
            sums[(axes & Heads ? h * (axes & Columns ? columns : 1) : 0) + (axes & Columns ? j : 0)] += double(value);
        }
    }
  }
  for (size_t i = 0; i < makes.size(); ++i)
    for (int64_t n = 0; !(makes[i].axes & Rows) && n < sizeOf(makes[i].axes); ++n)
      store(makes[i].type, tensors[reads.size() + i], n, reinterpret_cast<const double *>(scratch + makes[i].at)[n]);
}

void Formula::run(int64_t rows, void *const *tensors, char *scratch) const {
  if (code)
    return code(rows, strides.data(), tensors);
  element == Type::F64 ? runAs<double>(rows, tensors, scratch) : runAs<float>(rows, tensors, scratch);
}

pp_status_t pp::runFormula(const PreparedOp &op, void *const *arguments) {
  op.formula->run(op.dims[0], static_cast<void *const *>(arguments[0]), op.scratch);
  return PP_OK;
}
