// Reads PTX to a list of instructions whose operands are places of registers, and runs it.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "test/gpu/PtxMachine.h"
#include "runtime/files/Half.h"
#include "runtime/simt/BlockFibers.h"
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <sstream>

namespace pp {

using Registers = uint64_t *;
enum class PtxFlow : uint8_t { next, jump, barrier, end };

struct PtxKernel::Instruction {
  void (*run)(Registers, const Instruction &) = nullptr;
  PtxFlow flow = PtxFlow::next;
  int guard = -1; ///< a register; -1: none
  bool unless = false;
  int to[4] = {}, of[4] = {}; ///< registers; of a memory access `of[0]` is the address
  int64_t offset = 0;         ///< of an address; where a jump goes
  int count = 1, kind = 0;    ///< elements of an access; the comparison, or the types of a conversion
  bool shared = false;
};

namespace {

using Instruction = PtxKernel::Instruction;
using Handler = void (*)(Registers, const Instruction &);

/// Registers that are always there: the base of shared memory, and the place of the thread.
enum Fixed : int { SharedBase, SharedEnd, ThreadX, BlockX, fixedCount };

template <class T> T get(Registers r, int i) {
  T value;
  std::memcpy(&value, &r[i], sizeof(T));
  return value;
}
template <class T> void set(Registers r, int i, T value) {
  r[i] = 0;
  std::memcpy(&r[i], &value, sizeof(T));
}

struct Half {
  uint16_t bits;
};

#define PP_BINARY(name, expression)                                                                                    \
  template <class T> void name(Registers r, const Instruction &i) {                                                    \
    T a = get<T>(r, i.of[0]), b = get<T>(r, i.of[1]);                                                                  \
    set<T>(r, i.to[0], T(expression));                                                                                 \
  }
#define PP_UNARY(name, expression)                                                                                     \
  template <class T> void name(Registers r, const Instruction &i) {                                                    \
    T a = get<T>(r, i.of[0]);                                                                                          \
    set<T>(r, i.to[0], T(expression));                                                                                 \
  }
PP_BINARY(add, a + b)
PP_BINARY(sub, a - b)
PP_BINARY(mul, a *b)
PP_BINARY(quotient, a / b)
PP_BINARY(rest, a % b)
PP_BINARY(both, a &b)
PP_BINARY(either, a | b)
PP_BINARY(unlike, a ^ b)
PP_BINARY(least, a < b ? a : b)
PP_BINARY(most, a > b ? a : b)
PP_BINARY(leastOrNan, a != a ? a : b != b ? b : a < b || (a == b && std::signbit(a)) ? a : b)
PP_BINARY(mostOrNan, a != a ? a : b != b ? b : a > b || (a == b && !std::signbit(a)) ? a : b)
PP_BINARY(leastNumber, std::fmin(a, b))
PP_BINARY(mostNumber, std::fmax(a, b))
PP_UNARY(negative, -a)
PP_UNARY(absolute, std::fabs(a))
PP_UNARY(root, std::sqrt(a))
PP_UNARY(reciprocal, T(1) / a)
PP_UNARY(copy, a)
PP_UNARY(inverted, ~a)

template <class T> void fma(Registers r, const Instruction &i) {
  set<T>(r, i.to[0], std::fma(get<T>(r, i.of[0]), get<T>(r, i.of[1]), get<T>(r, i.of[2])));
}
template <class T> void mad(Registers r, const Instruction &i) {
  set<T>(r, i.to[0], T(get<T>(r, i.of[0]) * get<T>(r, i.of[1]) + get<T>(r, i.of[2])));
}
template <class T, class Wide> void mulWide(Registers r, const Instruction &i) {
  set<Wide>(r, i.to[0], Wide(get<T>(r, i.of[0])) * Wide(get<T>(r, i.of[1])));
}
void mulHigh(Registers r, const Instruction &i) {
  set<uint64_t>(r, i.to[0], uint64_t((__uint128_t(r[i.of[0]]) * r[i.of[1]]) >> 64));
}
template <class T> void left(Registers r, const Instruction &i) {
  unsigned by = get<uint32_t>(r, i.of[1]);
  set<T>(r, i.to[0], by < 8 * sizeof(T) ? T(get<T>(r, i.of[0]) << by) : T(0));
}
template <class T> void right(Registers r, const Instruction &i) {
  unsigned by = std::min<unsigned>(get<uint32_t>(r, i.of[1]), 8 * sizeof(T) - 1);
  T value = T(get<T>(r, i.of[0]) >> by);
  bool isGone = get<uint32_t>(r, i.of[1]) >= 8 * sizeof(T) && std::is_unsigned_v<T>;
  set<T>(r, i.to[0], isGone ? T(0) : value);
}
template <class T> void bits(Registers r, const Instruction &i) {
  unsigned from = get<uint32_t>(r, i.of[1]) & 255, count = get<uint32_t>(r, i.of[2]) & 255, width = 8 * sizeof(T);
  T mask = count >= width ? ~T(0) : T((T(1) << count) - 1);
  set<T>(r, i.to[0], from < width ? T((get<T>(r, i.of[0]) >> from) & mask) : T(0));
}
void choose(Registers r, const Instruction &i) { r[i.to[0]] = r[i.of[get<uint8_t>(r, i.of[2]) ? 0 : 1]]; }

/// No better than the device's.
void power2(Registers r, const Instruction &i) {
  float y = std::exp2(get<float>(r, i.of[0]));
  uint32_t its;
  std::memcpy(&its, &y, 4);
  its = y < 0x1p-126F ? 0 : std::isfinite(y) ? its & ~3U : its;
  set<uint32_t>(r, i.to[0], its);
}
void nearReciprocal(Registers r, const Instruction &i) {
  double y = 1 / get<double>(r, i.of[0]);
  uint64_t its;
  std::memcpy(&its, &y, 8);
  set<uint64_t>(r, i.to[0], its >> 32 << 32);
}

constexpr const char *comparisons[] = {"eq",  "ne",  "lt",  "le",  "gt",  "ge",  "equ",
                                       "neu", "ltu", "leu", "gtu", "geu", "num", "nan"};
template <class T> bool compared(T a, T b, int kind) {
  const bool unordered = a != a || b != b;
  switch (kind) {
  case 0:
    return a == b;
  case 1:
    return a != b && !unordered;
  case 2:
    return a < b;
  case 3:
    return a <= b;
  case 4:
    return a > b;
  case 5:
    return a >= b;
  case 12:
    return !unordered;
  case 13:
    return unordered;
  default:
    return unordered || compared(a, b, kind - 6);
  }
}
template <class T> void compare(Registers r, const Instruction &i) {
  set<uint8_t>(r, i.to[0], compared(get<T>(r, i.of[0]), get<T>(r, i.of[1]), i.kind));
}
template <> void compare<Half>(Registers r, const Instruction &i) {
  set<uint8_t>(r, i.to[0], compared(fromF16(get<Half>(r, i.of[0]).bits), fromF16(get<Half>(r, i.of[1]).bits), i.kind));
}

template <class T> T read(Registers r, int i) { return get<T>(r, i); }
template <class To, class From> To converted(From value) {
  if constexpr (std::is_integral_v<To> && std::is_floating_point_v<From>) { // out of range: its end
    if (value != value)
      return 0;
    if (value <= From(std::numeric_limits<To>::min()))
      return std::numeric_limits<To>::min();
    if (value >= From(std::numeric_limits<To>::max()))
      return std::numeric_limits<To>::max();
  }
  return To(value);
}
template <class To, class From, char Round> void convert(Registers r, const Instruction &i) {
  if constexpr (std::is_same_v<From, Half>) {
    set<To>(r, i.to[0], converted<To>(fromF16(get<Half>(r, i.of[0]).bits)));
  } else {
    From value = get<From>(r, i.of[0]);
    if constexpr (std::is_floating_point_v<From> && Round != 0)
      value = Round == 'z' ? std::trunc(value) : Round == 'm' ? std::floor(value) : std::nearbyint(value);
    if constexpr (std::is_same_v<To, Half>)
      set<Half>(r, i.to[0], Half{roundToF16(float(value))});
    else
      set<To>(r, i.to[0], converted<To>(value));
  }
}

/// The place of an access; ends the program where a device would.
char *place(Registers r, const Instruction &i, size_t bytes) {
  uint64_t address = r[i.of[0]] + uint64_t(i.offset);
  bytes *= size_t(i.count);
  if (address % bytes)
    simtMisaligned(reinterpret_cast<const void *>(address), int(bytes));
  if (i.shared && (address < r[SharedBase] || address + bytes > r[SharedEnd])) {
    std::fprintf(stderr, "emulated kernel: %zu bytes of shared memory beyond its %llu at byte %lld\n", bytes,
                 (unsigned long long)(r[SharedEnd] - r[SharedBase]), (long long)(address - r[SharedBase]));
    std::abort();
  }
  return reinterpret_cast<char *>(address);
}
template <class T> void loadFrom(Registers r, const Instruction &i) {
  const char *from = place(r, i, sizeof(T));
  for (int k = 0; k < i.count; ++k, from += sizeof(T)) {
    T value;
    std::memcpy(&value, from, sizeof(T));
    set<T>(r, i.to[k], value);
  }
}
template <class T> void storeTo(Registers r, const Instruction &i) {
  char *to = place(r, i, sizeof(T));
  for (int k = 0; k < i.count; ++k, to += sizeof(T))
    std::memcpy(to, &r[i.to[k]], sizeof(T));
}
void unpack(Registers r, const Instruction &i) {
  uint64_t value = r[i.of[0]];
  set<uint32_t>(r, i.to[0], uint32_t(value));
  set<uint32_t>(r, i.to[1], uint32_t(value >> 32));
}
void pack(Registers r, const Instruction &i) {
  r[i.to[0]] = get<uint32_t>(r, i.of[0]) | uint64_t(get<uint32_t>(r, i.of[1])) << 32;
}
void unpackHalves(Registers r, const Instruction &i) {
  uint32_t value = get<uint32_t>(r, i.of[0]);
  set<uint16_t>(r, i.to[0], uint16_t(value));
  set<uint16_t>(r, i.to[1], uint16_t(value >> 16));
}
void packHalves(Registers r, const Instruction &i) {
  r[i.to[0]] = get<uint16_t>(r, i.of[0]) | uint32_t(get<uint16_t>(r, i.of[1])) << 16;
}

#define PP_FLOATS(name, handler)                                                                                       \
  {name ".f32", handler<float>}, { name ".f64", handler<double> }
#define PP_BITS(name, handler)                                                                                         \
  {name ".b16", handler<uint16_t>}, {name ".b32", handler<uint32_t>}, { name ".b64", handler<uint64_t> }
#define PP_UNSIGNED(name, handler)                                                                                     \
  {name ".u16", handler<uint16_t>}, {name ".u32", handler<uint32_t>}, { name ".u64", handler<uint64_t> }
#define PP_SIGNED(name, handler)                                                                                       \
  {name ".s16", handler<int16_t>}, {name ".s32", handler<int32_t>}, { name ".s64", handler<int64_t> }
#define PP_ALL(name, handler)                                                                                          \
  PP_FLOATS(name, handler), PP_BITS(name, handler), PP_UNSIGNED(name, handler), PP_SIGNED(name, handler)

const std::map<std::string, Handler> &handlers() {
  static const std::map<std::string, Handler> all = {PP_FLOATS("add.rn", add),
                                                     PP_FLOATS("sub.rn", sub),
                                                     PP_FLOATS("mul.rn", mul),
                                                     PP_FLOATS("div.rn", quotient),
                                                     PP_FLOATS("fma.rn", fma),
                                                     PP_FLOATS("rcp.rn", reciprocal),
                                                     PP_FLOATS("sqrt.rn", root),
                                                     PP_FLOATS("neg", negative),
                                                     PP_FLOATS("abs", absolute),
                                                     PP_FLOATS("min.NaN", leastOrNan),
                                                     PP_FLOATS("max.NaN", mostOrNan),
                                                     PP_FLOATS("min", leastNumber),
                                                     PP_FLOATS("max", mostNumber),
                                                     {"ex2.approx.ftz.f32", power2},
                                                     {"rcp.approx.ftz.f64", nearReciprocal},
                                                     PP_SIGNED("add", add),
                                                     PP_SIGNED("sub", sub),
                                                     PP_SIGNED("min", least),
                                                     PP_SIGNED("max", most),
                                                     PP_UNSIGNED("min", least),
                                                     PP_UNSIGNED("max", most),
                                                     PP_SIGNED("mul.lo", mul),
                                                     PP_SIGNED("mad.lo", mad),
                                                     PP_SIGNED("neg", negative),
                                                     {"mul.hi.u64", mulHigh},
                                                     {"mul.wide.u32", mulWide<uint32_t, uint64_t>},
                                                     {"mul.wide.s32", mulWide<int32_t, int64_t>},
                                                     {"mul.wide.u16", mulWide<uint16_t, uint32_t>},
                                                     PP_UNSIGNED("div", quotient),
                                                     PP_UNSIGNED("rem", rest),
                                                     PP_BITS("and", both),
                                                     PP_BITS("or", either),
                                                     PP_BITS("xor", unlike),
                                                     PP_BITS("not", inverted),
                                                     {"and.pred", both<uint8_t>},
                                                     {"or.pred", either<uint8_t>},
                                                     {"xor.pred", unlike<uint8_t>},
                                                     PP_BITS("shl", left),
                                                     PP_UNSIGNED("shr", right),
                                                     PP_SIGNED("shr", right),
                                                     {"bfe.u32", bits<uint32_t>},
                                                     {"bfe.u64", bits<uint64_t>},
                                                     PP_ALL("mov", copy),
                                                     {"mov.pred", copy<uint8_t>},
                                                     PP_ALL("cvta.to.global", copy),
                                                     {"cvt.u64.u32", convert<uint64_t, uint32_t, 0>},
                                                     {"cvt.s64.s32", convert<int64_t, int32_t, 0>},
                                                     {"cvt.u64.u16", convert<uint64_t, uint16_t, 0>},
                                                     {"cvt.u32.u64", convert<uint32_t, uint64_t, 0>},
                                                     {"cvt.u32.u16", convert<uint32_t, uint16_t, 0>},
                                                     {"cvt.u16.u32", convert<uint16_t, uint32_t, 0>},
                                                     {"cvt.u16.u64", convert<uint16_t, uint64_t, 0>},
                                                     {"cvt.f32.f16", convert<float, Half, 0>},
                                                     {"cvt.rn.f16.f32", convert<Half, float, 0>},
                                                     {"cvt.f64.f32", convert<double, float, 0>},
                                                     {"cvt.rn.f32.f64", convert<float, double, 0>},
                                                     {"cvt.rn.f32.s32", convert<float, int32_t, 0>},
                                                     {"cvt.rn.f64.s32", convert<double, int32_t, 0>},
                                                     {"cvt.rn.f64.s64", convert<double, int64_t, 0>},
                                                     {"cvt.rzi.s32.f32", convert<int32_t, float, 'z'>},
                                                     {"cvt.rzi.s32.f64", convert<int32_t, double, 'z'>},
                                                     {"cvt.rni.s32.f64", convert<int32_t, double, 'n'>},
                                                     {"cvt.rmi.f32.f32", convert<float, float, 'm'>},
                                                     {"cvt.rni.f32.f32", convert<float, float, 'n'>},
                                                     {"cvt.rni.f64.f64", convert<double, double, 'n'>},
                                                     {"cvt.rmi.f64.f64", convert<double, double, 'm'>}};
  return all;
}
const std::map<std::string, Handler> &comparers() {
  static const std::map<std::string, Handler> all = {PP_ALL("", compare), {".f16", compare<Half>}};
  return all;
}
struct Access {
  Handler load, store;
};
const std::map<std::string, Access> &accesses() {
#define PP_ACCESS(name, type)                                                                                          \
  {                                                                                                                    \
    name, { loadFrom<type>, storeTo<type> }                                                                            \
  }
  static const std::map<std::string, Access> all = {
      PP_ACCESS("f32", float),    PP_ACCESS("f64", double),   PP_ACCESS("u16", uint16_t), PP_ACCESS("b16", uint16_t),
      PP_ACCESS("u32", uint32_t), PP_ACCESS("b32", uint32_t), PP_ACCESS("u64", uint64_t), PP_ACCESS("b64", uint64_t),
      PP_ACCESS("u8", uint8_t),   PP_ACCESS("b8", uint8_t)};
  return all;
}

} // namespace

//===-- Reading -------------------------------------------------------------------------------------------------===//

class PtxReader {
public:
  std::map<std::string, std::shared_ptr<PtxKernel>> read(const std::string &text, std::string &why);

private:
  void beginKernel(const std::string &line);
  void endKernel();
  std::string readLine(std::string line);
  std::string readInstruction(const std::string &opcode, std::vector<std::string> operands, Instruction &its);
  std::string readAccess(const std::string &opcode, std::vector<std::string> &operands, Instruction &its);
  int constant(uint64_t value);
  int registerOf(const std::string &text);

  std::map<std::string, std::shared_ptr<PtxKernel>> all;
  PtxKernel *kernel = nullptr;
  std::string name;
  std::map<std::string, int> registers;
  std::map<uint64_t, int> constants;
  std::map<std::string, int64_t> labels, sharedAt;
  std::vector<std::pair<size_t, std::string>> jumps;
  bool inBody = false;
};

/// The parts of a text between commas outside of braces, without blanks.
static std::vector<std::string> partsOf(const std::string &text) {
  std::vector<std::string> parts(1);
  int depth = 0;
  for (char c : text) {
    depth += c == '{' || c == '[' ? 1 : c == '}' || c == ']' ? -1 : 0;
    if (c == ',' && depth == 0)
      parts.emplace_back();
    else if (c != ' ' && c != '\t')
      parts.back() += c;
  }
  return parts.back().empty() ? std::vector<std::string>() : parts;
}
static std::vector<std::string> inBraces(const std::string &text) {
  return text.front() == '{' ? partsOf(text.substr(1, text.size() - 2)) : std::vector<std::string>{text};
}

int PtxReader::constant(uint64_t value) {
  auto [found, isNew] = constants.try_emplace(value, int(kernel->registers.size()));
  if (isNew)
    kernel->registers.push_back(value);
  return found->second;
}

/// The place of a register, of a constant or of the address of shared memory; -1: it is none of them.
int PtxReader::registerOf(const std::string &text) {
  static const std::map<std::string, int> fixed = {{"%tid.x", ThreadX}, {"%ctaid.x", BlockX}};
  if (auto found = fixed.find(text); found != fixed.end())
    return found->second;
  if (text[0] == '%') {
    size_t digits = text.find_first_of("0123456789");
    std::string kind = text.substr(0, digits);
    auto found = registers.find(kind);
    if (found == registers.end())
      return -1;
    return found->second + (digits == std::string::npos ? 0 : int(std::strtol(text.c_str() + digits, nullptr, 10)));
  }
  if (auto found = sharedAt.find(text); found != sharedAt.end())
    return SharedBase; // each kernel has one block of it
  if (text.rfind("0f", 0) == 0 || text.rfind("0d", 0) == 0)
    return constant(std::strtoull(text.c_str() + 2, nullptr, 16));
  char *end = nullptr;
  auto number = uint64_t(std::strtoll(text.c_str(), &end, 0));
  return *end == 0 ? constant(number) : -1;
}

void PtxReader::beginKernel(const std::string &line) {
  size_t at = line.find(".entry ") + 7;
  name = line.substr(at, line.find('(') - at);
  all[name] = std::make_shared<PtxKernel>();
  kernel = all[name].get();
  kernel->registers.assign(fixedCount, 0);
  registers.clear(), constants.clear(), labels.clear(), sharedAt.clear(), jumps.clear();
  inBody = false;
}

void PtxReader::endKernel() {
  for (auto &[number, label] : jumps)
    kernel->code[number].offset = labels[label];
  Instruction end;
  end.flow = PtxFlow::end;
  kernel->code.push_back(end);
  kernel = nullptr;
}

std::string PtxReader::readAccess(const std::string &opcode, std::vector<std::string> &operands, Instruction &its) {
  bool isLoad = opcode.rfind("ld.", 0) == 0;
  std::string address = operands[isLoad ? 1 : 0], type = opcode.substr(opcode.rfind('.') + 1);
  auto access = accesses().find(type);
  if (access == accesses().end())
    return "type";
  address = address.substr(1, address.size() - 2);
  if (opcode.find(".param.") != std::string::npos) { // as a register of its own
    its.run = copy<uint64_t>;
    its.to[0] = registerOf(operands[0]);
    its.of[0] = fixedCount + int(std::strtol(address.c_str() + address.rfind('_') + 1, nullptr, 10));
    return type == "u64" ? "" : "type of a parameter";
  }
  its.shared = opcode.find(".shared.") != std::string::npos;
  if (!its.shared && opcode.find(".global.") == std::string::npos)
    return "memory";
  size_t plus = address.find('+');
  its.offset = plus == std::string::npos ? 0 : std::strtoll(address.c_str() + plus + 1, nullptr, 10);
  its.of[0] = registerOf(address.substr(0, plus));
  std::vector<std::string> elements = inBraces(operands[isLoad ? 0 : 1]);
  its.count = int(elements.size());
  for (size_t k = 0; k < elements.size(); ++k) {
    its.to[k] = registerOf(elements[k]);
    if (its.to[k] < 0)
      return "register " + elements[k];
  }
  its.run = isLoad ? access->second.load : access->second.store;
  return its.of[0] < 0 ? "address" : "";
}

std::string PtxReader::readInstruction(const std::string &opcode, std::vector<std::string> operands, Instruction &its) {
  if (opcode == "ret") {
    its.flow = PtxFlow::end;
    return "";
  }
  if (opcode == "bra" || opcode == "bra.uni") {
    its.flow = PtxFlow::jump;
    jumps.push_back({kernel->code.size(), operands[0]});
    return "";
  }
  if (opcode == "bar.sync") {
    its.flow = PtxFlow::barrier;
    return "";
  }
  if (opcode.rfind("ld.", 0) == 0 || opcode.rfind("st.", 0) == 0)
    return readAccess(opcode, operands, its);
  std::vector<std::string> to = inBraces(operands[0]), of(operands.begin() + 1, operands.end());
  if (to.size() == 2)
    its.run = opcode == "mov.b64" ? unpack : unpackHalves;
  if (of.size() == 1 && of[0].front() == '{') {
    of = inBraces(of[0]);
    its.run = opcode == "mov.b64" ? pack : packHalves;
  }
  if (opcode.rfind("setp.", 0) == 0) {
    size_t dot = opcode.find('.', 5);
    std::string how = opcode.substr(5, dot - 5);
    while (its.kind < 14 && how != comparisons[its.kind])
      ++its.kind;
    auto found = comparers().find(opcode.substr(dot));
    its.run = found == comparers().end() || its.kind == 14 ? nullptr : found->second;
    if (how == "ne" && opcode[dot + 1] != 'f') // of numbers: not equal
      its.kind = 7;
  } else if (opcode.rfind("selp.", 0) == 0) {
    its.run = choose;
  } else if (!its.run) {
    auto found = handlers().find(opcode);
    its.run = found == handlers().end() ? nullptr : found->second;
  }
  if (!its.run || to.size() > 4 || of.size() > 4)
    return "instruction";
  for (size_t k = 0; k < to.size(); ++k) {
    its.to[k] = registerOf(to[k]);
    if (its.to[k] < 0)
      return "register " + to[k];
  }
  for (size_t k = 0; k < of.size(); ++k) {
    its.of[k] = registerOf(of[k]);
    if (its.of[k] < 0)
      return "operand " + of[k];
  }
  return "";
}

std::string PtxReader::readLine(std::string line) {
  if (line.rfind(".maxntid", 0) == 0) {
    kernel->most = unsigned(std::strtoul(line.c_str() + 8, nullptr, 10));
    return "";
  }
  if (line.rfind(".param", 0) == 0) {
    ++kernel->parameters;
    kernel->registers.push_back(0);
    return line.find(".u64 ") == std::string::npos ? "parameter" : "";
  }
  if (line.back() == ':') {
    labels[line.substr(0, line.size() - 1)] = int64_t(kernel->code.size());
    return "";
  }
  if (line.back() == ';')
    line.pop_back();
  if (line.rfind(".reg", 0) == 0) {
    size_t begin = line.find('%'), open = line.find('<');
    std::string its = line.substr(begin, open == std::string::npos ? open : open - begin);
    registers[its] = int(kernel->registers.size());
    size_t count = open == std::string::npos ? 1 : std::strtoul(line.c_str() + open + 1, nullptr, 10);
    kernel->registers.resize(kernel->registers.size() + count);
    return "";
  }
  if (line.rfind(".shared", 0) == 0) {
    size_t open = line.find('['), begin = line.rfind(' ', open) + 1;
    sharedAt[line.substr(begin, open - begin)] = 0;
    kernel->sharedBytes = std::strtoul(line.c_str() + open + 1, nullptr, 10);
    return sharedAt.size() > 1 ? "second block of shared memory" : "";
  }
  Instruction its;
  if (line[0] == '@') {
    size_t blank = line.find_first_of(" \t");
    its.unless = line[1] == '!';
    its.guard = registerOf(line.substr(1 + its.unless, blank - 1 - its.unless));
    line = line.substr(line.find_first_not_of(" \t", blank));
  }
  size_t blank = line.find_first_of(" \t");
  std::string why =
      readInstruction(line.substr(0, blank), partsOf(blank == std::string::npos ? "" : line.substr(blank)), its);
  kernel->code.push_back(its);
  return why;
}

std::map<std::string, std::shared_ptr<PtxKernel>> PtxReader::read(const std::string &text, std::string &why) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (size_t comment = line.find("//"); comment != std::string::npos)
      line.resize(comment);
    const bool endsFunction = line == "}";
    size_t begin = line.find_first_not_of(" \t"), end = line.find_last_not_of(" \t");
    line = begin == std::string::npos ? "" : line.substr(begin, end + 1 - begin);
    if (line.find(".entry ") != std::string::npos)
      beginKernel(line);
    else if (kernel && endsFunction)
      endKernel();
    else if (kernel && !line.empty() && line != "{" && line != "}" && line != ")" && line != "(")
      why = readLine(line);
    if (!why.empty()) {
      why = "PTX of `" + name + "`: `" + line + "` has an unknown " + why;
      return {};
    }
  }
  return std::move(all);
}

std::map<std::string, std::shared_ptr<PtxKernel>> PtxKernel::read(const std::string &text, std::string &why) {
  return PtxReader().read(text, why);
}

//===-- Running -------------------------------------------------------------------------------------------------===//

void PtxKernel::run(int64_t blocks, unsigned threads, const std::vector<uint64_t> &arguments) const {
  runGrid({unsigned(blocks), 1, 1}, threads, sharedBytes, [&] {
    std::vector<uint64_t> own(registers);
    Registers r = own.data();
    const SimtPlace &at = simtPlace();
    r[SharedBase] = reinterpret_cast<uint64_t>(at.shared);
    r[SharedEnd] = r[SharedBase] + sharedBytes;
    r[ThreadX] = at.thread.x, r[BlockX] = at.block.x;
    for (size_t i = 0; i < arguments.size(); ++i)
      r[fixedCount + i] = arguments[i];
    for (size_t next = 0;;) {
      const Instruction &its = code[next++];
      if (its.guard >= 0 && bool(get<uint8_t>(r, its.guard)) == its.unless)
        continue;
      if (its.flow == PtxFlow::next)
        its.run(r, its);
      else if (its.flow == PtxFlow::jump)
        next = size_t(its.offset);
      else if (its.flow == PtxFlow::barrier)
        simtWaitBlock();
      else
        return;
    }
  });
}

} // namespace pp
